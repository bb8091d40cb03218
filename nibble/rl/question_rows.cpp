#include "rl/question_rows.h"

#include "base/fields.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "data/permutation.h"
#include "rl/rollout.h"

#include <xxhash.h>

namespace nibble {
namespace {

constexpr uint64_t order_of_epochs = 0x726F777300000000ull;  // stream of random numbers: "rows"

Result<std::string> question_text(const Json& row, const std::string& key) {
    NIBBLE_TRY(const Json* field, Fields(row).need(key));
    if (!field->is_string()) return fail("'{}': must be text", key);
    return field->get<std::string>();
}

// Returns text, or a number as written in the line. The math rule cannot read exponents, so for it such numbers are
// printed as JSON.
Result<std::string> answer_text(const Json& row, std::string_view line, const std::string& key, AnswerRule rule) {
    NIBBLE_TRY(const Json* field, Fields(row).need(key));
    if (field->is_string()) return field->get<std::string>();
    if (field->is_number_integer()) return field->dump();
    if (!field->is_number()) return fail("'{}': must be text or a number", key);
    NIBBLE_TRY(const Json texts, parse_json(line, {.decimals_as_text = true}));
    std::string text = texts.at(key).get<std::string>();
    return rule == AnswerRule::math && text.find_first_of("eE") != text.npos ? field->dump() : std::move(text);
}

Result<TaskQuestion> question_of(std::string_view line, const QuestionFileOptions& o) {
    NIBBLE_TRY(const Json row, parse_json(line));
    if (!row.is_object()) return fail("must be a JSON object");
    NIBBLE_TRY(std::string question, question_text(row, o.input_key));
    if (question.find_first_not_of(" \t\r\n") == question.npos) return fail("'{}': is empty", o.input_key);
    const std::string key = fmt::format("'{}'", o.output_key);
    if (o.rule == AnswerRule::code) {
        NIBBLE_TRY(const Json* tests, Fields(row).need(o.output_key));
        NIBBLE_TRY(std::string expected, code_tests(*tests).within(key));
        return TaskQuestion{.prompt = std::move(question), .answer = std::move(expected)};
    }
    NIBBLE_TRY(const std::string answer, answer_text(row, line, o.output_key, o.rule));
    NIBBLE_TRY(std::string expected, expected_answer(o.rule, answer).within(key));
    return TaskQuestion{.prompt = std::move(question), .answer = std::move(expected)};
}

}  // namespace

Result<QuestionFile> read_question_file(const QuestionFileOptions& options) {
    const std::string name = options.file.string();
    NIBBLE_TRY(const std::string content, read_text_file(options.file));
    const XXH128_hash_t hash = XXH3_128bits(content.data(), content.size());
    QuestionFile read{.file = options.file, .hash = fmt::format("{:016x}{:016x}", hash.high64, hash.low64)};
    std::string_view rest = without_byte_order_mark(content);
    for (int64_t number = 1; !rest.empty(); ++number) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        if (line.find_first_not_of(" \t\r") == line.npos) continue;
        std::string where = fmt::format("{}: line {}", name, number);
        if (!utf8_valid(line)) return fail("{}: is not UTF-8", where);
        NIBBLE_TRY(TaskQuestion row, question_of(line, options).within(where));
        row.where = std::move(where);
        read.rows.push_back(std::move(row));
    }
    if (read.rows.empty()) return fail("{}: has no rows", name);
    return read;
}

Result<TaskQuestion> QuestionRows::question(uint64_t number) const {
    if (number >= validation_prompts_from) {
        if (!validation_) return fail("there are no rows for validation");
        return validation_->rows[(number - validation_prompts_from) % validation_->rows.size()];
    }
    const uint64_t rows = train_.rows.size();
    const Permutation order(rows, {seed_, order_of_epochs + number / rows});
    return train_.rows[order.at(number % rows)];
}

Status QuestionRows::check_room(const std::function<Result<int64_t>(const TaskQuestion&)>& prompt_tokens,
                                int64_t length) const {
    std::string first;
    int64_t too_long = 0;
    const auto look = [&](const QuestionFile& file) -> Status {
        for (const TaskQuestion& row : file.rows) {
            NIBBLE_TRY(const int64_t tokens, prompt_tokens(row));
            if (tokens < length) continue;
            if (++too_long == 1) first = fmt::format("{}: a prompt of {} tokens", row.where, tokens);
        }
        return Ok{};
    };
    NIBBLE_CHECK(look(train_));
    if (validation_) NIBBLE_CHECK(look(*validation_));
    if (too_long == 0) return Ok{};
    return fail(
        "{} leaves no room for an answer in policy.max_total_sequence_length {}; it is the first of {} such "
        "rows, of {}",
        first, length, too_long, train_rows() + validation_rows());
}

}  // namespace nibble
