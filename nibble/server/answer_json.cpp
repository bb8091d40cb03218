#include "server/answer_json.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

std::string whole_characters(std::string_view bytes) {
    std::string out;
    for (size_t at = 0; at < bytes.size();) {
        const Utf8Step step = utf8_step(bytes, at);
        if (step.valid)
            out.append(bytes.substr(at, step.size));
        else
            utf8_append(out, 0xFFFD);
        at += step.size;
    }
    return out;
}

int64_t characters_in(std::string_view text) {
    return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::string bytes_of_token(const ServedModel& model, int32_t id) {
    const auto token = static_cast<TokenId>(id);
    std::string bytes = model.tokenizer.token_bytes(token);
    if (bytes.empty())
        if (const auto name = model.tokenizer.token(token)) bytes = std::string(*name);
    return bytes;
}

Json bytes_json(std::string_view bytes) {
    Json out = Json::array();
    for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
    return out;
}

double milliseconds(double seconds) { return std::round(seconds * 1e6) / 1e3; }
double rate(int64_t count, double seconds) { return seconds > 0 ? double(count) / seconds : 0; }

}  // namespace

Json usage_json(int64_t prompt, int64_t completion, int64_t cached) {
    return {{"prompt_tokens", prompt},
            {"total_tokens", prompt + completion},
            {"completion_tokens", completion},
            {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

Json timings_json(const RequestReport& r) {
    const int64_t computed = r.prompt_tokens - r.cached_tokens;
    const auto each = [](double seconds, int64_t n) { return n > 0 ? milliseconds(seconds / double(n)) : 0; };
    Json json{{"cache_n", r.cached_tokens},
              {"prompt_n", computed},
              {"prompt_ms", milliseconds(r.prompt_seconds)},
              {"prompt_per_token_ms", each(r.prompt_seconds, computed)},
              {"prompt_per_second", rate(computed, r.prompt_seconds)},
              {"predicted_n", r.generated_tokens},
              {"predicted_ms", milliseconds(r.generate_seconds)},
              {"predicted_per_token_ms", each(r.generate_seconds, r.generated_tokens)},
              {"predicted_per_second", rate(r.generated_tokens, r.generate_seconds)},
              {"queue_ms", milliseconds(r.queue_seconds)}};
    if (r.draft_tokens > 0) {
        json["draft_n"] = r.draft_tokens;
        json["draft_n_accepted"] = r.accepted_tokens;
    }
    return json;
}

std::string token_text(const ServedModel& model, int32_t id, bool as_ids) {
    if (as_ids) return fmt::format("token_id:{}", id);
    return whole_characters(bytes_of_token(model, id));
}

double json_logprob(float logprob) { return std::isfinite(logprob) ? double(logprob) : -9999.0; }

Json chat_logprob(const ServedModel& model, const GeneratedToken& token, bool as_ids) {
    const auto one = [&](int32_t id, float logprob) -> Json {
        return {{"token", token_text(model, id, as_ids)},
                {"logprob", json_logprob(logprob)},
                {"bytes", bytes_json(bytes_of_token(model, id))}};
    };
    Json json = one(token.id, token.logprob);
    Json top = Json::array();
    for (const TokenLogprob& t : token.top) top.push_back(one(t.id, t.logprob));
    json["top_logprobs"] = std::move(top);
    return json;
}

std::string prompt_logprobs_text(const ServedModel& model, std::span<const GeneratedToken> prompt, bool as_ids) {
    std::string out = "[";
    for (size_t i = 0; i < prompt.size(); ++i) {
        if (i == 0) {
            out += "null";
            continue;
        }
        const GeneratedToken& t = prompt[i];
        bool first = true;
        const auto add = [&](int32_t id, float logprob, size_t rank) {
            const Json entry{
                {"logprob", json_logprob(logprob)}, {"rank", rank}, {"decoded_token", token_text(model, id, as_ids)}};
            out += fmt::format("{}\"{}\":{}", first ? "" : ",", id, body_text(entry));
            first = false;
        };
        out += ",{";
        add(t.id, t.logprob, static_cast<size_t>(t.rank));
        for (size_t k = 0; k < t.top.size(); ++k)
            if (t.top[k].id != t.id) add(t.top[k].id, t.top[k].logprob, k + 1);
        out += '}';
    }
    return out + "]";
}

void ObjectText::begin(std::string_view name) {
    if (text_.size() > 1) text_ += ',';
    text_ += body_text(Json(name)) + ":";
}

void ObjectText::add_text(std::string_view name, std::string_view value) {
    begin(name);
    text_ += value;
}

void ObjectText::add(const Json& fields) {
    for (const auto& [name, value] : fields.items()) add_text(name, body_text(value));
}

HttpResponse json_text_response(std::string text) {
    return {.headers = {{"Content-Type", "application/json"}}, .body = std::move(text)};
}

void LegacyLogprobs::add(const ServedModel& model, const GeneratedToken& token, int32_t top, bool as_ids,
                         bool first_of_prompt) {
    const std::string text = token_text(model, token.id, as_ids);
    tokens_.push_back(text);
    offsets_.push_back(offset_);
    offset_ += characters_in(decoder_.push(static_cast<TokenId>(token.id)));
    if (first_of_prompt) {
        logprobs_.push_back(nullptr);
        top_.push_back(nullptr);
        return;
    }
    logprobs_.push_back(json_logprob(token.logprob));
    Json likely = Json::object();
    for (const TokenLogprob& t : token.top)
        if (std::string key = token_text(model, t.id, as_ids); std::ssize(likely) < top && !likely.contains(key))
            likely[std::move(key)] = json_logprob(t.logprob);
    // OpenAI's list includes the token itself.
    if (!likely.contains(text)) likely[text] = json_logprob(token.logprob);
    top_.push_back(top > 0 ? std::move(likely) : Json(nullptr));
}

void LegacyLogprobs::end_prompt() { offset_ += characters_in(decoder_.finish()); }

Json LegacyLogprobs::take() {
    const auto moved = [](Json& list) { return std::exchange(list, Json::array()); };
    return {{"text_offset", moved(offsets_)},
            {"token_logprobs", moved(logprobs_)},
            {"tokens", moved(tokens_)},
            {"top_logprobs", moved(top_)}};
}

std::string_view finish_reason(const HeardEvent& e) { return e.finish == FinishReason::length ? "length" : "stop"; }

Json stop_reason(const ServedModel& model, const HeardEvent& e) {
    if (!e.stop.empty()) return e.stop;
    if (e.stop_token < 0 || std::ranges::find(model.like.eos, e.stop_token) != model.like.eos.end()) return nullptr;
    return e.stop_token;
}

void SseOut::event(std::string_view name, const Json& json) {
    exchange_->answer->write(fmt::format("event: {}\ndata: {}\n\n", name, body_text(json)));
}

void SseOut::done(bool say_done) {
    if (say_done) exchange_->answer->write("data: [DONE]\n\n");
    exchange_->answer->end();
}

}  // namespace nibble
