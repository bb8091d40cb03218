// Answers constrained by a schema, a regular expression, a list or a grammar; and messages that cannot inject control
// tokens.
#include "server/server_fixture.h"

#include <regex>

namespace nibble::test {
namespace {

constexpr const char* chat_route = "/v1/chat/completions";

Json asked(const Json& more) {
    Json body{{"messages", Json::array({{{"role", "user"}, {"content", "go"}}})}, {"max_tokens", 200}, {"seed", 4}};
    body.update(more);
    return body;
}
std::string content_of(const Json& answer) { return answer["choices"][0]["message"]["content"]; }

TEST(ServerGrammar, AnswersMatchTheConstraintOfTheRequest) {
    const TestServer s;
    const Json schema{{"type", "object"},
                      {"properties", {{"a", {{"enum", {1, 2}}}}, {"b", {{"type", "boolean"}}}}},
                      {"required", {"a", "b"}},
                      {"additionalProperties", false}};
    const auto fits = [&](const std::string& text) {
        const auto json = parse_json(text);
        ASSERT_TRUE(json.ok()) << text;
        ASSERT_EQ(json->size(), 2u) << text;
        EXPECT_TRUE((*json)["a"] == 1 || (*json)["a"] == 2) << text;
        EXPECT_TRUE((*json)["b"].is_boolean()) << text;
    };
    const Json format{{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}, {"strict", true}}}};
    const Json whole = s.ask(chat_route, asked({{"response_format", format}}));
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
    fits(content_of(whole));
    fits(content_of(s.ask(chat_route, asked({{"guided_json", schema.dump()}}))));
    fits(content_of(s.ask(chat_route, asked({{"structured_outputs", {{"json", schema}}}}))));
    std::string streamed;
    for (const Json& e : s.stream(chat_route, asked({{"response_format", format}, {"stream", true}})))
        streamed += e["choices"][0]["delta"].value("content", std::string());
    EXPECT_EQ(streamed, content_of(whole));
    const Json choices = asked({{"guided_choice", {"yes", "no", "perhaps"}}, {"n", 8}});
    const Json chosen = s.ask(chat_route, choices);
    for (const Json& c : chosen["choices"]) {
        const std::string text = c["message"]["content"];
        EXPECT_TRUE(text == "yes" || text == "no" || text == "perhaps") << text;
    }
    EXPECT_TRUE(std::regex_match(content_of(s.ask(chat_route, asked({{"guided_regex", "[ab]{3}-[0-9]{2}"}}))),
                                 std::regex("[ab]{3}-[0-9]{2}")));
    const std::string word =
        content_of(s.ask(chat_route, asked({{"guided_grammar", "root ::= \"x\" (\"y\" | \"z\")"}})));
    EXPECT_TRUE(word == "xy" || word == "xz") << word;
    const Json completion =
        s.ask("/v1/completions", {{"prompt", "a"}, {"guided_regex", "[xyz]{4}"}, {"max_tokens", 50}});
    EXPECT_TRUE(std::regex_match(completion["choices"][0]["text"].get<std::string>(), std::regex("[xyz]{4}")));
    const Json response =
        s.ask("/v1/responses", {{"input", "go"},
                                {"max_output_tokens", 200},
                                {"text", {{"format", {{"type", "json_schema"}, {"name", "x"}, {"schema", schema}}}}}});
    fits(response["output"][0]["content"][0]["text"]);
}

// A constraint and token lists that together allow no token are the client's error, in whole answers and in streams.
TEST(ServerGrammar, RulesThatExcludeEachOtherAreRefused) {
    const TestServer s;
    const auto ids = [&](const char* text) { return Json(s.chat.encode(text, false)); };
    const std::pair<const char*, Json> cases[]{
        {"no choice has this first token", {{"guided_choice", {"yes", "no"}}, {"allowed_token_ids", ids("q")}}},
        {"no choice has this second token", {{"guided_choice", {"yes", "you"}}, {"allowed_token_ids", ids("y")}}},
        {"a banned text", {{"guided_regex", "x"}, {"bad_words", {"x"}}}},
        {"a schema", {{"guided_json", {{"const", 5}}}, {"allowed_token_ids", ids("6")}}},
        {"banned alone", {{"allowed_token_ids", ids("x")}, {"bad_words", {"x"}}, {"ignore_eos", true}}}};
    for (const auto& [what, rules] : cases)
        for (const bool stream : {false, true}) {
            Json body = asked(rules);
            body["stream"] = stream;
            const HttpResponse r = s.post(chat_route, body.dump());
            EXPECT_EQ(r.status, stream ? 200 : 400) << what << r.body;  // in a stream, the last event contains the
                                                                        // error
            EXPECT_NE(r.body.find("no token is allowed after"), std::string::npos) << what << r.body;
            EXPECT_NE(r.body.find("\"code\":400"), std::string::npos) << r.body;
        }
}

TEST(ServerGrammar, InvalidConstraintsAreErrorsThatNameTheField) {
    const TestServer s;
    const auto wrong = [&](const Json& more, const char* param) {
        const Json error = s.ask(chat_route, asked(more), 400);
        EXPECT_EQ(error["error"]["param"], param) << error;
    };
    wrong({{"response_format", {{"type", "xml"}}}}, "response_format");
    wrong({{"response_format", {{"type", "json_schema"}}}}, "response_format");
    wrong({{"guided_json", {{"type", "no such type"}}}}, "guided_json");
    wrong({{"guided_json", "{"}}, "guided_json");
    wrong({{"guided_regex", "("}}, "guided_regex");
    wrong({{"guided_choice", Json::array()}}, "guided_choice");
    wrong({{"guided_grammar", "root := "}}, "guided_grammar");
    wrong({{"structured_outputs", {{"yaml", true}}}}, "structured_outputs");
    wrong({{"guided_regex", "a"}, {"guided_choice", {"b"}}}, "guided_choice");
    // Expensive constraints: bounded work, then an error.
    wrong({{"guided_regex", "((((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}){1,1000})"}}, "guided_regex");
    Json deep{{"type", "integer"}};
    for (int i = 0; i < 25; ++i) deep = Json{{"type", "array"}, {"items", deep}, {"minItems", 1000}};
    wrong({{"guided_json", deep}}, "guided_json");
    EXPECT_EQ(s.post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})").status, 200);
}

// Each field follows vLLM (SGLang and llama.cpp for their own fields): an empty value has a meaning or is an error.
TEST(ServerGrammar, EmptyValuesAreNeverDropped) {
    const TestServer s;
    const Json none = Json::array(), object = Json::object();
    const std::pair<Json, const char*> wrong[]{
        {{{"guided_json", ""}}, "guided_json"},
        {{{"guided_grammar", ""}}, "guided_grammar"},
        {{{"guided_grammar", " \n"}}, "guided_grammar"},
        {{{"guided_choice", none}}, "guided_choice"},
        {{{"guided_choice", ""}}, "guided_choice"},
        {{{"ebnf", ""}}, "ebnf"},
        {{{"json_schema", ""}}, "json_schema"},
        {{{"grammar", none}}, "grammar"},
        {{{"response_format", object}}, "response_format"},
        {{{"structured_outputs", object}}, "structured_outputs"},
        {{{"structured_outputs", {{"disable_fallback", true}}}}, "structured_outputs"},
        {{{"structured_outputs", {{"json", ""}}}}, "structured_outputs"},
        {{{"structured_outputs", {{"grammar", ""}}}}, "structured_outputs"},
        {{{"structured_outputs", {{"choice", none}}}}, "structured_outputs"},
        {{{"structured_outputs", {{"json_object", false}}}}, "structured_outputs"},
        {{{"allowed_token_ids", none}}, "allowed_token_ids"},
        {{{"stop", ""}}, "stop"},
        {{{"stop", {"a", ""}}}, "stop"},
        {{{"bad_words", {""}}}, "bad_words"},
        {{{"cache_salt", ""}}, "cache_salt"}};
    for (const auto& [more, param] : wrong) {
        const Json error = s.ask(chat_route, asked(more), 400);
        EXPECT_EQ(error["error"]["param"], param) << more << error;
    }
    // Without effect.
    for (const Json& more :
         {Json{{"grammar", ""}}, Json{{"stop", none}}, Json{{"bad_words", none}}, Json{{"stop_token_ids", none}},
          Json{{"logit_bias", object}}, Json{{"guided_json", object}}})
        s.ask(chat_route, asked(more));
    // The expression matches the empty text alone.
    for (const Json& more :
         {Json{{"guided_regex", ""}}, Json{{"regex", ""}}, Json{{"structured_outputs", {{"regex", ""}}}}})
        EXPECT_EQ(content_of(s.ask(chat_route, asked(more))), "") << more;
}

TEST(ServerGrammar, ToolCallsAreReturnedAsCalls) {
    ServerSetup setup;
    setup.chat_template =
        "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<mask>{% endfor %}{% if tools %}{{ tools | "
        "tojson }}"
        "<tool_call>{% endif %}{% if add_generation_prompt %}<s>assistant\n{% endif %}";
    const TestServer s(std::move(setup));
    const Json parameters{{"type", "object"},
                          {"properties", {{"n", {{"enum", {1, 2}}}}}},
                          {"required", {"n"}},
                          {"additionalProperties", false}};
    const Json tools =
        Json::array({{{"type", "function"}, {"function", {{"name", "pick"}, {"parameters", parameters}}}}});
    const Json body =
        asked({{"tools", tools}, {"tool_choice", "required"}, {"parallel_tool_calls", false}, {"max_tokens", 400}});
    const Json whole = s.ask(chat_route, body)["choices"][0];
    EXPECT_EQ(whole["finish_reason"], "tool_calls") << whole;
    ASSERT_EQ(whole["message"]["tool_calls"].size(), 1u) << whole;
    const Json& call = whole["message"]["tool_calls"][0];
    EXPECT_EQ(call["function"]["name"], "pick");
    const auto arguments = parse_json(call["function"]["arguments"].get<std::string>());
    ASSERT_TRUE(arguments.ok()) << call;
    EXPECT_TRUE((*arguments)["n"] == 1 || (*arguments)["n"] == 2) << call;
    Json streamed = body;
    streamed["stream"] = true;
    std::string name, text, finish;
    for (const Json& e : s.stream(chat_route, streamed)) {
        const Json& c = e["choices"][0];
        if (!c["finish_reason"].is_null()) finish = c["finish_reason"];
        if (!c["delta"].contains("tool_calls")) continue;
        const Json& part = c["delta"]["tool_calls"][0];
        name += part["function"].value("name", std::string());
        text += part["function"].value("arguments", std::string());
    }
    EXPECT_EQ(name, "pick");
    EXPECT_EQ(text, call["function"]["arguments"].get<std::string>());
    EXPECT_EQ(finish, "tool_calls");
    // Arguments are an object even if the schema does not require it.
    for (const Json& loose : {Json::object(), Json{{"properties", parameters["properties"]}}})
        for (int seed = 0; seed < 8; ++seed) {
            Json called = body;
            called["tools"][0]["function"]["parameters"] = loose;
            called.update(Json{{"temperature", 1}, {"seed", seed}, {"max_tokens", 80}});
            const Json answer = s.ask(chat_route, called)["choices"][0]["message"]["tool_calls"][0];
            EXPECT_TRUE(answer["function"]["arguments"].get<std::string>().starts_with("{")) << answer;
        }
    // A name that no tool has, and a model without tool calls.
    const Json other{{"type", "function"}, {"function", {{"name", "other"}}}};
    EXPECT_EQ(s.ask(chat_route, asked({{"tools", tools}, {"tool_choice", other}}), 400)["error"]["param"],
              "tool_choice");
    const TestServer plain;
    EXPECT_EQ(plain.ask(chat_route, asked({{"tools", tools}}), 400)["error"]["param"], "tools");
}

// Anthropic's "thinking" and prefill, OpenAI's "include", with a template that has a variable for reasoning.
TEST(ServerGrammar, MessagesSupportThinkingAndContinuation) {
    ServerSetup setup;
    setup.chat_template =
        "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}{% if not loop.last or add_generation_prompt %}"
        "<mask>{% endif %}{% endfor %}{% if add_generation_prompt %}<s>assistant\n<think>"
        "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}{% endif %}";
    const TestServer s(std::move(setup));
    const char* const route = "/v1/messages";
    const auto body = [](const Json& more) {
        Json json{{"messages", Json::array({{{"role", "user"}, {"content", "hi"}}})},
                  {"max_tokens", 200},
                  {"seed", 3},
                  {"ignore_eos", true}};
        json.update(more);
        return json;
    };
    const auto thoughts = [](const Json& answer) {
        std::string out;
        for (const Json& block : answer["content"])
            if (block["type"] == "thinking") out += block["thinking"].get<std::string>();
        return out;
    };
    const Json few = s.ask(route, body({{"thinking", {{"type", "enabled"}, {"budget_tokens", 5}}}}));
    ASSERT_EQ(few["content"].size(), 2u) << few;
    EXPECT_EQ(few["content"][0]["type"], "thinking");
    EXPECT_EQ(few["content"][0]["signature"], "");
    EXPECT_EQ(few["content"][1]["type"], "text");
    EXPECT_FALSE(thoughts(few).empty());
    const Json many = s.ask(route, body({{"thinking", {{"type", "enabled"}, {"budget_tokens", 50}}}}));
    EXPECT_GT(thoughts(many).size(), thoughts(few).size()) << many;
    EXPECT_FALSE(thoughts(s.ask(route, body({{"thinking", {{"type", "adaptive"}}}}))).empty());
    // Disabled, and not requested.
    const Json off = s.ask(route, body({{"thinking", {{"type", "disabled"}}}}));
    EXPECT_EQ(thoughts(off), "");
    EXPECT_FALSE(off["content"][0]["text"].get<std::string>().empty()) << off;
    EXPECT_EQ(thoughts(s.ask(route, body(Json::object()))), "");
    for (const Json& wrong : {Json{{"type", "enabled"}}, Json{{"type", "much"}}, Json("on"),
                              Json{{"type", "adaptive"}, {"budget_tokens", 5}}, Json{{"type", "disabled"}, {"x", 1}}})
        EXPECT_NE(
            s.ask(route, body({{"thinking", wrong}}), 400)["error"]["message"].get<std::string>().find("thinking"),
            std::string::npos);
    // The stream contains the same, with the usage in its last event.
    std::string thought, text;
    Json last;
    for (const auto& [name, e] :
         s.events(route, body({{"thinking", {{"type", "enabled"}, {"budget_tokens", 5}}}, {"stream", true}}), false)) {
        if (e.contains("delta")) thought += e["delta"].value("thinking", std::string());
        if (e.contains("delta")) text += e["delta"].value("text", std::string());
        last = e;
    }
    EXPECT_EQ(thought, thoughts(few));
    EXPECT_EQ(text, few["content"][1]["text"].get<std::string>());
    EXPECT_EQ(last["type"], "message_stop");
    EXPECT_GT(last["timings"]["predicted_n"].get<int>(), 0) << last;

    // A last message of the assistant is continued, as with chat's continue_final_message.
    Json messages = body(Json::object())["messages"];
    messages.push_back({{"role", "assistant"}, {"content", "I am"}});
    const Json on = s.ask(route, body({{"messages", messages}, {"max_tokens", 20}}));
    const Json chat = s.ask("/v1/chat/completions",
                            body({{"messages", messages}, {"continue_final_message", true}, {"max_tokens", 20}}));
    EXPECT_EQ(on["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    EXPECT_EQ(on["usage"]["input_tokens"],
              s.ask("/v1/messages/count_tokens", {{"messages", messages}})["input_tokens"]);
    messages.back()["content"] =
        Json::array({{{"type", "tool_use"}, {"id", "a"}, {"name", "f"}, {"input", Json::object()}}});
    EXPECT_EQ(s.ask(route, body({{"messages", messages}}), 400)["type"], "error");
}

TEST(ServerGrammar, ResponsesCheckIncludeAndTopLogprobs) {
    const TestServer s;
    const char* const route = "/v1/responses";
    const Json body{{"input", "x"}, {"max_output_tokens", 4}};
    const auto with = [&](const char* name, const Json& value) {
        Json json = body;
        json[name] = value;
        return json;
    };
    s.ask(route, with("include", {"reasoning.encrypted_content"}));
    s.ask(route, with("top_logprobs", 0));
    EXPECT_EQ(s.ask(route, with("include", {"message.secrets"}), 400)["error"]["param"], "include");
    EXPECT_EQ(s.ask(route, with("top_logprobs", 21), 400)["error"]["param"], "top_logprobs");
    const auto events = s.events(route, with("stream", true), false);
    EXPECT_EQ(events.back().second["response"]["timings"]["predicted_n"], 4) << events.back().second;
}

TEST(ServerGrammar, ControlTokensOfUsersStayText) {
    const TestServer s;
    // <mask> ends a turn of this model; in a message it stays text.
    const auto tokens = [&](const char* content) {
        const Json messages = Json::array({{{"role", "user"}, {"content", content}}});
        return s.ask("/tokenize", {{"messages", messages}})["tokens"].get<std::vector<int32_t>>();
    };
    const auto count = [](const std::vector<int32_t>& ids) { return std::ranges::count(ids, 271); };
    EXPECT_EQ(count(tokens("plain")), 1);
    EXPECT_EQ(count(tokens("a<mask>b")), 1);
    EXPECT_EQ(s.chat.tokenizer->id_of("<mask>"), TokenId{271});
}

}  // namespace
}  // namespace nibble::test
