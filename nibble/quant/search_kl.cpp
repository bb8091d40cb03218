#include "base/fields.h"
#include "quant/kl_runner.h"
#include "quant/meter.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace nibble {

KlMeter::KlMeter() = default;
KlMeter::KlMeter(KlMeter&&) noexcept = default;
KlMeter& KlMeter::operator=(KlMeter&&) noexcept = default;
KlMeter::~KlMeter() = default;

Result<KlMeter> KlMeter::create(const Checkpoint& source, TokenSequences sequences, const ScoreOptions& options,
                                ThreadPool& pool) {
    KlMeter meter;
    meter.source_ = &source;
    meter.pool_ = &pool;
    for (const auto& sequence : sequences) meter.tokens_ += static_cast<int64_t>(sequence.size());
    if (meter.tokens_ == 0) return fail("no token to measure a KL divergence on");
    NIBBLE_TRY(meter.runner_, options.device.cuda ? open_device_kl_runner(source, sequences, options, pool)
                                                  : cpu_kl_runner(source, sequences, options.compute, pool));
    return meter;
}

Result<double> KlMeter::mean(Result<double> sum) const {
    NIBBLE_TRY(const double total, std::move(sum));
    if (!std::isfinite(total)) return fail("the KL divergence is {}", total);
    return std::max(0.0, total / double(tokens_));
}

Result<double> KlMeter::measure(const Checkpoint& changed) { return mean(runner_->measure(changed)); }

Result<std::vector<std::vector<double>>> KlMeter::measure_groups(const Trials& trials, Journal* journal,
                                                                 const JobHooks& hooks) {
    const SearchSpace& space = trials.space();
    const auto tensors = source_->tensors();
    NIBBLE_TRY(const ModelConfig config, model_config(*source_));
    const size_t blocks = config.blocks.size();
    std::unordered_map<std::string, size_t> block_of;  // block of each tensor; the head comes after the blocks
    WeightSource names(*source_, {.kv = KvFormat::none}, *pool_, WeightSource::Mode::outline);
    for (size_t b = 0; b < blocks; ++b) {
        NIBBLE_TRY(const Block block, Block::load(config, config.blocks[b], names));
        for (const Linear* linear : block.linears()) block_of[linear->name + ".weight"] = b;
    }
    block_of[config.head] = blocks;
    std::vector<std::vector<size_t>> groups_of_block(blocks + 1);
    std::vector<std::vector<double>> values;
    int64_t passes = 0;
    for (size_t g = 0; g < space.groups.size(); ++g) {
        const SearchGroup& group = space.groups[g];
        values.emplace_back(group.candidates.size(), 0.0);
        if (group.candidates.size() < 2) continue;
        const auto at = block_of.find(tensors[group.tensors[0]].name);
        if (at == block_of.end()) return fail("{}: no block of the model runs it; --keep it in one format", group.name);
        const auto kept = journal ? journal->finished(static_cast<int64_t>(g)) : std::nullopt;
        std::vector<double> known;
        if (kept && json_value(*kept, known) && known.size() == values[g].size()) {
            values[g] = std::move(known);
            continue;
        }
        groups_of_block[at->second].push_back(g);
        passes += static_cast<int64_t>(group.candidates.size() - 1);
    }
    ProgressMeter meter(hooks, "scores", passes * tokens_, "tokens");
    NIBBLE_CHECK(runner_->begin());
    for (size_t b = 0; b <= blocks; ++b) {
        for (const size_t g : groups_of_block[b]) {
            for (size_t i = 0; i < space.groups[g].candidates.size(); ++i) {
                const size_t format = space.groups[g].candidates[i];
                if (format == space.none()) continue;
                if (hooks.should_stop()) return fail(ErrorKind::cancelled, "search stopped on request");
                std::vector<size_t> choice(space.groups.size(), space.none());
                choice[g] = format;
                NIBBLE_TRY(const auto trial, trials.of(choice));
                NIBBLE_TRY(values[g][i], mean(runner_->measure_block(*trial, b)));
                meter.add(tokens_, space.groups[g].name);
            }
            if (journal) NIBBLE_CHECK(journal->append(static_cast<int64_t>(g), values[g]));
        }
        if (b < blocks) NIBBLE_CHECK(runner_->advance(b));
    }
    meter.finish();
    return values;
}

}  // namespace nibble
