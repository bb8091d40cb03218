#include "server/parameters.h"

#include "base/sha256.h"
#include "engine/sampler.h"
#include "server/exchange.h"
#include "server/neutral_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <random>

namespace nibble {
namespace {

constexpr size_t most_stops = 64, most_bad_words = 1024, most_bad_word_bytes = 1024;

uint64_t random_seed() {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
}

Status known_ids(const BodyFields& fields, std::string_view name, std::span<const int32_t> ids, int64_t vocab) {
    for (const int32_t id : ids)
        if (id < 0 || id >= vocab) return fields.bad(name, fmt::format("token {} is not in [0, {})", id, vocab));
    return Ok{};
}

Status read_bias(BodyFields& fields, int64_t vocab, Request& request) {
    const Json* bias = fields.find("logit_bias");
    if (!bias) return Ok{};
    if (!bias->is_object()) return fields.bad("logit_bias", "is not an object of token ids and numbers");
    for (const auto& [key, value] : bias->items()) {
        int32_t id = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        float number = 0;
        if (error != std::errc() || end != key.data() + key.size() || !json_value(value, number))
            return fields.bad("logit_bias", fmt::format("'{}' is not a token id with a number", key));
        if (number < -100 || number > 100)
            return fields.bad("logit_bias", fmt::format("{} of token {} is not in [-100, 100]", number, id));
        NIBBLE_CHECK(known_ids(fields, "logit_bias", {&id, 1}, vocab));
        for (const auto& [other, has] : request.bias)
            if (other == id) return fields.bad("logit_bias", fmt::format("token {} occurs twice", id));
        request.bias.emplace_back(id, number);
        if (request.bias.size() > 1024) return fields.bad("logit_bias", "has more than 1024 tokens");
    }
    return Ok{};
}

// Reads a list of tokens, which becomes a mask. Error: more tokens than the vocabulary has.
Status read_token_list(BodyFields& fields, std::string_view name, int64_t vocab, std::vector<int32_t>& ids) {
    const Json* list = fields.find(name);
    if (list && list->is_array() && std::ssize(*list) > vocab)
        return fields.bad(name, fmt::format("has more than {} tokens, the size of the vocabulary", vocab));
    NIBBLE_CHECK(fields.read(name, ids));
    return known_ids(fields, name, ids, vocab);
}

Status read_bad_words(BodyFields& fields, const ServedModel& model, Request& request) {
    const Json* list = fields.find("bad_words");
    if (!list) return Ok{};
    if (list->is_array() && list->size() > most_bad_words)
        return fields.bad("bad_words", fmt::format("has more than {} words", most_bad_words));
    std::vector<std::string> words;
    NIBBLE_CHECK(fields.read("bad_words", words));
    for (const std::string& word : words)
        if (word.size() > most_bad_word_bytes)
            return fields.bad("bad_words", fmt::format("a word is longer than {} bytes", most_bad_word_bytes));
    auto encoded = encode_bad_words(model, words);
    if (!encoded.ok()) return fields.bad("bad_words", encoded.error().message());
    request.bad_words = *std::move(encoded);
    return Ok{};
}

}  // namespace

Result<std::vector<std::vector<int32_t>>> encode_bad_words(const ServedModel& model,
                                                           std::span<const std::string> words) {
    std::vector<std::vector<int32_t>> out;
    for (const std::string& word : words) {
        const size_t first = word.find_first_not_of(' ');
        if (word.empty()) return fail("a word is empty");
        // a word of spaces only is kept
        const std::string bare = first == std::string::npos ? word : word.substr(first);
        std::vector<int32_t> without;
        for (const bool space : {false, true}) {
            if (space && first == std::string::npos) continue;
            NIBBLE_TRY(const auto ids, model.tokenizer.encode((space ? " " : "") + bare, {.parse_special = false}));
            std::vector<int32_t> tokens(ids.begin(), ids.end());
            if (tokens.empty()) continue;
            if (!space)
                without = tokens;
            else if (!without.empty() && (tokens[0] == without[0] || tokens.size() != without.size()))
                continue;  // the space is a separate token, or changes how the word is split
            out.push_back(std::move(tokens));
        }
    }
    return out;
}

Status read_stop(BodyFields& fields, std::string_view name, Request& request) {
    const Json* stop = fields.find(name);
    if (!stop) return Ok{};
    std::vector<std::string> texts;
    if (stop->is_array() && stop->size() > most_stops)
        return fields.bad(name, fmt::format("has more than {} texts", most_stops));
    if (stop->is_string())
        texts.push_back(stop->get<std::string>());
    else if (!json_value(*stop, texts))
        return fields.bad(name, "is neither a text nor a list of texts");
    for (const std::string& text : texts) {
        if (text.empty()) return fields.bad(name, "a text is empty");
        if (text.size() > 4096) return fields.bad(name, "a text is longer than 4096 bytes");
    }
    request.stop = std::move(texts);
    return Ok{};
}

Status read_sampling(BodyFields& fields, const ServedModel& model, Request& request) {
    SamplingParams& s = request.sampling;
    NIBBLE_CHECK(fields.read_in("temperature", s.temperature, 0.0f, 100.0f));
    if (s.temperature < 0.01f) s.temperature = 0;  // as in vLLM: so close to greedy that it is treated as greedy
    NIBBLE_CHECK(fields.read_in("top_p", s.top_p, 0.0f, 1.0f));
    if (s.top_p == 0) return fields.bad("top_p", "0 is not in (0, 1]");
    NIBBLE_CHECK(fields.read_in("top_k", s.top_k, int64_t{-1}, int64_t{1} << 30));
    if (s.top_k == -1) s.top_k = 0;
    NIBBLE_CHECK(fields.read_in("min_p", s.min_p, 0.0f, 1.0f));
    NIBBLE_CHECK(fields.read_in("repetition_penalty", s.repetition_penalty, 1e-6f, 100.0f));
    NIBBLE_CHECK(fields.read_in("presence_penalty", s.presence_penalty, -2.0f, 2.0f));
    NIBBLE_CHECK(fields.read_in("frequency_penalty", s.frequency_penalty, -2.0f, 2.0f));
    if (const Json* seed = fields.find("seed")) {
        int64_t number = 0;
        if (!json_value(*seed, s.seed)) {
            if (!json_value(*seed, number)) return fields.bad("seed", "is not a 64-bit integer");
            s.seed = static_cast<uint64_t>(number);
        }
    } else {
        s.seed = random_seed();
    }
    NIBBLE_CHECK(fields.read_in("n", request.choices, 1, most_choices));
    int32_t best_of = request.choices;
    NIBBLE_CHECK(fields.read("best_of", best_of));
    if (best_of != request.choices) return fields.bad("best_of", "is supported only with the value of n");
    NIBBLE_CHECK(fields.must_be("use_beam_search", false));
    NIBBLE_CHECK(read_bias(fields, model.vocab(), request));
    NIBBLE_CHECK(read_stop(fields, "stop", request));
    bool ignore_eos = false;
    std::vector<int32_t> stop_tokens;
    NIBBLE_CHECK(fields.read("ignore_eos", ignore_eos));
    NIBBLE_CHECK(read_token_list(fields, "stop_token_ids", model.vocab(), stop_tokens));
    if (ignore_eos) request.eos.clear();
    request.eos.insert(request.eos.end(), stop_tokens.begin(), stop_tokens.end());
    NIBBLE_CHECK(fields.read_in("min_tokens", request.min_tokens, int64_t{0}, int64_t{1} << 40));
    NIBBLE_CHECK(fields.read("include_stop_str_in_output", request.keep_stop));
    NIBBLE_CHECK(fields.read("skip_special_tokens", request.skip_special));
    NIBBLE_CHECK(fields.must_be("spaces_between_special_tokens", true));
    NIBBLE_CHECK(read_token_list(fields, "allowed_token_ids", model.vocab(), request.allowed));
    if (fields.has("allowed_token_ids") && request.allowed.empty())
        return fields.bad("allowed_token_ids", "is an empty list, which allows no answer");
    NIBBLE_CHECK(read_bad_words(fields, model, request));
    NIBBLE_CHECK(fields.read_in("prompt_logprobs", request.prompt_logprobs, 0, 1000));
    NIBBLE_CHECK(fields.read("priority", request.priority));
    NIBBLE_CHECK(fields.read("cache_salt", request.cache_salt));
    if (fields.has("cache_salt") && request.cache_salt.empty()) return fields.bad("cache_salt", "is empty");
    // The cache stores the salt with every prompt, so long salts are replaced by a digest.
    if (request.cache_salt.size() > 64) request.cache_salt = "sha256:" + sha256_hex(request.cache_salt);
    double timeout = 0;
    return fields.read_in("timeout", timeout, 0.0, most_timeout);  // HttpExchange::deadline uses it
}

Status read_prediction(BodyFields& fields, const ServedModel& model, Request& request) {
    const Json* prediction = fields.find("prediction");
    if (!prediction) return Ok{};
    const auto of = [](const Json& from, const char* name) {
        return from.is_object() ? from.value(name, Json()) : Json();
    };
    const Json content = of(*prediction, "content");
    std::string text;
    if (content.is_string()) {
        text = content.get<std::string>();
    } else if (content.is_array()) {
        for (const Json& part : content) {
            if (!of(part, "text").is_string())
                return fields.bad("prediction", "content is neither a text nor a list of texts");
            text += part["text"].get_ref<const std::string&>();
        }
    } else {
        return fields.bad("prediction", "content is neither a text nor a list of texts");
    }
    if (of(*prediction, "type") != "content") return fields.bad("prediction", "type is not \"content\"");
    auto encoded = model.tokenizer.encode(text, {.add_special = false, .parse_special = false});
    if (!encoded.ok()) return fields.bad("prediction", encoded.error().message());
    // Text beyond the context can never be generated.
    encoded->resize(std::min(encoded->size(), static_cast<size_t>(model.context())));
    request.expected.assign(encoded->begin(), encoded->end());
    return Ok{};
}

Status read_stream(BodyFields& fields, StreamOptions& stream) {
    NIBBLE_CHECK(fields.read("stream", stream.stream));
    const Json* options = fields.find("stream_options");
    if (!options) return Ok{};
    if (!options->is_object()) return fields.bad("stream_options", "is not an object");
    if (!stream.stream) return fields.bad("stream_options", "requires stream = true");
    BodyFields inner(*options);
    const auto read = [&]() -> Status {
        NIBBLE_CHECK(inner.read("include_usage", stream.include_usage));
        NIBBLE_CHECK(inner.read("continuous_usage_stats", stream.continuous_usage));
        inner.ignore({"include_obfuscation"});
        return inner.all_read();
    };
    if (const Status done = read(); !done.ok()) return fields.bad("stream_options", done.error().message());
    return Ok{};
}

Status read_the_rest(BodyFields& fields) {
    NIBBLE_CHECK(read_neutral_fields(fields));
    fields.ignore({"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                   "prompt_cache_retention", "request_id", "cache_prompt", "id_slot"});
    return fields.all_read();
}

Status check_fits(BodyFields& fields, std::string_view name, const ServedModel& model,
                  std::span<const int32_t> prompt) {
    if (const Status valid = check_prompt(prompt, model.vocab(), int64_t{1} << 40); !valid.ok()) {
        fields.blame(name);
        return valid;
    }
    if (std::ssize(prompt) < model.context()) return Ok{};
    fields.blame(name, "context_length_exceeded");
    const int64_t tokens = std::ssize(prompt), most = most_prompt_tokens(model);
    return fail(
        "This model's maximum context length is {} tokens. However, your request has {} tokens in the prompt. Please "
        "reduce the length of the prompt.",
        model.context(), tokens > most ? fmt::format("more than {}", most) : std::to_string(tokens));
}

int64_t most_prompt_tokens(const ServedModel& model) { return 2 * model.context(); }

Status truncate_prompt(BodyFields& fields, const ServedModel& model, std::vector<int32_t>& prompt) {
    int64_t most = 0;
    NIBBLE_CHECK(fields.read_in("truncate_prompt_tokens", most, int64_t{-1}, int64_t{1} << 40));
    if (most == 0)
        return fields.has("truncate_prompt_tokens") ? Status(fields.bad("truncate_prompt_tokens", "is 0"))
                                                    : Status(Ok{});
    if (most < 0) most = model.context() - 1;
    if (std::ssize(prompt) > most) prompt.erase(prompt.begin(), prompt.end() - most);
    return Ok{};
}

}  // namespace nibble
