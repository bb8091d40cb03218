#include "rl/rollout_json.h"

#include "base/fields.h"

#include <bit>

namespace nibble {
namespace {

// Returns runs of tokens with the same step and writer: [tokens, step, written].
Json parts_of(const Rollout& r) {
    Json parts = Json::array();
    for (size_t begin = 0, end = 0; begin < r.tokens.size(); begin = end) {
        while (end < r.tokens.size() && r.steps[end] == r.steps[begin] && r.written[end] == r.written[begin]) ++end;
        parts.push_back({end - begin, r.steps[begin], r.written[begin]});
    }
    return parts;
}

Status read_parts(const Json& json, Rollout& r) {
    NIBBLE_TRY(const Json* parts, Fields(json).array("parts"));
    for (const Json& part : *parts) {
        std::vector<int64_t> p;
        if (!json_value(part, p) || p.size() != 3 || p[0] < 1 || p[0] > std::ssize(r.tokens) || p[2] < 0 || p[2] > 1)
            return fail("'parts': expected [tokens, step, written]");
        r.steps.insert(r.steps.end(), static_cast<size_t>(p[0]), p[1]);
        r.written.insert(r.written.end(), static_cast<size_t>(p[0]), static_cast<uint8_t>(p[2]));
    }
    return Ok{};
}

}  // namespace

Json rollout_json(const Rollout& r) {
    std::vector<uint32_t> bits;
    for (const float x : r.generated) bits.push_back(std::bit_cast<uint32_t>(x));
    Json json{
        {"tokens", r.tokens},      {"generated", bits}, {"parts", parts_of(r)},
        {"whole", r.whole},        {"turns", r.turns},  {"turn_begin", r.turn_begin},
        {"text", r.text},          {"cut", r.cut},      {"observation", r.observation},
        {"state", r.state.dump()},  // stored as text, so that its nesting does not count toward the limit of the file
        {"failure", r.failure}};
    if (r.reward) json["reward"] = *r.reward;
    return json;
}

Result<Rollout> rollout_from_json(const Json& json) {
    Rollout r;
    std::vector<uint32_t> bits;
    std::string state;
    Fields fields(json);
    NIBBLE_CHECK(fields.need("tokens", r.tokens));
    NIBBLE_CHECK(fields.need("generated", bits));
    NIBBLE_CHECK(read_parts(json, r));
    NIBBLE_CHECK(fields.need("whole", r.whole));
    NIBBLE_CHECK(fields.need("turns", r.turns));
    NIBBLE_CHECK(fields.need("turn_begin", r.turn_begin));
    NIBBLE_CHECK(fields.need("text", r.text));
    NIBBLE_CHECK(fields.need("cut", r.cut));
    NIBBLE_CHECK(fields.need("observation", r.observation));
    NIBBLE_CHECK(fields.need("state", state));
    NIBBLE_CHECK(fields.need("failure", r.failure));
    if (json.contains("reward")) NIBBLE_CHECK(fields.need("reward", r.reward.emplace()));
    NIBBLE_TRY(r.state, parse_json(state).within("'state'"));
    for (const uint32_t b : bits) r.generated.push_back(std::bit_cast<float>(b));
    const size_t n = r.tokens.size();
    if (r.generated.size() != n || r.steps.size() != n || r.turn_begin > n)
        return fail("an unfinished rollout of {} tokens has {} log-probabilities and {} steps", n, r.generated.size(),
                    r.steps.size());
    return r;
}

}  // namespace nibble
