#include "measure/serve.h"

#include "base/fields.h"
#include "checkpoint/output_place.h"
#include "io/atomic_file.h"
#include "io/input_text.h"
#include "jobs/loaded_model.h"
#include "jobs/served.h"
#include "page/html.h"
#include "server/model_server.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace nibble {
namespace {

bool is_url(const std::string& target) { return target.starts_with("http:") || target.starts_with("unix:"); }

Json quantiles_json(const LoadQuantiles& q) {
    return {{"mean", q.mean * 1e3}, {"p50", q.p50 * 1e3}, {"p90", q.p90 * 1e3}, {"p99", q.p99 * 1e3}};
}

Json load_json(const std::string& target, const LoadResult& r) {
    Json json{{"target", target}, {"model", r.plan.model}};
    if (r.plan.rate > 0)
        json["request_rate"] = r.plan.rate;
    else
        json["concurrency"] = r.plan.concurrency;
    json.update(
        Json{{"requests", r.plan.requests},
             {"failed", r.failed},
             {"seconds", r.seconds},
             {"input_tokens", r.input_tokens},
             {"output_tokens", r.output_tokens},
             {"output_tokens_per_second", r.output_rate()},
             {"total_tokens_per_second", r.seconds > 0 ? double(r.input_tokens + r.output_tokens) / r.seconds : 0.0},
             {"requests_per_second", r.request_rate()},
             {"ttft_ms", quantiles_json(r.ttft)},
             {"tpot_ms", quantiles_json(r.tpot)},
             {"itl_ms", quantiles_json(r.itl)},
             {"e2e_ms", quantiles_json(r.latency)}});
    if (r.plan.ttft_goal || r.plan.tpot_goal) json["goodput_requests_per_second"] = r.goodput();
    return json;
}

// Returns the bytes of memory in use for serving: used GPU memory, or the peak of this process.
Result<int64_t> memory_in_use(const ModelSettings& settings) {
    NIBBLE_TRY(const DeviceChoice choice, parse_device(settings.device).within("--device"));
    if (choice.cuda) {
        NIBBLE_TRY(const DeviceInfo device, open_device(choice));
        NIBBLE_TRY(const DeviceMemory memory, device_memory(device.index));
        return memory.total - memory.free;
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<int64_t>(usage.ru_maxrss) << 10;
}

std::string load_name(const LoadPlan& plan) {
    return plan.rate > 0 ? fmt::format("{:g}/s", plan.rate) : fmt::format("{}", plan.concurrency);
}

std::string trio(const LoadQuantiles& q) {
    return fmt::format("{:.1f} / {:.1f} / {:.1f}", q.p50 * 1e3, q.p90 * 1e3, q.p99 * 1e3);
}

void print_row(const LoadResult& r, std::FILE* out) {
    std::string more;
    if (r.plan.ttft_goal || r.plan.tpot_goal) more += fmt::format("  goodput {:.2f}/s", r.goodput());
    if (r.failed > 0) more += fmt::format("  {} FAILED: {}", r.failed, r.first_error);
    fmt::print(out, "{:>8} {:>10.1f} {:>8.2f} {:>24} {:>24} {:>24} {:>26}{}\n", load_name(r.plan), r.output_rate(),
               r.request_rate(), trio(r.ttft), trio(r.tpot), trio(r.itl), trio(r.latency), more);
    std::fflush(out);
}

struct TargetRuns {
    std::string name;
    std::vector<LoadResult> runs;
};

std::string bench_page(const std::vector<TargetRuns>& targets) {
    Json loads = Json::array();
    for (const TargetRuns& target : targets)
        for (const LoadResult& r : target.runs) {
            Json& load = loads.emplace_back(load_json(target.name, r));
            load["name"] = target.name;
        }
    const LoadPlan& plan = targets[0].runs[0].plan;
    return document("nibble bench serve", "serving",
                    {{"input", plan.texts.empty() ? std::to_string(plan.input_tokens) : "texts as"},
                     {"output", plan.output_tokens},
                     {"loads", std::move(loads)}});
}

Result<std::vector<std::string>> read_prompt_texts(const std::string& path) {
    std::vector<std::string> texts;
    size_t number = 0;
    NIBBLE_CHECK(for_each_line(path, [&](std::string_view line) -> Status {
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) return Ok{};
        NIBBLE_TRY(const Json json, parse_json(line).within(fmt::format("{}: line {}", path, number)));
        std::string text;
        if (!json.is_object()) return fail("{}: line {}: is not an object", path, number);
        for (const char* name : {"prompt", "text"})
            if (text.empty() && json.contains(name)) NIBBLE_CHECK(Fields(json).need(name, text));
        if (text.empty()) return fail("{}: line {}: neither 'prompt' nor 'text'", path, number);
        texts.push_back(std::move(text));
        return Ok{};
    }));
    if (texts.empty()) return fail("{}: has no prompts", path);
    return texts;
}

}  // namespace

Result<bool> bench_serve(const BenchServeOptions& config, const JobHooks& hooks, std::FILE* out) {
    if (!config.page.empty()) NIBBLE_CHECK(check_output_file(config.page));
    LoadPlan plan = config.plan;
    plan.api_key = config.key;
    if (config.goal_ttft_ms > 0) plan.ttft_goal = config.goal_ttft_ms / 1e3;
    if (config.goal_tpot_ms > 0) plan.tpot_goal = config.goal_tpot_ms / 1e3;
    if (!config.prompts.empty()) {
        NIBBLE_TRY(plan.texts, read_prompt_texts(config.prompts));
    }
    std::vector<LoadPlan> loads;
    const auto add = [&](int64_t concurrency, double rate) {
        LoadPlan& one = loads.emplace_back(plan);
        one.concurrency = concurrency;
        one.rate = rate;
        one.requests = config.requests > 0 ? config.requests
                       : rate > 0          ? 64
                                           : std::max<int64_t>(16, config.rounds * concurrency);
    };
    for (const int64_t c : config.concurrencies) add(c, 0);
    for (const double r : config.rates) add(1, r);
    if (loads.empty())
        for (const int64_t c : {1, 4, 16}) add(c, 0);

    std::vector<TargetRuns> all;
    Json list = Json::array();
    bool failed = false;
    for (const std::string& target : config.targets) {
        ThreadPool pool(config.served.engine.threads);
        std::unique_ptr<ModelServer> server;
        TargetRuns& runs = all.emplace_back(TargetRuns{is_url(target) ? target : nibble::name_of(target), {}});
        LoadPlan at;
        Json served;
        if (is_url(target)) {
            NIBBLE_TRY(at.url, parse_url(target));
        } else {
            ServeOptions settings = config.served;
            settings.model = target;
            settings.queue = 1 << 16;
            NIBBLE_TRY(server, ModelServer::listen({}));
            NIBBLE_TRY(ServedModel model, load_served(settings, pool, hooks));
            at.url.address = server->address();
            at.vocabulary = model.vocab();
            served = model.facts;
            server->serve(std::move(model));
        }
        if (!config.json) {
            fmt::print(out, "{}{}\n", all.size() > 1 ? "\n" : "", runs.name);
            fmt::print(out, "{:>8} {:>10} {:>8} {:>24} {:>24} {:>24} {:>26}\n", "load", "tokens/s", "req/s",
                       "TTFT ms p50/p90/p99", "TPOT ms", "ITL ms", "end to end ms");
        }
        for (LoadPlan load : loads) {
            load.url = at.url;
            if (server) load.vocabulary = at.vocabulary;
            NIBBLE_TRY(LoadResult result, run_load(load).within(target));
            failed = failed || result.failed > 0;
            if (config.json) {
                Json& one = list.emplace_back(load_json(target, result));
                if (server) {
                    NIBBLE_TRY(const int64_t memory, memory_in_use(config.served.engine));
                    one["served"] = served, one["served"]["memory_bytes"] = memory;
                }
            } else {
                print_row(result, out);
            }
            runs.runs.push_back(std::move(result));
        }
    }
    if (config.json) fmt::print(out, "{}\n", list.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    if (!config.page.empty()) NIBBLE_CHECK(write_file_atomically(config.page, bench_page(all)));
    return failed;
}

}  // namespace nibble
