#include "rl/rollout_message.h"

#include "base/json.h"

#include <nlohmann/json.hpp>

#include <bit>

namespace nibble {
namespace {

template <class T>
void put_tail(RankBytes& out, const std::vector<T>& all, size_t from) {
    put_numbers(out, std::span<const T>(all).subspan(from));
}

template <class T>
void take_tail(RankReader& in, std::vector<T>& all) {
    const auto tail = in.numbers<T>();
    all.insert(all.end(), tail.begin(), tail.end());
}

void put_text(RankBytes& out, std::string_view text) { put_numbers(out, std::span<const char>(text)); }

std::string take_text(RankReader& in) {
    const auto text = in.numbers<char>();
    return {text.begin(), text.end()};
}

}  // namespace

void put_rollout(RankBytes& out, const Rollout& r, size_t tokens) {
    put_tail(out, r.tokens, tokens);
    put_tail(out, r.generated, tokens);
    put_tail(out, r.written, tokens);
    put_tail(out, r.steps, tokens);
    put_numbers(out, r.observation);
    for (const int64_t number : {int64_t{r.whole}, r.turns, static_cast<int64_t>(r.turn_begin), int64_t{r.cut},
                                 int64_t{r.reward.has_value()}, std::bit_cast<int64_t>(r.reward.value_or(0))})
        put_number(out, number);
    put_text(out, r.text);
    put_text(out, r.answer);
    put_text(out, r.failure);
    put_text(out, r.state.dump());
}

Status take_rollout(RankReader& in, Rollout& r) {
    take_tail(in, r.tokens);
    take_tail(in, r.generated);
    take_tail(in, r.written);
    take_tail(in, r.steps);
    r.observation = in.numbers<int32_t>();
    r.whole = in.number();
    r.turns = in.number();
    r.turn_begin = static_cast<size_t>(in.number());
    r.cut = in.number();
    const bool judged = in.number();
    const auto reward = std::bit_cast<double>(in.number());
    r.reward = judged ? std::optional(reward) : std::nullopt;
    r.text = take_text(in);
    r.answer = take_text(in);
    r.failure = take_text(in);
    NIBBLE_TRY(r.state, parse_json(take_text(in)).within("an environment's state"));
    const size_t n = r.tokens.size();
    if (r.generated.size() != n || r.written.size() != n || r.steps.size() != n || r.turn_begin > n)
        return fail("a rank sent {} tokens and {} log-probabilities", n, r.generated.size());
    return Ok{};
}

}  // namespace nibble
