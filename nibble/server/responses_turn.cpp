// POST /v1/responses: converts its input to the form of chat completions.
#include "server/exchange.h"
#include "server/parameters.h"
#include "server/tool_turn.h"

#include <algorithm>
#include <functional>

namespace nibble {
namespace {

std::string text_under(const Json& item, const char* name) {
    const auto found = item.find(name);
    return found != item.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool has_text(const Json& item, const char* name) {
    const auto found = item.find(name);
    return found != item.end() && found->is_string();
}

// Messages made from items. Reasoning is added to the assistant's next message or call, where templates look for it.
struct Conversation {
    Json messages = Json::array();
    std::string reasoning;

    Json& add(Json message) {
        const bool assistant = message.value("role", Json()) == "assistant";
        if (const std::string before = std::exchange(reasoning, {}); assistant && !before.empty())
            message["reasoning_content"] = before;
        messages.push_back(std::move(message));
        return messages.back();
    }
};

// Adds a call. Successive calls, and the text before them, form one message.
Status add_call(const Json& item, const char* content, Conversation& to) {
    if (!has_text(item, "call_id") || !has_text(item, "name") || !has_text(item, content))
        return fail("a {} needs call_id, name and {}", item["type"].get<std::string>(), content);
    const bool begins =
        to.messages.empty() || to.messages.back().value("role", Json()) != "assistant" || !to.reasoning.empty();
    if (begins) to.add({{"role", "assistant"}, {"content", nullptr}});
    Json& message = to.messages.back();
    if (!message.contains("tool_calls")) message["tool_calls"] = Json::array();
    const bool custom = item["type"] == "custom_tool_call";
    message["tool_calls"].push_back(
        {{"id", item["call_id"]},
         {"type", "function"},
         {"function",
          {{"name", ClientTools::prompt_name(text_under(item, "namespace"), item["name"])},
           {"arguments", custom ? Json{{input_parameter, item[content]}} : item[content]}}}});
    return Ok{};
}

Status add_output(const Json& item, Conversation& to) {
    const std::string type = item["type"];
    if (!has_text(item, "call_id")) return fail("a {} needs a call_id", type);
    const Json output = item.value("output", Json());
    std::string text;
    if (output.is_string()) {
        text = output.get<std::string>();
    } else if (output.is_array()) {
        for (const Json& part : output) {
            if (!part.is_object() || !has_text(part, "text"))
                return fail("an output must be a text or a list of texts");
            if (!text.empty()) text += '\n';
            text += part["text"].get<std::string>();
        }
    } else {
        return fail("an output must be a text or a list of texts");
    }
    to.add({{"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", std::move(text)}});
    return Ok{};
}

// Adds reasoning. Summaries and encrypted reasoning are ignored, because they are not the model's text.
Status add_reasoning(const Json& item, Conversation& to) {
    const Json content = item.value("content", Json());
    if (!content.is_null() && !content.is_array()) return fail("the content of reasoning must be a list of parts");
    for (const Json& part : content) {
        if (!part.is_object() || !has_text(part, "text")) return fail("a part of reasoning needs a text");
        if (!to.reasoning.empty()) to.reasoning += '\n';
        to.reasoning += part["text"].get<std::string>();
    }
    return Ok{};
}

Status add_item(const Json& item, Conversation& to) {
    const Json& type = item["type"];
    if (type == "function_call") return add_call(item, "arguments", to);
    if (type == "custom_tool_call") return add_call(item, "input", to);
    if (type == "function_call_output" || type == "custom_tool_call_output") return add_output(item, to);
    if (type == "reasoning") return add_reasoning(item, to);
    if (type != "message")
        return fail("type {} is not supported", type.dump(-1, ' ', false, Json::error_handler_t::replace));
    Json message = Json::object();
    for (const char* name : {"role", "content"})
        if (item.contains(name)) message[name] = item[name];
    to.add(std::move(message));
    return Ok{};
}

// Returns the items of the request as they are stored: each with a type and an id, and references replaced by their
// targets.
Result<Json> items_of_input(BodyFields& fields, ResponseStore& store) {
    const Json* input = fields.find("input");
    if (!input) return fields.bad("input", "is missing");
    Json items = Json::array();
    if (input->is_string()) {
        items.push_back({{"id", "msg_" + random_id()},
                         {"type", "message"},
                         {"role", "user"},
                         {"content", Json::array({{{"type", "input_text"}, {"text", *input}}})}});
        return items;
    }
    if (!input->is_array()) return fields.bad("input", "is neither a text nor a list");
    for (size_t i = 0; i < input->size(); ++i) {
        Json item = (*input)[i];
        if (!item.is_object()) return fields.bad("input", fmt::format("[{}]: is not an object", i));
        if (!has_text(item, "type")) item["type"] = "message";
        if (item["type"] == "item_reference") {
            auto stored = store.item(text_under(item, "id"));
            if (!stored) return fields.bad("input", fmt::format("[{}]: no stored item has this id", i));
            item = *std::move(stored);
        }
        if (!has_text(item, "id")) item["id"] = (item["type"] == "message" ? "msg_" : "item_") + random_id();
        items.push_back(std::move(item));
    }
    return items;
}

// Joins instructions and the first developer messages into one message, because many templates accept only one system
// message at the beginning.
void join_system(Json& messages) {
    size_t count = 0;
    const auto is_system = [](const Json& message) {
        const Json role = message.value("role", Json());
        return role == "system" || role == "developer";
    };
    while (count < messages.size() && is_system(messages[count])) ++count;
    if (count < 2) return;
    Json parts = Json::array();
    for (size_t i = 0; i < count; ++i) {
        const Json content = messages[i].value("content", Json());
        if (content.is_array())
            parts.insert(parts.end(), content.begin(), content.end());
        else
            parts.push_back({{"type", "input_text"}, {"text", content}});
    }
    messages[0] = {{"role", "system"}, {"content", std::move(parts)}};
    messages.erase(messages.begin() + 1, messages.begin() + static_cast<std::ptrdiff_t>(count));
}

Result<Json> messages_of(BodyFields& fields, const Json& earlier, const Json& own) {
    Conversation conversation;
    std::string instructions;
    NIBBLE_CHECK(fields.read("instructions", instructions));
    if (!instructions.empty()) conversation.add({{"role", "system"}, {"content", instructions}});
    for (const Json& item : earlier)
        if (const Status added = add_item(item, conversation); !added.ok())
            return fields.bad("previous_response_id", added.error().message());
    for (size_t i = 0; i < own.size(); ++i)
        if (const Status added = add_item(own[i], conversation); !added.ok())
            return fields.bad("input", fmt::format("[{}]: {}", i, added.error().message()));
    join_system(conversation.messages);
    return std::move(conversation.messages);
}

// Returns tool_choice in the form of chat completions, with the prompt's names.
Result<Json> choice_of(const Json& given, const ClientTools& tools) {
    const auto nested = [](const std::string& name) {
        return Json{{"type", "function"}, {"function", {{"name", name}}}};
    };
    if (!given.is_object()) return given;
    const std::string type = text_under(given, "type");
    if (is_hosted_tool(type)) return fail("the server does not run tools of type {}", type);
    if (type == "function" || type == "custom") {
        const std::string name = tools.prompt_name(given);
        if (name.empty()) return fail("there is no tool '{}'", text_under(given, "name"));
        return nested(name);
    }
    if (type != "allowed_tools") return given;
    Json allowed = given;
    const Json list = given.value("tools", Json());
    if (list.is_array()) {
        allowed["tools"] = Json::array();
        for (const Json& tool : list) {
            if (tool.is_object() && is_hosted_tool(text_under(tool, "type"))) continue;
            for (const std::string& name : tools.prompt_names(tool)) {
                if (name.empty())
                    return fail("there is no tool '{}'", tool.is_object() ? text_under(tool, "name") : "");
                allowed["tools"].push_back(nested(name));
            }
        }
    }
    return Json{{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
}

// Reads a text from an object field into a template's variable. `others`: reads the other members.
Status read_word(BodyFields& fields, const char* field, const char* name, const char* variable, ChatRequest& asked,
                 const std::function<Status(BodyFields&)>& others) {
    const Json* object = fields.find(field);
    if (!object) return Ok{};
    if (!object->is_object()) return fields.bad(field, "is not an object");
    BodyFields inner(*object);
    const auto read = [&]() -> Status {
        NIBBLE_CHECK(read_template_word(inner, name, variable, asked));
        NIBBLE_CHECK(others(inner));
        return inner.all_read();
    };
    if (const Status done = read(); !done.ok()) return fields.bad(field, done.error().message());
    return Ok{};
}

Result<ClientTools> read_tools(BodyFields& fields, const ServedModel& model, ResponsesTurn& turn, ChatRequest& asked) {
    ClientTools known;
    if (const Json* tools = fields.find("tools")) {
        auto ours = ClientTools::read(*tools);
        if (!ours.ok()) return fields.bad("tools", ours.error().message());
        known = *std::move(ours);
        if (!known.functions().empty()) asked.tools = known.functions();
        asked.input_grammars = known.grammars();
    }
    if (const Json* given = fields.find("tool_choice")) {
        const auto choice = choice_of(*given, known);
        if (!choice.ok()) return fields.bad("tool_choice", choice.error().message());
        if (const Status read = read_tool_choice(*choice, asked); !read.ok())
            return fields.bad("tool_choice", read.error().message());
    }
    NIBBLE_CHECK(fields.read("parallel_tool_calls", asked.parallel_tool_calls));
    if (fields.has("max_tool_calls")) {
        int64_t most = 0;
        NIBBLE_CHECK(fields.read_in("max_tool_calls", most, int64_t{1}, int64_t{1} << 30));
        turn.most_calls = asked.most_calls = static_cast<size_t>(most);
    }
    NIBBLE_CHECK(check_tool_format(fields, model, asked));
    return known;
}

// truncation "auto": if the prompt leaves less than `room` tokens, the oldest messages are removed. Whole turns are
// removed first. The question of the last turn stays; its oldest calls are removed with their results.
Result<ChatTurn> fitting_turn(BodyFields& fields, const ServedModel& model, const ChatRequest& asked, int64_t room) {
    const auto made = [&](const ChatRequest& request) { return make_chat_turn(fields, "input", model, request); };
    NIBBLE_TRY(ChatTurn whole, made(asked));
    if (std::ssize(whole.prompt.tokens) < model.context()) return whole;
    const Json& messages = asked.messages;
    const auto role = [&](size_t i) { return text_under(messages[i], "role"); };
    size_t first = 0, question = messages.size();  // first: after the system message; question: the beginning of the
                                                   // last turn
    while (first < messages.size() && (role(first) == "system" || role(first) == "developer")) ++first;
    for (size_t i = messages.size(); i-- > first && question == messages.size();)
        if (role(i) == "user") question = i;
    struct Cut {
        size_t keep_from, question;
    };
    std::vector<Cut> cuts;  // each keeps fewer messages than the one before
    for (size_t i = first + 1; i < messages.size(); ++i)
        if (role(i) == "user" || (i > question && role(i) != "tool")) cuts.push_back({i, question});
    std::optional<ChatTurn> best;
    for (size_t low = 0, high = cuts.size(); low < high;) {
        const size_t middle = low + (high - low) / 2;
        const Cut cut = cuts[middle];
        ChatRequest request = asked;
        request.messages = Json::array();
        for (size_t i = 0; i < messages.size(); ++i)
            if (i < first || i >= cut.keep_from || (i == cut.question && cut.keep_from > cut.question))
                request.messages.push_back(messages[i]);
        NIBBLE_TRY(ChatTurn turn, made(request));
        if (std::ssize(turn.prompt.tokens) + room <= model.context()) {
            best = std::move(turn);
            high = middle;
        } else {
            if (!best && middle + 1 == cuts.size() && std::ssize(turn.prompt.tokens) < model.context())
                best = std::move(turn);  // leaves less room than requested
            low = middle + 1;
        }
    }
    return best ? *std::move(best) : std::move(whole);
}

}  // namespace

Result<ResponsesTurn> read_responses_turn(BodyFields& fields, const ServedModel& model, ResponseStore& store,
                                          size_t most_bytes) {
    ResponsesTurn turn;
    ChatRequest asked;
    Json earlier = Json::array();
    if (fields.has("previous_response_id")) {
        std::string id;
        NIBBLE_CHECK(fields.read("previous_response_id", id));
        turn.previous = store.find(id);
        if (!turn.previous) {
            fields.blame("previous_response_id", "previous_response_not_found");
            return fail(
                "Previous response with id '{}' not found: it was not stored, or was removed to make room for newer "
                "ones.",
                id.substr(0, 100));
        }
        auto items = turn.previous->conversation(most_bytes);
        if (!items.ok()) return fields.bad("previous_response_id", items.error().message());
        earlier = *std::move(items);
    }
    NIBBLE_TRY(const Json own, items_of_input(fields, store));
    NIBBLE_TRY(asked.messages, messages_of(fields, earlier, own));
    turn.input = body_text(own);
    NIBBLE_TRY(ClientTools tools, read_tools(fields, model, turn, asked));
    if (const Json* more = fields.find("chat_template_kwargs")) {
        if (!more->is_object()) return fields.bad("chat_template_kwargs", "is not an object");
        asked.template_variables = *more;
    }
    NIBBLE_CHECK(read_word(fields, "reasoning", "effort", "reasoning_effort", asked, [](BodyFields& more) -> Status {
        for (const char* summary : {"summary", "generate_summary"}) {  // summaries are not made
            std::string kind = "auto";
            NIBBLE_CHECK(more.read(summary, kind));
            if (kind != "auto" && kind != "concise" && kind != "detailed" && kind != "none")
                return more.bad(summary, "is not auto, concise or detailed");
        }
        more.ignore({"context"});
        return more.must_be("mode", "standard");
    }));
    NIBBLE_CHECK(read_word(fields, "text", "verbosity", "verbosity", asked, [](BodyFields& more) -> Status {
        more.ignore({"format"});  // read by read_response_format()
        return Ok{};
    }));
    asked.most_tokens = most_prompt_tokens(model);
    std::string truncation = "disabled";
    NIBBLE_CHECK(fields.read("truncation", truncation));
    if (truncation != "disabled" && truncation != "auto")
        return fields.bad("truncation", "is neither auto nor disabled");
    if (truncation == "disabled") {
        NIBBLE_TRY(turn.chat, make_chat_turn(fields, "input", model, std::move(asked)));
    } else {
        int64_t room = model.context() / 4;
        NIBBLE_CHECK(fields.read("max_output_tokens", room));
        room = std::clamp<int64_t>(room, 1, std::max<int64_t>(model.context() / 2, 1));
        NIBBLE_TRY(turn.chat, fitting_turn(fields, model, asked, room));
    }
    turn.chat.tools = std::move(tools);
    return turn;
}

}  // namespace nibble
