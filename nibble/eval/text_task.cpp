#include "eval/text_task.h"

#include "eval/log_probs.h"
#include "io/journal.h"

#include <cmath>

namespace nibble {

TextTask::TextTask(TextFile text, const TextTaskOptions& options, const Reference* reference)
    : text_(std::move(text)), options_(options), reference_(reference) {}

Json TextTask::settings() const {
    Json json{{"text", text_.name}, {"hash", text_.hash}, {"context", options_.context}, {"chunks", options_.chunks}};
    json["definition"] = options_.stride > 0 ? fmt::format("sliding window, stride {}", options_.stride)
                                             : std::string("llama-perplexity");
    if (reference_) json["reference"] = reference_->fingerprint;
    return json;
}

Status TextTask::prepare(const Subject& subject) {
    const ModelConfig& config = subject.model->config();
    if (options_.context > config.context)
        return fail("a context of {} tokens is longer than the model's, {}", options_.context, config.context);
    NIBBLE_TRY(const auto prefix, subject.prefix());
    NIBBLE_TRY(const auto tokens, subject.encode(text_.text).within(text_.name));
    bos_ = prefix.empty() ? -1 : prefix[0];
    tokens_ = prefix;
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    for (const int32_t id : tokens_)
        if (id < 0 || id >= config.vocab)
            return fail("the tokenizer makes token {}; the model's vocabulary has {}", id, config.vocab);
    const auto count = static_cast<int64_t>(tokens_.size());
    auto windows = options_.stride > 0 ? sliding_windows(count, options_.context, options_.stride)
                                       : chunked_windows(count, options_.context, bos_ >= 0);
    if (!windows.ok()) return std::move(windows).error().within(text_.name);
    windows_ = std::move(*windows);
    if (options_.chunks > 0 && std::ssize(windows_) > options_.chunks)
        windows_.resize(static_cast<size_t>(options_.chunks));
    vocab_ = config.vocab;
    loaded_ = nullptr;
    return reference_ && !reference_->cache.empty() ? open_cache(config.vocab) : Ok{};
}

Status TextTask::open_cache(int64_t vocab) {
    ReferenceShape shape{.vocab = vocab};
    for (const Window& w : windows_) shape.rows.push_back(w.end - w.counted);
    const std::string_view ids(reinterpret_cast<const char*>(tokens_.data()), tokens_.size() * sizeof(int32_t));
    shape.identity = {{"model", reference_->fingerprint},
                      {"text", text_.name},
                      {"tokens", hash_text(ids)},
                      {"windows", settings()["definition"].get<std::string>() +
                                      fmt::format(", {} of {} tokens", windows_.size(), options_.context)}};
    NIBBLE_TRY(cache_, ReferenceFile::open(reference_->cache, shape));
    return Ok{};
}

Result<const Subject*> TextTask::loaded_reference() {
    if (loaded_) return loaded_;
    NIBBLE_TRY(const Subject* reference, reference_->load());
    const int64_t vocab = reference->model->config().vocab;
    if (vocab != vocab_)
        return fail("the vocabulary has {} tokens, that of {} {}: they cannot be compared", vocab_, reference->name,
                    vocab);
    NIBBLE_TRY(std::vector<int32_t> tokens, reference->prefix());
    NIBBLE_TRY(const auto text, reference->encode(text_.text));
    tokens.insert(tokens.end(), text.begin(), text.end());
    if (tokens != tokens_) return fail("the tokenizer of {} encodes {} differently", reference->name, text_.name);
    return loaded_ = reference;
}

Status TextTask::reference_rows(int64_t window, std::span<const int32_t> tokens, int64_t from, std::span<float> out) {
    if (!cache_) {
        NIBBLE_TRY(const Subject* reference, loaded_reference());
        return log_prob_rows(*reference->model, tokens, from, out);
    }
    // The file is filled in order; a resumed run may need a window beyond its end.
    for (int64_t w = cache_->windows(); w <= window; ++w) {
        const Window& missing = windows_[static_cast<size_t>(w)];
        const auto input =
            tokens_of({missing.begin, missing.end - 1, missing.counted, missing.replace_first}, tokens_, bos_);
        NIBBLE_TRY(const Subject* reference, loaded_reference());
        std::vector<float> rows(static_cast<size_t>((missing.end - missing.counted) * vocab_));
        NIBBLE_CHECK(log_prob_rows(*reference->model, input, missing.counted - 1 - missing.begin, rows));
        NIBBLE_CHECK(cache_->append(rows));
    }
    return cache_->read(window, out);  // also right after writing, so that a second run gives the same numbers
}

Result<std::vector<Json>> TextTask::run(const Subject& subject, int64_t begin, int64_t end) {
    std::vector<Json> results;
    const auto vocab = static_cast<size_t>(subject.model->config().vocab);
    for (int64_t w = begin; w < end; ++w) {
        const Window& window = windows_[static_cast<size_t>(w)];
        const auto tokens = tokens_of(window, tokens_, bos_);
        const auto input = std::span(tokens).first(tokens.size() - 1);  // nothing follows the last token
        const auto from = static_cast<size_t>(window.counted - 1 - window.begin);
        const size_t count = input.size() - from;
        rows_.resize(count * vocab);
        NIBBLE_CHECK(log_prob_rows(*subject.model, input, int64_t(from), rows_));
        if (reference_) {
            reference_rows_.resize(rows_.size());
            NIBBLE_CHECK(reference_rows(w, input, int64_t(from), reference_rows_));
        }
        std::vector<TokenScores> scores(count);
        subject.model->workspace().pool->parallel_for(int64_t(count), [&](int64_t i) {
            const auto row = static_cast<size_t>(i);
            const auto target = static_cast<size_t>(tokens[from + row + 1]);
            const std::span<const float> mine(&rows_[row * vocab], vocab);
            if (reference_)
                scores[row].add(mine, {&reference_rows_[row * vocab], vocab}, target);
            else
                scores[row].add(mine, target);
        });
        TokenScores all;
        for (size_t i = 0; i < count; ++i) {
            if (!std::isfinite(scores[i].nll[0]) || (reference_ && !std::isfinite(scores[i].kl[0])))
                return fail("window {}, token {}: its log-probability is not finite", w, from + i + 1);
            all.append(scores[i]);
        }
        results.push_back(to_json(all));
    }
    return results;
}

Result<TaskResult> TextTask::summarize(std::span<const Json> results) const {
    TokenScores all;
    for (const Json& json : results) {
        NIBBLE_TRY(const TokenScores scores, token_scores_from_json(json));
        all.append(scores);
    }
    if (all.nll.empty()) return fail("no token was scored");
    const TextScore score = summarize_scores(all);
    using Kind = Metric::Kind;
    TaskResult result{name(), std::ssize(results), {{"perplexity", score.perplexity, Kind::perplexity, true}}};
    result.details = settings();
    result.details["tokens"] = score.tokens;
    if (!score.comparison) return result;
    const Comparison& c = *score.comparison;
    result.metrics.push_back({"KL mean", c.kl, Kind::plain});
    result.metrics.push_back(
        {"KL median", {c.at(0.5), (c.kl_median_interval.high - c.kl_median_interval.low) / (2 * 1.96)}, Kind::plain});
    result.metrics.push_back({"KL 99 %", {c.at(0.99), 0}, Kind::plain});
    result.metrics.push_back({"KL 99.9 %", {c.at(0.999), 0}, Kind::plain});
    result.metrics.push_back({"KL largest", {c.kl_max, 0}, Kind::plain});
    result.metrics.push_back({"same likeliest token", c.same_top, Kind::share});
    result.metrics.push_back({"perplexity - reference's", c.perplexity_delta, Kind::plain});
    result.metrics.push_back({"ln(perplexity / reference's)", c.log_ratio, Kind::plain});
    result.metrics.push_back({"RMS of p(token) - reference's", c.probability_rms, Kind::share});
    result.details["reference_perplexity"] = c.reference_perplexity.value;
    result.details["reference_perplexity_error"] = c.reference_perplexity.error;
    Json quantiles = Json::array();
    for (const Quantile& q : c.quantiles) quantiles.push_back({q.q, q.value});
    result.details["kl_quantiles"] = std::move(quantiles);
    return result;
}

TaskResult reference_perplexity(const TaskResult& comparison) {
    const Json& details = comparison.details;
    TaskResult result{comparison.task, comparison.items, {}};
    result.metrics.push_back(
        {"perplexity",
         {details.value("reference_perplexity", 0.0), details.value("reference_perplexity_error", 0.0)},
         Metric::Kind::perplexity,
         true});
    for (const char* name : {"text", "hash", "context", "chunks", "definition", "tokens"})
        if (details.contains(name)) result.details[name] = details[name];
    return result;
}

}  // namespace nibble
