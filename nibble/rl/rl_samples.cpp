#include "rl/rl_samples.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <functional>

namespace nibble {
namespace {

// Returns the text that each token adds. A character of several tokens belongs to its last token.
std::vector<std::string> token_texts(const std::vector<int32_t>& tokens, const std::optional<Tokenizer>& tokenizer) {
    std::vector<std::string> texts;
    if (!tokenizer) {
        for (const int32_t id : tokens) texts.push_back(fmt::format("{} ", id));
        return texts;
    }
    StreamDecoder decoder(*tokenizer);
    for (const int32_t id : tokens) texts.push_back(decoder.push(id));
    if (!texts.empty()) texts.back() += decoder.finish();
    return texts;
}

}  // namespace

std::vector<RlSample> choose_samples(const RolloutBatch& batch, size_t most, int64_t step) {
    std::vector<size_t> order(batch.rollouts.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return batch.rollouts[i].reward; });
    std::vector<RlSample> samples;
    const size_t count = std::min(most, order.size());
    for (size_t s = 0; s < count; ++s) {
        const size_t at = order[count == 1 ? 0 : s * (order.size() - 1) / (count - 1)];
        const Rollout& r = batch.rollouts[at];
        RlSample sample{.rollout = at,
                        .question = batch.prompts[r.prompt].question,
                        .expected = batch.prompts[r.prompt].expected,
                        .failure = r.failure,
                        .reward = r.reward,
                        .shaped = r.shaped,
                        .advantage = r.advantage,
                        .cut = r.cut,
                        .tokens = r.tokens,
                        .written = r.written,
                        .generated = r.generated};
        for (const int64_t begun : r.steps) sample.stale.push_back(begun != step);
        samples.push_back(std::move(sample));
    }
    return samples;
}

std::string samples_text(int64_t step, const std::vector<RlSample>& samples,
                         const std::optional<Tokenizer>& tokenizer) {
    Json list = Json::array();
    for (const RlSample& s : samples) {
        const std::vector<std::string> texts = token_texts(s.tokens, tokenizer);
        Json tokens = Json::array();
        for (size_t t = 0; t < s.tokens.size(); ++t) {
            Json token{{"text", texts[t]}, {"written", s.written[t] == 1}};
            if (s.written[t] && t < s.previous.size() && t < s.current.size()) {
                token["generated"] = s.generated[t];
                token["previous"] = s.previous[t];
                token["current"] = s.current[t];
                token["same"] = std::bit_cast<uint32_t>(s.generated[t]) == std::bit_cast<uint32_t>(s.previous[t]);
                token["stale"] = s.stale[t] == 1;
            }
            tokens.push_back(std::move(token));
        }
        Json sample{{"question", s.question}, {"expected", s.expected}};
        if (s.reward) sample["reward"] = *s.reward, sample["shaped_reward"] = s.shaped;
        if (s.reward) sample["advantage"] = s.advantage;
        if (!s.failure.empty()) sample["failure"] = s.failure;
        sample["cut"] = s.cut;
        sample["tokens"] = std::move(tokens);
        list.push_back(std::move(sample));
    }
    const Json json{{"step", step}, {"samples", std::move(list)}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace nibble
