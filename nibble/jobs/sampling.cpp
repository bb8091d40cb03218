#include "jobs/sampling.h"

#include "base/fields.h"
#include "engine/sampler.h"
#include "jobs/words.h"

#include <charconv>

namespace nibble {
namespace {

constexpr int64_t usual_predicted = 3;  // draft tokens

template <class T>
T given_or(const std::optional<T>& flag, const Json& config, const char* key, T otherwise) {
    T value = otherwise;
    if (flag) return *flag;
    if (const auto found = config.find(key); found != config.end()) json_value(*found, value);
    return value;
}

}  // namespace

Result<std::vector<std::string>> configured_sampling(const Checkpoint& checkpoint) {
    NIBBLE_TRY(const Json config, generation_config(checkpoint));
    std::vector<std::string> out;
    for (const char* name : {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})
        if (const auto value = config.find(name); value != config.end() && value->is_number()) out.emplace_back(name);
    const auto sample = config.find("do_sample");
    if (sample != config.end() && *sample == false && !config.contains("temperature"))
        out.insert(out.begin(), "temperature");
    return out;
}

Result<Request> sampled_request(const SamplingSettings& settings, const LoadedModel& loaded, const ModelText& text,
                                const SamplingDefaults& otherwise) {
    NIBBLE_TRY(const Json config, generation_config(*loaded.checkpoint).within(loaded.path.string()));
    Request request;
    SamplingParams& s = request.sampling;
    const bool greedy = config.contains("do_sample") && config["do_sample"] == false;
    s.temperature = given_or(settings.temperature, config, "temperature", greedy ? 0.0f : otherwise.temperature);
    s.top_k = given_or(settings.top_k, config, "top_k", int64_t{0});
    s.top_p = given_or(settings.top_p, config, "top_p", otherwise.top_p);
    s.min_p = given_or(settings.min_p, config, "min_p", 0.0f);
    s.repetition_penalty = given_or(settings.repetition_penalty, config, "repetition_penalty", 1.0f);
    s.presence_penalty = settings.presence_penalty;
    s.frequency_penalty = settings.frequency_penalty;
    s.seed = settings.seed;
    NIBBLE_CHECK(check(s).as(ErrorKind::usage));
    request.max_tokens = settings.max_tokens;
    request.stop = settings.stop;
    NIBBLE_TRY(request.eos, end_tokens(loaded, text));
    return request;
}

Result<Speculation> parse_speculation(std::string_view word) {
    Speculation speculation;
    const size_t colon = word.find(':');
    const std::string_view who = word.substr(0, colon);
    if (who == "none" && colon == word.npos) return speculation;
    if (who != "lookup" && who != "mtp")
        return fail(ErrorKind::usage, "'{}': choose none, lookup[:N] or mtp[:N]", word);
    speculation.drafter = who == "mtp" ? DraftSource::prediction : DraftSource::lookup;
    speculation.drafts = who == "mtp" ? usual_predicted : usual_looked_up;
    if (colon == word.npos) return speculation;
    const std::string_view number = word.substr(colon + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), speculation.drafts);
    if (error != std::errc() || end != number.data() + number.size() || speculation.drafts < 1 ||
        speculation.drafts > most_drafts)
        return fail(ErrorKind::usage, "'{}': N is a whole number from 1 to {}", word, most_drafts);
    return speculation;
}

Result<EngineOptions> engine_options(const CacheSettings& settings, int64_t sequences) {
    NIBBLE_TRY(const Speculation speculation, parse_speculation(settings.speculate).within("--speculate"));
    EngineOptions options{.sequences = sequences,
                          .memory_share = settings.memory_share,
                          .prefix_cache = !settings.no_prefix_cache,
                          .drafts = speculation.drafts,
                          .drafter = speculation.drafter};
    if (settings.kv_memory.empty()) return options;
    NIBBLE_TRY(options.kv_memory, parse_size(settings.kv_memory).within("--kv-memory"));
    if (options.kv_memory > int64_t{1} << 50)
        return fail(ErrorKind::usage, "--kv-memory {}: is over a PiB", settings.kv_memory);
    return options;
}

}  // namespace nibble
