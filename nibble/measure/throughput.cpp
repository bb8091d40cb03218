#include "measure/throughput.h"

#include "engine/throughput.h"
#include "jobs/sampling.h"

#include <fmt/format.h>

namespace nibble {
namespace {

constexpr int64_t steady_steps = 16;

struct ThroughputLine {
    ThroughputLoad load;
    Throughput engine;
    EngineOptions limits;
    int64_t capacity = 0;
    double steady = 0;  // tokens per second of the model without the engine
};

Result<ThroughputLine> measure_pair(const BenchThroughputOptions& o, std::shared_ptr<const LanguageModel> model,
                                    size_t pair) {
    ThroughputLine line{.load = {.input = o.input[pair],
                                 .output = o.output[pair],
                                 .period = o.period,
                                 .masked = o.masked,
                                 .biased = o.biased}};
    NIBBLE_TRY(EngineOptions options, engine_options(o.cache, o.sequences));
    options.step_rows = o.step_rows;
    options.mixed_rows = o.mixed_rows;
    options.context = line.load.input + line.load.output;
    options.queue = int64_t{1} << 20;
    {
        NIBBLE_TRY(const auto engine, Engine::create(model, {}, options));
        line.limits = engine->limits();
        line.capacity = engine->capacity();
        line.load.requests = o.requests > 0 ? o.requests : 2 * line.limits.sequences;
        NIBBLE_TRY(line.engine, measure_throughput(*engine, line.load));
    }
    NIBBLE_TRY(line.steady, measure_steady_decode(*model, line.engine.most_running,
                                                  line.load.input + line.load.output / 2, steady_steps));
    return line;
}

Json json_of(const ThroughputLine& l) {
    const Throughput& t = l.engine;
    return {{"isl", l.load.input},
            {"osl", l.load.output},
            {"requests", t.requests},
            {"seconds", t.seconds},
            {"output_tokens", t.output_tokens},
            {"output_tokens_per_second", t.output_per_second()},
            {"total_tokens_per_second", t.total_per_second()},
            {"requests_per_second", t.requests_per_second()},
            {"most_running", t.most_running},
            {"steps", t.steps},
            {"step_rows", t.step_rows},
            {"overlapped_steps", t.overlapped_steps},
            {"prompt_step_seconds", t.prompt_step_seconds},
            {"preemptions", t.preemptions},
            {"draft_tokens", t.draft_tokens},
            {"accepted_tokens", t.accepted_tokens},
            {"deferred_rows", t.deferred_rows},
            {"host_rows", t.host_rows},
            {"sequences", l.limits.sequences},
            {"step_rows_at_most", l.limits.step_rows},
            {"mixed_rows_at_most", l.limits.mixed_rows},
            {"kv_bytes", l.limits.kv_memory},
            {"steady_decode_tokens_per_second", l.steady}};
}

}  // namespace

Status bench_throughput(const BenchThroughputOptions& o, std::FILE* out) {
    if (o.input.size() != o.output.size())
        return fail("--isl has {} values and --osl has {}: they must be pairs", o.input.size(), o.output.size());
    ThreadPool threads(o.engine.threads);
    NIBBLE_TRY(ModelOptions options, model_options(o.engine));
    NIBBLE_TRY(const Speculation speculation, parse_speculation(o.cache.speculate));
    options.prediction = speculation.predicts();
    NIBBLE_TRY(const DeviceChoice device, parse_device(o.engine.device).within("--device"));
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> checkpoint,
               o.subject.open(!o.engine.weights_only, speculation.predicts()));
    NIBBLE_TRY(std::shared_ptr<const LanguageModel> model, load_model(checkpoint, options, device, threads));
    for (size_t i = 0; i < o.input.size(); ++i)
        if (o.input[i] + o.output[i] > model->config().context)
            return fail("--isl {} --osl {}: {} tokens are more than the model's context of {}", o.input[i], o.output[i],
                        o.input[i] + o.output[i], model->config().context);
    const std::string name = o.subject.name();
    Json lines = Json::array();
    if (!o.json) {
        fmt::print(out, "{} on {}; all requests queued at once, random prompts{}\n", name, model->kernels(),
                   o.period > 0 ? fmt::format(" that repeat every {} tokens", o.period) : "");
        fmt::print(out, "{:>6} {:>6} {:>9} {:>8} {:>13} {:>13} {:>9} {:>8} {:>14}\n", "ISL", "OSL", "requests",
                   "running", "output tok/s", "total tok/s", "seconds", "steps", "decode alone");
    }
    for (size_t i = 0; i < o.input.size(); ++i) {
        NIBBLE_TRY(const ThroughputLine l,
                   measure_pair(o, model, i).within(fmt::format("--isl {} --osl {}", o.input[i], o.output[i])));
        const Throughput& t = l.engine;
        if (o.json) {
            lines.push_back(json_of(l));
            continue;
        }
        fmt::print(out, "{:>6} {:>6} {:>9} {:>8} {:>13.1f} {:>13.1f} {:>9.2f} {:>8} {:>14.1f}\n", l.load.input,
                   l.load.output, t.requests, t.most_running, t.output_per_second(), t.total_per_second(), t.seconds,
                   t.steps, l.steady);
        if (t.draft_tokens > 0)
            fmt::print(out, "       of {} draft tokens {} were accepted\n", t.draft_tokens, t.accepted_tokens);
        std::fflush(out);
    }
    if (o.json) {
        const Json all{{"model", name}, {"device", model->kernels()}, {"flags", to_json(o.engine)}, {"loads", lines}};
        fmt::print(out, "{}\n", all.dump(2, ' ', false, Json::error_handler_t::replace));
    } else if (!o.quiet) {
        fmt::print(out,
                   "decode alone: the same number of sequences, forks of one with ISL + OSL / 2 tokens, without "
                   "scheduler, prompts and answers\n");
    }
    return Ok{};
}

}  // namespace nibble
