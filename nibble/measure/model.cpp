#include "measure/model.h"

#include "jobs/loaded_model.h"
#include "jobs/words.h"
#include "kernels/machine_limits.h"
#include "model/cpu/model.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <random>

namespace nibble {
namespace {

// Wall time and processor time of all threads. On a busy machine processor time shows the cost of the work.
struct Seconds {
    double wall = 0, cpu = 0;
};

double cpu_now() {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class Work>
Result<Seconds> timed(Work work) {
    const auto start = std::chrono::steady_clock::now();
    const double cpu = cpu_now();
    NIBBLE_CHECK(work());
    return Seconds{std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), cpu_now() - cpu};
}

// Returns medians of wall and processor time over repetitions. `prepare` runs before each one and is not timed.
template <class Prepare, class Work>
Result<Seconds> median_of(int repetitions, Prepare prepare, Work work) {
    std::vector<double> wall, cpu;
    for (int i = 0; i < repetitions; ++i) {
        NIBBLE_CHECK(prepare());
        NIBBLE_TRY(const Seconds s, timed(work));
        wall.push_back(s.wall), cpu.push_back(s.cpu);
    }
    std::ranges::sort(wall), std::ranges::sort(cpu);
    return Seconds{wall[wall.size() / 2], cpu[cpu.size() / 2]};
}

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab) {
    std::mt19937 random(1);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(vocab)));
    return tokens;
}

// The cost of one token's products: every weight once; of routed experts only the selected ones.
struct TokenCost {
    double bytes = 0;  // bytes of blocks and head
    double block_multiply_adds = 0, head_multiply_adds = 0;
};

// Returns the experts of a mixer or of one of its branches; null: there are none.
const MoeConfig* routed_experts(const MixerConfig& mixer) {
    if (const auto* moe = std::get_if<MoeConfig>(&mixer)) return moe;
    if (const auto* parallel = std::get_if<ParallelConfig>(&mixer))
        for (const Branch& branch : parallel->branches)
            if (const MoeConfig* moe = routed_experts(branch.mixer)) return moe;
    return nullptr;
}

TokenCost token_cost(const ModelParts& model) {
    TokenCost cost;
    const auto add = [&](const Linear& l, double share, double& multiply_adds) {
        const double elements = share * static_cast<double>(l.rows) * static_cast<double>(l.cols);
        multiply_adds += elements;
        cost.bytes += elements * (l.format == Format::none ? 2 : bits_per_element(l.format, l.rows, l.cols) / 8);
    };
    for (const Block& block : model.blocks) {
        const MoeConfig* moe = routed_experts(block.config().mixer);
        for (const Linear* linear : block.linears()) {
            const bool routed = moe && linear->name.find(".experts.") != std::string::npos;
            add(*linear, routed ? static_cast<double>(moe->top_k) / moe->experts : 1.0, cost.block_multiply_adds);
        }
    }
    add(model.head.linear(), 1.0, cost.head_multiply_adds);
    return cost;
}

struct Timings {
    Seconds load, prefill, alone, together;
};

// Reports a GPU: wall time, and the rates of products and weights. The host only plans there.
Status report_device(const BenchModelOptions& o, const LanguageModel& model, const TokenCost& cost, const Timings& t,
                     std::FILE* out) {
    const auto steps = static_cast<double>(o.decode), n = static_cast<double>(o.prompt);
    const auto many = static_cast<double>(o.sequences);
    const double prefill_flops = 2 * (n * cost.block_multiply_adds + cost.head_multiply_adds);
    if (o.json) {
        Json j{{"model", o.subject.name()}, {"device", model.kernels()}, {"load_seconds", t.load.wall}};
        j["prefill_tokens_per_second"] = n / t.prefill.wall;
        j["prefill_flops_per_second"] = prefill_flops / t.prefill.wall;
        j["decode_tokens_per_second"] = steps / t.alone.wall;
        j["decode_together"] = o.sequences;
        j["together_tokens_per_second"] = steps * many / t.together.wall;
        j["weight_bytes"] = static_cast<int64_t>(cost.bytes);
        j["decode_weight_bytes_per_second"] = cost.bytes * steps / t.alone.wall;
        fmt::print(out, "{}\n", j.dump(2));
        return Ok{};
    }
    fmt::print(out, "{} on {}; decoding gives the bits of the prefill\n", o.subject.name(), model.kernels());
    fmt::print(out, "  load              {:9.3f} s\n", t.load.wall);
    fmt::print(out, "  prefill {:<9} {:9.0f} tokens/s   {:.1f} TFLOP/s in products\n", o.prompt, n / t.prefill.wall,
               prefill_flops / t.prefill.wall / 1e12);
    fmt::print(out, "  decode            {:9.1f} tokens/s   {:.2f} TB/s of weights\n", steps / t.alone.wall,
               cost.bytes * steps / t.alone.wall / 1e12);
    fmt::print(out, "  decode {:<3} at once {:9.1f} tokens/s   {:.2f} times a single sequence\n", o.sequences,
               steps * many / t.together.wall, many * t.alone.wall / t.together.wall);
    return Ok{};
}

// Compares one decoded token after each of a few prefixes with the prefill of the whole text.
Status check_decode(const LanguageModel& model, KvPool& pool, std::span<const int32_t> tokens) {
    const auto vocab = static_cast<size_t>(model.config().vocab);
    std::vector<float> whole(tokens.size() * vocab), one(vocab);
    NIBBLE_CHECK(model.forward(Batch({{nullptr, tokens, 0}}), whole));
    Sequence sequence = pool.sequence();
    for (size_t i = 0; i < tokens.size(); ++i) {
        NIBBLE_CHECK(model.forward(Batch({{&sequence, tokens.subspan(i, 1), 0}}), one));
        if (std::memcmp(one.data(), whole.data() + i * vocab, vocab * sizeof(float)) != 0)
            return fail("decoding position {} differs from the prefill: not timed", i);
    }
    return Ok{};
}

}  // namespace

Status bench_model(const BenchModelOptions& o, std::FILE* out) {
    ThreadPool threads(o.threads);
    ModelOptions options;
    options.kernels = o.kernel;
    NIBBLE_TRY(options.sums, parse_sum_order(o.sums));
    options.compute = o.f32 ? Compute::f32 : Compute::bf16;
    options.quantize_activations = !o.weights_only;
    NIBBLE_TRY(const DeviceChoice device, parse_device(o.device).within("--device"));
    std::shared_ptr<const Checkpoint> checkpoint;
    std::unique_ptr<LanguageModel> model;
    NIBBLE_TRY(const Seconds load, timed([&]() -> Status {
                   NIBBLE_TRY(checkpoint, o.subject.open(!o.weights_only, false));
                   NIBBLE_TRY(model, load_model(checkpoint, options, device, threads));
                   return Ok{};
               }));
    const int64_t vocab = model->config().vocab;
    const auto tokens = random_tokens(std::max({o.prompt, o.context, o.decode, int64_t{16}}), vocab);
    const std::span<const int32_t> prompt = std::span(tokens).first(size_t(o.prompt));
    const int64_t decoded = (o.sequences + 2) * (o.context + o.decode + kv_page_tokens);
    NIBBLE_TRY(const auto pool, model->make_pool(std::max(o.prompt, decoded) + kv_page_tokens, o.sequences + 2));
    NIBBLE_CHECK(check_decode(*model, *pool, std::span(tokens).first(16)));

    std::vector<float> logits(static_cast<size_t>(vocab * std::max<int64_t>(o.sequences, 1)));
    const auto row = std::span(logits).first(size_t(vocab));
    const auto nothing = []() -> Status { return Ok{}; };
    NIBBLE_TRY(const Seconds prefill, median_of(o.repetitions, nothing, [&]() -> Status {
                   Sequence s = pool->sequence();
                   return model->forward(Batch({{&s, prompt, o.prompt - 1}}), row);
               }));
    Sequence context = pool->sequence();
    if (o.context > 0) {
        const auto before = std::span(tokens).first(size_t(o.context));
        NIBBLE_CHECK(model->forward(Batch({{&context, before, o.context - 1}}), row));
    }
    std::vector<TokenRequest> requests;
    std::vector<ChosenToken> chosen;
    const auto decode = [&](int64_t count) -> Result<Seconds> {
        std::vector<Sequence> sequences;
        const auto start = [&]() -> Status {
            sequences.clear();
            for (int64_t i = 0; i < count; ++i) {
                NIBBLE_TRY(Sequence fork, context.fork());
                sequences.push_back(std::move(fork));
            }
            return Ok{};
        };
        return median_of(o.repetitions, start, [&]() -> Status {
            for (int64_t i = 0; i < o.decode; ++i) {
                std::vector<Segment> segments;
                for (Sequence& s : sequences) segments.push_back({&s, std::span(tokens).subspan(size_t(i), 1), 0});
                if (!model->chooses()) {
                    NIBBLE_CHECK(model->forward(Batch(segments), std::span(logits).first(size_t(count * vocab))));
                    continue;
                }
                // Like generation: tokens are chosen on the device of the logits, here by their probabilities.
                requests.assign(size_t(count), {.sequence = 0, .position = i});
                chosen.resize(size_t(count));
                NIBBLE_CHECK(model->choose(Batch(segments), requests, chosen));
            }
            return Ok{};
        });
    };
    NIBBLE_TRY(const Seconds alone, decode(1));
    NIBBLE_TRY(const Seconds together, decode(o.sequences));
    NIBBLE_TRY(const ModelParts parts,
               load_parts(model->config(), *checkpoint, options, threads, WeightSource::Mode::outline));
    const TokenCost cost = token_cost(parts);
    if (device.cuda) return report_device(o, *model, cost, {load, prefill, alone, together}, out);
    NIBBLE_TRY(const MachineLimits* limits, select_machine_limits(model->kernels()));
    const double reading = measure_reading(*limits, threads), adding = measure_operations(*limits, threads) / 2;
    const double bytes = cost.bytes;
    const auto steps = static_cast<double>(o.decode), n = static_cast<double>(o.prompt);
    const auto many = static_cast<double>(o.sequences);
    // logits of the last token only
    const double prefill_products = n * cost.block_multiply_adds + cost.head_multiply_adds;
    const double token_products = cost.block_multiply_adds + cost.head_multiply_adds;
    Json j;
    j["kernels"] = model->kernels();
    j["threads"] = threads.threads();
    j["load_seconds"] = load.wall;
    j["load_cpu_seconds"] = load.cpu;
    j["prefill_tokens_per_second"] = n / prefill.wall;
    j["prefill_tokens_per_cpu_second"] = n / prefill.cpu;
    j["decode_tokens_per_second"] = steps / alone.wall;
    j["decode_tokens_per_cpu_second"] = steps / alone.cpu;
    j["decode_together"] = o.sequences;
    j["together_tokens_per_second"] = steps * many / together.wall;
    j["decode_context"] = o.context;
    j["together_over_alone"] = many * alone.wall / together.wall;
    j["together_over_alone_cpu"] = many * alone.cpu / together.cpu;
    j["weight_bytes"] = static_cast<int64_t>(bytes);
    j["decode_read_fraction"] = bytes * steps / alone.wall / reading;
    j["prefill_multiply_add_fraction"] = prefill_products / prefill.wall / adding;
    j["together_multiply_add_fraction"] = token_products * many * steps / together.wall / adding;
    j["machine_read_bytes_per_second"] = reading;
    j["machine_multiply_adds_per_second"] = adding;
    if (o.json) {
        fmt::print(out, "{}\n", j.dump(2));
        return Ok{};
    }
    fmt::print(out, "{} on {} threads, {} kernels; decoding gives the bits of the prefill\n", o.subject.name(),
               threads.threads(), model->kernels());
    fmt::print(out, "  load              {:9.3f} s          {:9.3f} processor seconds\n", load.wall, load.cpu);
    fmt::print(out, "  prefill {:<9} {:9.0f} tokens/s   {:9.0f} per processor second\n", o.prompt, n / prefill.wall,
               n / prefill.cpu);
    fmt::print(out, "    {:.1f} G multiply-adds/s in products, {:.0f} % of the {:.1f} G/s of {}\n",
               prefill_products / prefill.wall / 1e9, 100 * prefill_products / prefill.wall / adding, adding / 1e9,
               limits->name);
    fmt::print(out, "  decode {:<10} {:9.1f} tokens/s   {:9.1f} per processor second\n",
               fmt::format("from {}", o.context), steps / alone.wall, steps / alone.cpu);
    fmt::print(out, "    reads {:.1f} MB per token: {:.1f} GB/s, {:.0f} % of the machine's {:.1f} GB/s\n", bytes / 1e6,
               bytes * steps / alone.wall / 1e9, 100 * bytes * steps / alone.wall / reading, reading / 1e9);
    fmt::print(
        out, "  decode {:<3} at once {:9.1f} tokens/s   {:9.2f} times a single sequence ({:.2f} in processor time)\n",
        o.sequences, steps * many / together.wall, many * alone.wall / together.wall, many * alone.cpu / together.cpu);
    return Ok{};
}

}  // namespace nibble
