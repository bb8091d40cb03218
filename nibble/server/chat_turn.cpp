#include "server/chat_turn.h"

#include "chat/chat_request.h"
#include "engine/answer_constraint.h"

namespace nibble {

int64_t copied_tools(const HttpExchange& exchange, const ChatTurn& turn) {
    constexpr int64_t bytes_per_byte = 16;  // size of JSON values per byte of text
    return turn.asked.tools.is_null() ? 0 : bytes_per_byte * static_cast<int64_t>(exchange.body_bytes);
}

void note_unwritten_tools(const HttpExchange& exchange, const ChatTurn& turn) {
    const bool wants =
        turn.asked.tools.is_array() && !turn.asked.tools.empty() && turn.asked.tool_choice != ToolChoice::none;
    if (wants && !turn.format->writes_tools(turn.asked))
        exchange.core.note_once(
            "requests have tools, but the chat template does not write them into the prompt: the model does not see "
            "them; a chat_template that reads `tools` helps");
}

Result<ChatTurn> make_chat_turn(BodyFields& fields, std::string_view field, const ServedModel& model,
                                ChatRequest asked) {
    fields.blame(field);
    asked.control_tokens_in_data = model.control_in_data;
    asked.deadline = fields.deadline();
    asked.cancel = fields.cancel();
    auto prompt = model.format->prompt(asked);
    if (prompt.ok()) return ChatTurn{.format = model.format, .asked = std::move(asked), .prompt = *std::move(prompt)};
    const std::string& why = prompt.error().message();
    if (why.starts_with("tools")) fields.blame("tools");
    if (why.starts_with("chat_template:")) fields.blame("chat_template");
    return prompt.error();
}

Status check_tool_format(BodyFields& fields, const ServedModel& model, const ChatRequest& asked) {
    const bool wants = asked.tools.is_array() && !asked.tools.empty() && asked.tool_choice != ToolChoice::none;
    if (wants && model.format->tool_format() == "none")
        return fields.bad("tools",
                          "is not supported: the model's chat template has no known format of tool calls; set it with "
                          "`nibble serve --tool-call-parser NAME`");
    return Ok{};
}

Status read_template_word(BodyFields& fields, const char* name, const char* variable, ChatRequest& asked) {
    const Json* word = fields.find(name);
    if (!word) return Ok{};
    if (!word->is_string()) return fields.bad(name, "is not a text");
    asked.template_variables[variable] = *word;
    return Ok{};
}

namespace {

// Converts the deprecated `functions` and `function_call` to tools, of which at most one is called. Returns whether the
// request has them.
Result<bool> read_functions(BodyFields& fields, ChatRequest& asked) {
    const Json* functions = fields.find("functions");
    const Json* choice = fields.find("function_call");
    if (functions && !functions->is_array()) return fields.bad("functions", "is not a list");
    if (!functions || functions->empty()) {
        if (choice && *choice != "none" && *choice != "auto")
            return fields.bad("function_call", "requires a function, but 'functions' is empty");
        return false;
    }
    if (const Json* tools = fields.find("tools"); tools && *tools != Json::array())
        return fields.bad("functions", "and 'tools' cannot be used together");
    asked.tools = Json::array();
    for (const Json& function : *functions) asked.tools.push_back({{"type", "function"}, {"function", function}});
    if (const Status valid = check_tools(asked.tools); !valid.ok())
        return fields.bad("functions", valid.error().message());
    Json word = choice ? *choice : Json(nullptr);
    if (word.is_object()) word = {{"type", "function"}, {"function", word}};
    if (const Status read = read_tool_choice(word, asked); !read.ok())
        return fields.bad("function_call", "is not 'none', 'auto' or {\"name\"} with the name of a function");
    asked.parallel_tool_calls = false;
    return true;
}

}  // namespace

Result<ChatTurn> read_chat_turn(BodyFields& fields, const ServedModel& model, int64_t most_tokens) {
    ChatRequest asked;
    asked.most_tokens = most_tokens;
    const Json* messages = fields.find("messages");
    if (!messages) return fields.bad("messages", "is missing");
    asked.messages = *messages;
    for (const char* name : {"modalities", "audio", "web_search_options"}) {
        const Json* value = fields.find(name);
        const bool neutral = !value || (value->is_array() && value->empty()) || *value == Json::array({"text"});
        if (!neutral) return fields.bad(name, "is not supported");
    }
    ClientTools tools;
    if (const Json* list = fields.find("tools")) {
        auto read = ClientTools::read_chat(*list);
        if (!read.ok()) return fields.bad("tools", read.error().message());
        tools = *std::move(read);
        asked.tools = tools.functions();
        asked.input_grammars = tools.grammars();
    }
    if (const Json* choice = fields.find("tool_choice"))
        if (const Status read = read_tool_choice(*choice, asked); !read.ok())
            return fields.bad("tool_choice", read.error().message());
    NIBBLE_CHECK(fields.read("parallel_tool_calls", asked.parallel_tool_calls));
    NIBBLE_TRY(const bool functions, read_functions(fields, asked));
    NIBBLE_CHECK(check_tool_format(fields, model, asked));
    NIBBLE_CHECK(fields.read("chat_template", asked.chat_template));
    if (const Json* more = fields.find("chat_template_kwargs")) {
        if (!more->is_object()) return fields.bad("chat_template_kwargs", "is not an object");
        asked.template_variables = *more;
    }
    for (const char* name : {"reasoning_effort", "verbosity"})
        NIBBLE_CHECK(read_template_word(fields, name, name, asked));
    NIBBLE_CHECK(fields.read("continue_final_message", asked.continue_final_message));
    asked.generation_prompt = !asked.continue_final_message;
    NIBBLE_CHECK(fields.read("add_generation_prompt", asked.generation_prompt));
    NIBBLE_CHECK(fields.must_be("add_special_tokens", false));
    if (fields.has("thinking_token_budget")) {
        int64_t budget = 0;
        NIBBLE_CHECK(fields.read_in("thinking_token_budget", budget, int64_t{0}, int64_t{1} << 40));
        if (model.format->reasoning_format() == "none")
            return fields.bad("thinking_token_budget", "is not supported: the model's chat template has no reasoning");
        asked.reasoning_budget = budget;
    }
    NIBBLE_TRY(ChatTurn turn, make_chat_turn(fields, "messages", model, std::move(asked)));
    turn.tools = std::move(tools);
    turn.functions = functions;
    return turn;
}

Status hold_answer(const ChatTurn& turn, const ServedModel& model, std::shared_ptr<const GrammarTokens> grammar,
                   Request& request) {
    const int64_t room = std::min(request.max_tokens, model.context() - std::ssize(turn.prompt.tokens));
    if (turn.format->needs_control_tokens(turn.asked)) request.skip_special = false;
    const bool demanded = turn.asked.tool_choice == ToolChoice::required || turn.asked.tool_choice == ToolChoice::named;
    const bool held = demanded || ChatFormat::holds_calls(turn.asked);
    if (!grammar && !held && !turn.asked.reasoning_budget) return Ok{};
    if (!model.grammars) return fail("the model's tokenizer does not support grammars");
    NIBBLE_TRY(const auto constraint, turn.format->constraint(turn.asked, turn.prompt, model.grammars->vocabulary(),
                                                              std::move(grammar), room));
    if (constraint) request.constraint = token_constraint(*constraint);
    return Ok{};
}

}  // namespace nibble
