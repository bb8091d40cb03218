#include "quant/calibrate.h"

#include "base/scratch_memory.h"
#include "model/model.h"
#include "quant/meter.h"

#include <algorithm>
#include <set>

namespace nibble {
namespace {

bool stores_kv(KvFormat kv) { return kv == KvFormat::fp8 || kv == KvFormat::nvfp4; }

bool watched(const PlanEntry& entry) {
    return entry.spec.format != Format::none && stores_input_scale(entry.activation) && !entry.constant_input_amax;
}

// "model.layers.1.mlp.experts.*.up_proj", the name all experts of a layer share; empty for what is no expert.
std::string expert_family(std::string_view module) {
    constexpr std::string_view mark = ".experts.";
    const size_t at = module.find(mark);
    if (at == module.npos) return {};
    const size_t dot = module.find('.', at + mark.size());
    if (dot == module.npos) return {};
    return std::string(module.substr(0, at + mark.size())) + "*" + std::string(module.substr(dot));
}

class RangeObserver : public Observer {
public:
    RangeObserver(Calibration& seen, bool all_experts) : seen_(seen), all_experts_(all_experts) {}

    Status input(const Linear& linear, const float* x, int64_t rows, int64_t cols, std::span<const int32_t>) override {
        if (const auto found = seen_.inputs.find(linear.name); found != seen_.inputs.end())
            found->second.add(x, rows, cols);
        return Ok{};
    }
    Status kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
              int64_t v_cols) override {
        if (const auto found = seen_.keys.find(prefix); found != seen_.keys.end()) found->second.add(k, rows, k_cols);
        if (const auto found = seen_.values.find(prefix); found != seen_.values.end())
            found->second.add(v, rows, v_cols);
        return Ok{};
    }
    Status output_gradient(const Linear&, const float*, int64_t, int64_t, std::span<const int32_t>) override {
        return Ok{};
    }
    bool every_expert() const override { return all_experts_; }

private:
    Calibration& seen_;
    bool all_experts_;
};

// Whole sequences of at most `rows` tokens together; a longer one is a batch of its own.
struct Piece {
    size_t begin, end;  // sequences
    int64_t row;        // of the first token
};

std::vector<Piece> pieces(std::span<const std::vector<int32_t>> sequences, int64_t rows) {
    std::vector<Piece> out;
    int64_t at = 0, open = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
        const auto n = static_cast<int64_t>(sequences[i].size());
        if (out.empty() || open + n > rows) out.push_back({i, i, at}), open = 0;
        out.back().end = i + 1;
        open += n;
        at += n;
    }
    return out;
}

Batch batch_of(std::span<const std::vector<int32_t>> sequences, const Piece& piece) {
    std::vector<Segment> segments;
    for (size_t i = piece.begin; i < piece.end; ++i) segments.push_back({.tokens = sequences[i], .logits_from = 0});
    return Batch(std::move(segments));
}

Status run_blocks(const Checkpoint& source, const ModelConfig& config, bool head,
                  std::span<const std::vector<int32_t>> sequences, const CalibrationOptions& options, ThreadPool& pool,
                  const JobHooks& hooks, Observer& observer, int64_t tokens) {
    const WeightOptions weights{.compute = options.compute, .quantize_activations = false, .kv = KvFormat::none};
    WeightSource ends(source, weights, pool, WeightSource::Mode::load);
    NIBBLE_TRY(auto work, Workspace::create(options.compute, {}, pool));
    const auto stream_bytes = static_cast<size_t>(tokens * config.hidden) * sizeof(float);
    NIBBLE_TRY(const auto memory,
               ScratchMemory::create(stream_bytes, static_cast<size_t>(options.memory), options.scratch));
    auto* const stream = reinterpret_cast<float*>(memory.data());
    const std::vector<Piece> batches = pieces(sequences, options.batch_tokens);

    NIBBLE_TRY(const auto embedding, Embedding::load(config, ends));
    int64_t row = 0;
    for (const std::vector<int32_t>& ids : sequences) {
        NIBBLE_CHECK(embedding.forward(ids, stream + row * config.hidden, work));
        row += static_cast<int64_t>(ids.size());
    }
    Meter meter(hooks, "calibrate", tokens * static_cast<int64_t>(config.blocks.size()));
    for (size_t b = 0; b < config.blocks.size(); ++b) {
        NIBBLE_TRY(const auto block, load_block(source, config, b, weights, pool));
        for (const Piece& piece : batches) {
            if (hooks.should_stop()) return fail("calibration stopped on request");
            const Batch batch = batch_of(sequences, piece);
            NIBBLE_CHECK(block.forward(batch, stream + piece.row * config.hidden, work, &observer));
            meter.add(batch.rows(), config.blocks[b].prefix);
        }
    }
    if (head) {
        NIBBLE_TRY(const auto end, Head::load(config, ends));
        constexpr int64_t rows = 256;
        std::vector<float> logits(static_cast<size_t>(rows * config.vocab));
        for (int64_t at = 0; at < tokens; at += rows)
            NIBBLE_CHECK(
                end.forward(stream + at * config.hidden, std::min(rows, tokens - at), logits.data(), work, &observer));
    }
    meter.finish();
    return Ok{};
}

// Experts that no token reached take the largest range of their peers, as Model Optimizer does.
void fill_experts(Calibration& seen, int64_t few) {
    std::map<std::string, std::vector<std::pair<const std::string*, Range*>>> families;
    for (auto& [module, range] : seen.inputs)
        if (std::string family = expert_family(module); !family.empty())
            families[std::move(family)].emplace_back(&module, &range);
    for (auto& [family, experts] : families) {
        const auto widest = std::ranges::max_element(
            experts, {}, [](const auto& expert) { return expert.second->rows() ? expert.second->amax() : -1.0f; });
        for (auto& [module, range] : experts) {
            const int64_t tokens = range->rows();
            if (tokens >= few) continue;
            seen.warnings.push_back(fmt::format("{} saw {} tokens{}", *module, tokens,
                                                tokens == 0 ? ", its range is that of its peers" : ""));
            if (tokens == 0) *range = *widest->second;
        }
    }
}

Status check_ranges(const std::map<std::string, Range, std::less<>>& ranges, std::string_view what) {
    for (const auto& [name, range] : ranges) {
        if (range.rows() == 0)
            return fail(
                "{}: calibration never ran it, so its {} are unknown; exclude it, or give its scale with "
                "--input-scales",
                name, what);
        if (!(range.amax() > 0)) return fail("{}: {} are zero over the whole calibration text", name, what);
    }
    return Ok{};
}

}  // namespace

bool needs_calibration(const Plan& plan) {
    return std::ranges::any_of(plan.entries, watched) || (stores_kv(plan.kv) && !plan.kv_layers.empty());
}

Result<Calibration> calibrate(const Checkpoint& source, const Plan& plan, std::string_view origin,
                              std::span<const std::vector<int32_t>> sequences, const CalibrationOptions& options,
                              ThreadPool& pool, const JobHooks& hooks) {
    const auto begin = std::chrono::steady_clock::now();
    NIBBLE_TRY(const ModelConfig config, model_config(source.config()));
    Calibration seen{.origin = std::string(origin)};
    for (const auto& sequence : sequences) seen.tokens += static_cast<int64_t>(sequence.size());
    bool head = false;
    for (const PlanEntry& entry : plan.entries)
        if (watched(entry)) {
            seen.inputs.emplace(entry.module, Range(options.range));
            head |= entry.tensor == config.head;
        }
    if (stores_kv(plan.kv))
        for (const std::string& layer : plan.kv_layers) {
            seen.keys.emplace(layer, Range(options.range));
            seen.values.emplace(layer, Range(options.range));
        }
    RangeObserver observer(seen, options.all_experts);
    NIBBLE_CHECK(
        run_blocks(source, config, head, sequences, options, pool, hooks, observer, seen.tokens).within(origin));
    fill_experts(seen, options.expert_tokens);
    NIBBLE_CHECK(check_ranges(seen.inputs, "inputs"));
    NIBBLE_CHECK(check_ranges(seen.keys, "keys"));
    NIBBLE_CHECK(check_ranges(seen.values, "values"));
    seen.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return seen;
}

ScaleTable scale_table(const Calibration& seen, const Plan& plan, Arithmetic arithmetic) {
    ScaleTable table{seen.origin, {}};
    for (const PlanEntry& entry : plan.entries)
        if (const auto found = seen.inputs.find(entry.module); found != seen.inputs.end())
            table.values[entry.module + ".input_scale"] =
                scale_of_amax(entry.activation, found->second.amax(), arithmetic);
    for (const auto& [module, range] : seen.keys)
        table.values[module + ".k_proj.k_scale"] = scale_of_amax(ActivationFormat::fp8, range.amax(), arithmetic);
    for (const auto& [module, range] : seen.values)
        table.values[module + ".v_proj.v_scale"] = scale_of_amax(ActivationFormat::fp8, range.amax(), arithmetic);
    return table;
}

}  // namespace nibble
