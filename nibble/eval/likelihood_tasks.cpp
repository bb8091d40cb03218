#include "eval/likelihood_tasks.h"

#include "base/fields.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

double characters_of(std::string_view text) {
    return static_cast<double>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

size_t largest(std::span<const double> values) {
    return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
}

}  // namespace

Result<Continuation> encode_pair(const Subject& subject, std::span<const int32_t> prefix, std::string context,
                                 std::string continuation) {
    const size_t end = context.find_last_not_of(" \t\n\r") + 1;
    continuation.insert(0, context, end);
    context.resize(end);
    NIBBLE_TRY(const auto whole, subject.encode(context + continuation));
    NIBBLE_TRY(const auto before, subject.encode(context));
    Continuation pair{{prefix.begin(), prefix.end()}, static_cast<int64_t>(prefix.size() + before.size())};
    pair.tokens.insert(pair.tokens.end(), whole.begin(), whole.end());
    if (pair.from == 0) return fail("there is nothing before the continuation, and the tokenizer adds no BOS");
    if (pair.from >= std::ssize(pair.tokens)) return fail("the continuation has no tokens");
    return pair;
}

Status LambadaTask::prepare(const Subject& subject) {
    items_.clear();
    NIBBLE_TRY(const auto prefix, subject.prefix());
    for (size_t i = 0; i < file_.lines.size(); ++i) {
        const std::string where = fmt::format("{}: item {}", file_.name, i);
        NIBBLE_TRY(const std::string text, text_field(file_.lines[i], "text").within(where));
        const size_t space = text.rfind(' ');
        if (space == std::string::npos || space + 1 == text.size()) return fail("{}: has no last word", where);
        NIBBLE_TRY(Continuation c,
                   encode_pair(subject, prefix, text.substr(0, space), text.substr(space)).within(where));
        items_.push_back(std::move(c));
    }
    return Ok{};
}

Result<std::vector<Json>> LambadaTask::run(const Subject& subject, int64_t begin, int64_t end) {
    NIBBLE_TRY(const auto scores,
               score(*subject.model, std::span(items_).subspan(size_t(begin), size_t(end - begin))).within(file_.name));
    std::vector<Json> results;
    for (const ContinuationScore& s : scores) results.push_back({{"log_prob", s.log_prob}, {"greedy", s.greedy}});
    return results;
}

Result<TaskResult> LambadaTask::summarize(std::span<const Json> results) const {
    std::vector<double> right, nll;
    for (const Json& json : results) {
        double log_prob = 0;
        bool greedy = false;
        Fields fields(json);
        NIBBLE_CHECK(fields.need("log_prob", log_prob));
        NIBBLE_CHECK(fields.need("greedy", greedy));
        right.push_back(greedy);
        nll.push_back(-log_prob);
    }
    const Estimate loss = mean(nll);
    const double perplexity = std::exp(loss.value);
    TaskResult result{name(), std::ssize(results), {{"accuracy", share(right), Metric::Kind::share, true}}};
    result.metrics.push_back(
        {"perplexity of the word", {perplexity, perplexity * loss.error}, Metric::Kind::perplexity, true});
    result.details = settings();
    return result;
}

Status ChoiceTask::prepare(const Subject& subject) {
    items_.clear();
    NIBBLE_TRY(const auto prefix, subject.prefix());
    for (size_t i = 0; i < file_.lines.size(); ++i) {
        const Json& line = file_.lines[i];
        const std::string where = fmt::format("{}: item {}", file_.name, i);
        NIBBLE_TRY(const std::string context, text_field(line, "context").within(where));
        std::vector<std::string> choices;
        Item item;
        if (const auto list = line.find("choices"); list == line.end() || !json_value(*list, choices))
            return fail("{}: 'choices' is not a list of strings", where);
        if (const Status got = Fields(line).need("answer", item.answer); !got.ok() || item.answer >= choices.size())
            return fail("{}: 'answer' is not the index of one of {} choices", where, choices.size());
        for (const std::string& choice : choices) {
            NIBBLE_TRY(Continuation c, encode_pair(subject, prefix, context, " " + choice).within(where));
            item.choices.push_back(std::move(c));
            item.characters.push_back(std::max(1.0, characters_of(choice)));
        }
        items_.push_back(std::move(item));
    }
    return Ok{};
}

Result<std::vector<Json>> ChoiceTask::run(const Subject& subject, int64_t begin, int64_t end) {
    std::vector<Continuation> all;
    for (int64_t i = begin; i < end; ++i)
        for (const Continuation& c : items_[size_t(i)].choices) all.push_back(c);
    NIBBLE_TRY(const auto scores, score(*subject.model, all).within(file_.name));
    std::vector<Json> results;
    size_t at = 0;
    for (int64_t i = begin; i < end; ++i) {
        const Item& item = items_[size_t(i)];
        std::vector<double> plain, per_character;
        for (size_t c = 0; c < item.choices.size(); ++c, ++at) {
            plain.push_back(scores[at].log_prob);
            per_character.push_back(scores[at].log_prob / item.characters[c]);
        }
        results.push_back(
            {{"acc", largest(plain) == item.answer}, {"acc_norm", largest(per_character) == item.answer}});
    }
    return results;
}

Result<TaskResult> ChoiceTask::summarize(std::span<const Json> results) const {
    std::vector<double> plain, normalized;
    for (const Json& json : results) {
        bool acc = false, acc_norm = false;
        Fields fields(json);
        NIBBLE_CHECK(fields.need("acc", acc));
        NIBBLE_CHECK(fields.need("acc_norm", acc_norm));
        plain.push_back(acc);
        normalized.push_back(acc_norm);
    }
    TaskResult result{name(), std::ssize(results), {{"accuracy", share(plain), Metric::Kind::share, true}}};
    result.metrics.push_back({"accuracy, length-normalised", share(normalized), Metric::Kind::share, true});
    result.details = settings();
    return result;
}

}  // namespace nibble
