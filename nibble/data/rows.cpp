#include "data/rows.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/ranges.h>

namespace nibble {
namespace {

constexpr std::string_view chat_keys[] = {"messages", "conversations", "conversation"};
constexpr std::string_view text_keys[] = {"text", "content"};
constexpr std::string_view question_keys[] = {"instruction", "question", "query", "prompt", "input"};
constexpr std::string_view answer_keys[] = {"output", "response", "answer", "completion"};
constexpr std::string_view context_keys[] = {"input", "context"};  // additional input of an instruction
constexpr std::string_view all_keys[] = {"messages",    "conversations", "conversation", "text",       "content",
                                         "instruction", "question",      "query",        "prompt",     "input",
                                         "output",      "response",      "answer",       "completion", "context",
                                         "system",      "history",       "tools",        "chosen",     "rejected"};

struct SpeakerRole {
    std::string_view theirs, ours;
};
constexpr SpeakerRole roles[] = {
    {"system", "system"},          {"developer", "developer"}, {"user", "user"},         {"human", "user"},
    {"assistant", "assistant"},    {"gpt", "assistant"},       {"chatgpt", "assistant"}, {"model", "assistant"},
    {"bot", "assistant"},          {"tool", "tool"},           {"observation", "tool"},  {"function_response", "tool"},
    {"function_call", "assistant"}};

// Returns the first of `keys` with a value in the row, or "".
template <size_t N>
std::string_view first_key(const Json& row, const std::string_view (&keys)[N]) {
    for (const std::string_view key : keys)
        if (const auto found = row.find(key); found != row.end() && !found->is_null()) return key;
    return {};
}

Result<std::string> text_at(const Json& row, std::string_view key) {
    const Json& value = *row.find(key);
    if (!value.is_string()) return fail("'{}' is not a string", key);
    return value.get<std::string>();
}

// Returns a list. Files with text columns store it as JSON in a string.
Result<Json> list_at(const Json& row, std::string_view key) {
    Json value = *row.find(key);
    if (value.is_string()) {
        NIBBLE_TRY(value, parse_json(value.get_ref<const std::string&>()).within(fmt::format("'{}'", key)));
    }
    if (!value.is_array()) return fail("'{}' is not a list", key);
    return value;
}

// Converts ShareGPT's {from, value} to {role, content}. function_call is a call in JSON.
Result<Json> message_of(const Json& turn, std::string_view key, size_t number) {
    const auto where = [&] { return fmt::format("'{}', message {}", key, number + 1); };
    if (!turn.is_object()) return fail("{}: is not an object", where());
    const char* role_key = turn.contains("role") ? "role" : "from";
    const char* content_key = turn.contains("from") && turn.contains("value") ? "value" : "content";
    const auto role = turn.find(role_key);
    if (role == turn.end() || !role->is_string()) return fail("{}: has no 'role' (or 'from')", where());
    if (turn.contains("role") && content_key == std::string_view("content")) {
        Json message = turn;
        for (const char* mark : {"weight", "train"}) message.erase(mark);
        return message;
    }
    const std::string name = role->get<std::string>();
    const auto known = std::ranges::find(roles, std::string_view(name), &SpeakerRole::theirs);
    if (known == std::end(roles)) return fail("{}: 'from' is '{}', which is not a known role", where(), name);
    const auto content = turn.find(content_key);
    if (content == turn.end()) return fail("{}: has no 'value'", where());
    if (name != "function_call") return Json{{"role", known->ours}, {"content", *content}};
    NIBBLE_TRY(const Json call, content->is_string()
                                    ? parse_json(content->get_ref<const std::string&>()).within(where())
                                    : Result<Json>(*content));
    return Json{{"role", "assistant"},
                {"content", ""},
                {"tool_calls", Json::array({Json{{"type", "function"}, {"function", call}}})}};
}

// Recognizes {"weight": 0} (OpenAI's fine-tuning format) and {"train": false}.
bool is_unlearned(const Json& turn) {
    const auto weight = turn.find("weight");
    const auto train = turn.find("train");
    return (weight != turn.end() && weight->is_number() && weight->get<double>() == 0) ||
           (train != turn.end() && train->is_boolean() && !train->get<bool>());
}

Status add_message(DataRow& out, Json message, bool unlearned = false) {
    if (!out.messages.is_array()) out.messages = Json::array();
    out.messages.push_back(std::move(message));
    out.unlearned.push_back(unlearned);
    return Ok{};
}

Status add_turns(DataRow& out, const Json& row, std::string_view key, bool unlearned = false) {
    NIBBLE_TRY(const Json turns, list_at(row, key));
    for (size_t i = 0; i < turns.size(); ++i) {
        NIBBLE_TRY(Json message, message_of(turns[i], key, i));
        NIBBLE_CHECK(add_message(out, std::move(message), unlearned || is_unlearned(turns[i])));
    }
    return Ok{};
}

Status add_system(DataRow& out, const Json& row) {
    const auto system = row.find("system");
    if (system == row.end() || system->is_null()) return Ok{};
    NIBBLE_TRY(const std::string text, text_at(row, "system"));
    if (!text.empty()) return add_message(out, {{"role", "system"}, {"content", text}});
    return Ok{};
}

Status add_tools(DataRow& out, const Json& row) {
    const auto tools = row.find("tools");
    if (tools == row.end() || tools->is_null() || *tools == "") return Ok{};
    NIBBLE_TRY(out.tools, list_at(row, "tools"));
    return Ok{};
}

Result<DataRow> chat_row(const Json& row, std::string_view key) {
    DataRow out;
    NIBBLE_CHECK(add_system(out, row));
    NIBBLE_CHECK(add_turns(out, row, key));
    NIBBLE_CHECK(add_tools(out, row));
    if (!out.is_chat()) return fail("'{}' is an empty list", key);
    return out;
}

Result<DataRow> completion_row(const Json& row) {
    DataRow out;
    const Json &prompt = *row.find("prompt"), &completion = *row.find("completion");
    if (prompt.is_string() && completion.is_string()) {
        out.prompt = prompt.get<std::string>();
        out.text = completion.get<std::string>();
        return out;
    }
    NIBBLE_CHECK(add_turns(out, row, "prompt", true));
    NIBBLE_CHECK(add_turns(out, row, "completion"));
    NIBBLE_CHECK(add_tools(out, row));
    return out;
}

Result<DataRow> question_row(const Json& row, std::string_view question_key, std::string_view answer_key) {
    DataRow out;
    NIBBLE_CHECK(add_system(out, row));
    if (const auto history = row.find("history"); history != row.end() && !history->is_null()) {
        NIBBLE_TRY(const Json turns, list_at(row, "history"));
        for (const Json& turn : turns) {
            if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string())
                return fail("'history' is not a list of [question, answer]");
            NIBBLE_CHECK(add_message(out, {{"role", "user"}, {"content", turn[0]}}));
            NIBBLE_CHECK(add_message(out, {{"role", "assistant"}, {"content", turn[1]}}));
        }
    }
    NIBBLE_TRY(std::string question, text_at(row, question_key));
    if (question_key == "instruction") {
        if (const std::string_view key = first_key(row, context_keys); !key.empty()) {
            NIBBLE_TRY(const std::string context, text_at(row, key));
            if (!context.empty()) question += "\n" + context;
        }
    }
    NIBBLE_TRY(std::string answer, text_at(row, answer_key));
    NIBBLE_CHECK(add_message(out, {{"role", "user"}, {"content", std::move(question)}}));
    NIBBLE_CHECK(add_message(out, {{"role", "assistant"}, {"content", std::move(answer)}}));
    NIBBLE_CHECK(add_tools(out, row));
    return out;
}

template <size_t N>
bool has_one(std::span<const std::string> keys, const std::string_view (&of)[N]) {
    return std::ranges::any_of(of, [&](std::string_view key) { return std::ranges::find(keys, key) != keys.end(); });
}

}  // namespace

std::span<const std::string_view> data_row_keys() { return all_keys; }

bool is_known_row(std::span<const std::string> keys) {
    return has_one(keys, chat_keys) || has_one(keys, text_keys) ||
           (has_one(keys, question_keys) && has_one(keys, answer_keys));
}

Result<DataRow> data_row(const Json& row) {
    if (!row.is_object()) return fail("expected an object with 'text' or 'messages'");
    const auto has = [&](std::string_view key) { return row.contains(key) && !row.find(key)->is_null(); };
    const std::string_view chat = first_key(row, chat_keys), text = first_key(row, text_keys);
    if (!chat.empty() && has("text")) return fail("has both 'text' and '{}'", chat);
    if (!chat.empty()) return chat_row(row, chat);
    if (has("prompt") && has("completion")) return completion_row(row);
    const std::string_view question = first_key(row, question_keys), answer = first_key(row, answer_keys);
    if (!question.empty() && !answer.empty()) return question_row(row, question, answer);
    if (!text.empty()) {
        DataRow out;
        NIBBLE_TRY(out.text, text_at(row, text));
        return out;
    }
    if (has("chosen") && has("rejected"))
        return fail("is a row of preferences ('chosen', 'rejected'), which nibble does not support");
    std::vector<std::string> names;
    for (const auto& [key, value] : row.items()) names.push_back(key);
    return fail(
        "has the keys {}; a row has 'text', 'messages', 'conversations', 'prompt' and 'completion', 'instruction' and "
        "'output', or 'question' and 'answer'",
        fmt::join(names, ", "));
}

}  // namespace nibble
