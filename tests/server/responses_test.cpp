// POST /v1/responses with the tools of agents, stored answers, truncation and log-probabilities.
#include "server/input_reader.h"
#include "server/pending_tokens.h"
#include "server/response_store.h"
#include "server_fixture.h"

#include <gmock/gmock.h>

namespace nibble::test {
namespace {

const std::string agent_template =
    "{% if tools %}<s>system\n{{ tools | tojson }}<tool_call>{\"name\": f}</tool_call><mask>{% endif %}"
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}{{ c['function'] | tojson }}{% endfor %}<mask>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}";

Json function(const char* name) {
    return {{"type", "function"},
            {"name", name},
            {"parameters",
             {{"type", "object"},
              {"properties", {{"unit", {{"enum", {"C", "F"}}}}}},
              {"required", {"unit"}},
              {"additionalProperties", false}}}};
}
const Json files{{"type", "namespace"},
                 {"name", "files"},
                 {"description", "of the project"},
                 {"tools", {function("read"), function("write")}}};
const Json patch{{"type", "custom"},
                 {"name", "patch"},
                 {"description", "edits"},
                 {"format",
                  {{"type", "grammar"},
                   {"syntax", "lark"},
                   {"definition", "start: \"<\" LETTER LF \">\"\n%import common.LETTER\n%import common.LF\n"}}}};
const Json word{{"type", "custom"},
                {"name", "word"},
                {"format", {{"type", "grammar"}, {"syntax", "regex"}, {"definition", "[a-c]{2}\""}}}};

struct ToolCase {
    const char* what;
    Json tools, choice;
    const char *type, *space, *name;
    std::string text;  // a regular expression for arguments or input
};
class ResponseTools : public testing::TestWithParam<ToolCase> {};

TEST_P(ResponseTools, AreReturnedWithTheFieldsOfTheClient) {
    const ToolCase& given = GetParam();
    const TestServer s({.chat_template = agent_template});
    Json body{{"input", "q"},
              {"tools", given.tools},
              {"tool_choice", given.choice},
              {"parallel_tool_calls", false},
              {"temperature", 1.0},
              {"seed", 5},
              {"max_output_tokens", 200}};
    const Json answer = s.ask("/v1/responses", body);
    ASSERT_EQ(answer["output"].size(), 1u) << answer;
    const Json item = answer["output"][0];
    EXPECT_EQ(item["type"], given.type) << item;
    EXPECT_EQ(item["name"], given.name);
    EXPECT_EQ(item.value("namespace", std::string()), given.space);
    EXPECT_EQ(item["status"], "completed");
    const bool custom = item["type"] == "custom_tool_call";
    const std::string text = item[custom ? "input" : "arguments"];
    EXPECT_THAT(text, testing::MatchesRegex(given.text));
    // The stream contains the same.
    body["stream"] = true;
    std::string joined, done;
    for (const auto& [name, event] : s.events("/v1/responses", body, false)) {
        if (name == (custom ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta"))
            joined += event["delta"];
        if (name == (custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done"))
            done = event[custom ? "input" : "arguments"];
        if (name == "response.output_item.added") {
            EXPECT_EQ(event["item"]["name"], given.name);
        }
    }
    EXPECT_EQ(joined, text);
    EXPECT_EQ(done, text);
    // The call and its result are sent back.
    Json result{{"type", custom ? "custom_tool_call_output" : "function_call_output"},
                {"call_id", item["call_id"]},
                {"output", "done"}};
    s.ask("/v1/responses", {{"input", {{{"role", "user"}, {"content", "q"}}, item, result}}, {"max_output_tokens", 2}});
    s.ask("/v1/responses",
          {{"previous_response_id", answer["id"]}, {"input", Json::array({result})}, {"max_output_tokens", 2}});
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ResponseTools,
    testing::Values(ToolCase{"function", Json::array({function("read")}), "required", "function_call", "", "read",
                             ".*unit.*"},
                    ToolCase{"of_a_namespace",
                             Json::array({files}),
                             {{"type", "function"}, {"name", "files__write"}},
                             "function_call",
                             "files",
                             "write",
                             ".*unit.*"},
                    ToolCase{"by_its_local_name",
                             Json::array({files}),
                             {{"type", "function"}, {"name", "read"}},
                             "function_call",
                             "files",
                             "read",
                             ".*unit.*"},
                    ToolCase{"lark",
                             Json::array({files, patch}),
                             {{"type", "custom"}, {"name", "patch"}},
                             "custom_tool_call",
                             "",
                             "patch",
                             "<[a-zA-Z]\n>"},
                    ToolCase{"regex", Json::array({word}), "required", "custom_tool_call", "", "word", "[a-c][a-c]\""},
                    ToolCase{"allowed",
                             Json::array({files, patch, word}),
                             {{"type", "allowed_tools"},
                              {"mode", "required"},
                              {"tools", {{{"type", "custom"}, {"name", "word"}}, {{"type", "web_search"}}}}},
                             "custom_tool_call",
                             "",
                             "word",
                             "[a-c][a-c]\""},
                    ToolCase{"next_to_hosted_ones",
                             {{{"type", "web_search"}, {"external_web_access", true}},
                              function("read"),
                              {{"type", "mcp"}, {"server_label", "x"}}},
                             "required",
                             "function_call",
                             "",
                             "read",
                             ".*unit.*"}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(Responses, HostedToolsAreIgnoredAndReportedOnce) {
    const TestServer s({.chat_template = agent_template});
    const auto tokens = [&](const Json& tools) {
        return s.ask("/v1/responses",
                     {{"input", "q"}, {"tools", tools}, {"max_output_tokens", 1}})["usage"]["input_tokens"];
    };
    const Json plain = tokens(Json::array());
    for (const char* type :
         {"web_search", "web_search_preview_2025_03_11", "file_search", "code_interpreter", "image_generation",
          "computer_use_preview", "mcp", "local_shell", "shell", "apply_patch", "tool_search"})
        EXPECT_EQ(tokens(Json::array({{{"type", type}}})), plain) << type;
    tokens(Json::array({{{"type", "web_search"}}}));
    const auto notes = [&] {
        const auto log = s.log();
        return std::ranges::count_if(log, [](const std::string& line) {
            return line.find("tools of type web_search are left out") != std::string::npos;
        });
    };
    EXPECT_TRUE(TestServer::wait_until([&] { return s.log().size() >= 24; }));
    EXPECT_EQ(notes(), 1);
}

TEST(Responses, FieldsAreSupportedNeutralOrErrors) {
    const TestServer s({.chat_template = agent_template});
    const Json fine[]{{{"background", false}},
                      {{"client_metadata", {{"session_id", "x"}}}},
                      {{"include", {"reasoning.encrypted_content", "web_search_call.action.sources"}}},
                      {{"metadata", {{"a", "b"}}}},
                      {{"prompt_cache_key", "k"},
                       {"prompt_cache_retention", "24h"},
                       {"prompt_cache_options", {{"mode", "implicit"}}}},
                      {{"reasoning", {{"effort", "low"}, {"summary", "detailed"}, {"context", "auto"}}}},
                      {{"safety_identifier", "u"}, {"service_tier", "flex"}, {"user", "u"}},
                      {{"store", false}, {"truncation", "disabled"}, {"top_logprobs", 0}},
                      {{"stream_options", {{"include_obfuscation", false}}}},
                      {{"context_management", Json::array()}},
                      {{"chat_template_kwargs", {{"enable_thinking", false}}}}};
    for (const Json& fields : fine) {
        Json body{{"input", "q"}, {"max_output_tokens", 1}};
        body.update(fields);
        s.ask("/v1/responses", body);
    }
    const std::pair<Json, const char*> wrong[]{
        {{{"background", true}}, "background"},
        {{{"conversation", "conv_1"}}, "conversation"},
        {{{"prompt", {{"id", "p"}}}}, "prompt"},
        {{{"moderation", {{"model", "m"}}}}, "moderation"},
        {{{"context_management", {{{"type", "compaction"}}}}}, "context_management"},
        {{{"include", {"secrets"}}}, "include"},
        {{{"max_tool_calls", 0}}, "max_tool_calls"},
        {{{"previous_response_id", "resp_other"}}, "previous_response_id"},
        {{{"top_logprobs", 21}}, "top_logprobs"},
        {{{"truncation", "middle"}}, "truncation"},
        {{{"tools", {{{"type", "magic"}}}}}, "tools"},
        {{{"tools", {{{"type", "custom"}, {"name", "c"}, {"format", {{"type", "xml"}}}}}}}, "tools"},
        {{{"tools", {{{"type", "namespace"}, {"name", "n"}}}}}, "tools"},
        {{{"tools", {files, function("files__read")}}}, "tools"},
        {{{"tools", {function("f")}}, {"tool_choice", {{"type", "web_search"}}}}, "tool_choice"},
        {{{"tools", {{{"type", "web_search"}}}}, {"tool_choice", "required"}}, "tool_choice"},
        {{{"tools", {function("f")}}, {"tool_choice", {{"type", "custom"}, {"name", "g"}}}}, "tool_choice"},
        {{{"input", {{{"type", "item_reference"}, {"id", "msg_other"}}}}}, "input"},
        {{{"input", {{{"type", "computer_call"}}}}}, "input"},
        {{{"input", {{{"type", "custom_tool_call"}, {"call_id", "1"}}}}}, "input"}};
    for (const auto& [fields, param] : wrong) {
        Json body{{"input", "q"}, {"max_output_tokens", 1}};
        body.update(fields);
        EXPECT_EQ(s.ask("/v1/responses", body, 400)["error"]["param"], param) << body;
    }
}

// Instructions and leading developer messages form one system message.
TEST(Responses, LeadingSystemMessagesAreJoined) {
    const TestServer s({.chat_template =
                            "{% for m in messages %}{% if not loop.first and m.role == 'system' %}"
                            "{{ raise_exception('late') }}{% endif %}{{ m.role }}: {{ m.content }};{% endfor %}"});
    const Json input = Json::array({{{"role", "developer"}, {"content", {{{"type", "input_text"}, {"text", "b"}}}}},
                                    {{"role", "user"}, {"content", "c"}}});
    const Json answer = s.ask("/v1/responses", {{"instructions", "a"}, {"input", input}, {"max_output_tokens", 1}});
    EXPECT_EQ(answer["usage"]["input_tokens"], s.chat.encode("system: a\nb;user: c;", false).size());
}

TEST(StoredResponses, CanBeContinued) {
    const TestServer s;
    const Json first =
        s.ask("/v1/responses",
              {{"input", "one"}, {"instructions", "be brief"}, {"max_output_tokens", 3}, {"temperature", 0}});
    const Json second =
        s.ask("/v1/responses",
              {{"input", "two"}, {"previous_response_id", first["id"]}, {"max_output_tokens", 3}, {"temperature", 0}});
    EXPECT_EQ(second["previous_response_id"], first["id"]);
    EXPECT_EQ(second["store"], true);
    const Json third{
        {"input", "three"}, {"previous_response_id", second["id"]}, {"max_output_tokens", 3}, {"temperature", 0}};
    // Instructions are not inherited by the next request.
    Json whole = Json::array({{{"role", "user"}, {"content", "one"}},
                              first["output"][0],
                              {{"role", "user"}, {"content", "two"}},
                              second["output"][0],
                              {{"role", "user"}, {"content", "three"}}});
    const Json expected =
        s.ask("/v1/responses", {{"input", whole}, {"max_output_tokens", 3}, {"temperature", 0}, {"store", false}});
    const Json gone_on = s.ask("/v1/responses", third);
    EXPECT_EQ(gone_on["usage"]["input_tokens"], expected["usage"]["input_tokens"]);
    EXPECT_EQ(gone_on["output"][0]["content"], expected["output"][0]["content"]);
    // Streamed answers are stored, too.
    Json streamed{{"input", "one"}, {"max_output_tokens", 3}, {"stream", true}};
    const auto events = s.events("/v1/responses", streamed, false);
    const std::string id = events.back().second["response"]["id"];
    EXPECT_EQ((*parse_json(s.get("/v1/responses/" + id).body))["output"], events.back().second["response"]["output"]);
    // A request may refer to an item of the output.
    const Json referred = s.ask("/v1/responses", {{"input",
                                                   {{{"role", "user"}, {"content", "one"}},
                                                    {{"type", "item_reference"}, {"id", first["output"][0]["id"]}},
                                                    {{"role", "user"}, {"content", "x"}}}},
                                                  {"max_output_tokens", 1}});
    EXPECT_GT(referred["usage"]["input_tokens"], 0);
}

TEST(StoredResponses, AreReadListedAndDeleted) {
    const TestServer s;
    const Json input = Json::array({{{"role", "user"}, {"content", "a"}},
                                    {{"role", "assistant"}, {"content", "b"}},
                                    {{"role", "user"}, {"content", "c"}}});
    const Json answer =
        s.ask("/v1/responses", {{"input", input}, {"max_output_tokens", 2}, {"metadata", {{"k", "v"}}}});
    const std::string path = "/v1/responses/" + answer["id"].get<std::string>();
    const Json read = *parse_json(s.get(path).body);
    EXPECT_EQ(read["output"], answer["output"]);
    EXPECT_EQ(read["metadata"], answer["metadata"]);
    const auto list = [&](std::vector<std::pair<std::string, std::string>> query) {
        std::string target = path + "/input_items";
        for (size_t i = 0; i < query.size(); ++i) target += (i ? "&" : "?") + query[i].first + "=" + query[i].second;
        return *parse_json(s.get(target).body);
    };
    const Json all = list({{"order", "asc"}});
    ASSERT_EQ(all["data"].size(), 3u);
    EXPECT_EQ(all["data"][0]["content"], "a");
    EXPECT_EQ(all["has_more"], false);
    EXPECT_EQ(list({})["data"][0]["content"], "c");
    const Json page = list({{"order", "asc"}, {"limit", "1"}, {"after", all["first_id"]}});
    EXPECT_EQ(page["data"][0], all["data"][1]);
    EXPECT_EQ(page["has_more"], true);
    EXPECT_EQ(s.get(path + "/input_items?limit=0").status, 400);
    EXPECT_EQ(s.send({.method = "DELETE", .path = path}).status, 200);
    EXPECT_EQ(s.get(path).status, 404);
    EXPECT_EQ(s.send({.method = "DELETE", .path = path}).status, 404);
    const Json secret = s.ask("/v1/responses", {{"input", "a"}, {"max_output_tokens", 1}, {"store", false}});
    EXPECT_EQ(secret["store"], false);
    EXPECT_EQ(s.get("/v1/responses/" + secret["id"].get<std::string>()).status, 404);
    s.ask("/v1/responses", {{"input", "a"}, {"previous_response_id", secret["id"]}}, 400);
}

TEST(StoredResponses, TheOldestAreEvictedForTheNewest) {
    ServerSetup setup;
    setup.options.stored_bytes = 12'000;
    const TestServer s(std::move(setup));
    std::vector<std::string> ids;
    for (int i = 0; i < 8; ++i) {
        Json body{
            {"input", std::string(200, 'a')}, {"max_output_tokens", 1}, {"metadata", {{"x", std::string(1500, 'x')}}}};
        if (i % 2) body["previous_response_id"] = ids.back();
        ids.push_back(s.ask("/v1/responses", body)["id"]);
    }
    const auto kept = [&](const std::string& id) { return s.get("/v1/responses/" + id).status == 200; };
    EXPECT_FALSE(kept(ids.front()));
    EXPECT_TRUE(kept(ids.back()));
    ServerSetup none;
    none.options.stored_bytes = 0;
    const TestServer forgetful(std::move(none));
    const Json answer = forgetful.ask("/v1/responses", {{"input", "a"}, {"max_output_tokens", 1}});
    EXPECT_EQ(answer["store"], false);
    EXPECT_EQ(forgetful.get("/v1/responses/" + answer["id"].get<std::string>()).status, 404);
}

TEST(ResponseStore, CountsTheMemoryOfChains) {
    ResponseStore store;
    StoredPtr last;
    for (int i = 0; i < 100'000; ++i) {  // a chain that would overflow the stack if links were released recursively
        store.keep(last, "[]", {{"id", std::to_string(i)}, {"output", Json::array()}}, int64_t{1} << 40);
        last = store.find(std::to_string(i));
    }
    EXPECT_GT(store.bytes(), 0);
    EXPECT_FALSE(last->conversation(1000).ok());
    last = nullptr;
    for (int i = 0; i < 99'999; ++i) store.forget(std::to_string(i));
    EXPECT_GT(store.bytes(), 0) << "the last one holds the others";
    store.forget("99999");
    EXPECT_EQ(store.bytes(), 0);
}

TEST(Responses, TruncationDropsTheOldestTurns) {
    const TestServer s({.engine = {.context = 256}});
    Json input = Json::array({{{"role", "system"}, {"content", "S"}}});
    for (int i = 0; i < 20; ++i) {
        input.push_back({{"role", "user"}, {"content", fmt::format("question {} {}", i, "abcdefghij")}});
        input.push_back({{"role", "assistant"}, {"content", "klmnopqrst"}});
    }
    input.push_back({{"role", "user"}, {"content", "the last"}});
    Json body{{"input", input}, {"max_output_tokens", 20}};
    EXPECT_EQ(s.ask("/v1/responses", body, 400)["error"]["code"], "context_length_exceeded");
    body["truncation"] = "auto";
    const Json answer = s.ask("/v1/responses", body);
    EXPECT_EQ(answer["truncation"], "auto");
    const int64_t tokens = answer["usage"]["input_tokens"];
    EXPECT_LE(tokens, 236);
    EXPECT_GT(tokens, 150);
    // A conversation that fits is unchanged, and one that can never fit is an error.
    const Json few{{"input", "a"}, {"max_output_tokens", 1}};
    Json automatic = few;
    automatic["truncation"] = "auto";
    EXPECT_EQ(s.ask("/v1/responses", automatic)["usage"], s.ask("/v1/responses", few)["usage"]);
    body["input"] = std::string(5000, 'x') + "yz";
    EXPECT_EQ(s.ask("/v1/responses", body, 400)["error"]["code"], "context_length_exceeded");
}

TEST(Responses, TruncationKeepsTheQuestionOfALongTurn) {
    const TestServer s({.engine = {.context = 512}, .chat_template = agent_template});
    Json input = Json::array({{{"role", "user"}, {"content", "task"}}});
    for (int i = 0; i < 12; ++i) {
        input.push_back({{"type", "function_call"},
                         {"call_id", std::to_string(i)},
                         {"name", "f"},
                         {"arguments", "{\"a\": \"bcdefghijkl\"}"}});
        input.push_back(
            {{"type", "function_call_output"}, {"call_id", std::to_string(i)}, {"output", "mnopqrstuvwxyz"}});
    }
    const Json answer = s.ask("/v1/responses", {{"input", input}, {"truncation", "auto"}, {"max_output_tokens", 16}});
    EXPECT_LE(answer["usage"]["input_tokens"], 496);
}

TEST(Responses, LogprobsEqualThoseOfChat) {
    const TestServer s;
    const Json ask{{"max_output_tokens", 12},
                   {"temperature", 0},
                   {"include", {"message.output_text.logprobs"}},
                   {"top_logprobs", 2}};
    Json body = ask;
    body["input"] = "hello";
    const Json part = s.ask("/v1/responses", body)["output"][0]["content"][0];
    const Json chat = s.ask("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
                                                     {"max_tokens", 12},
                                                     {"temperature", 0},
                                                     {"logprobs", true},
                                                     {"top_logprobs", 2}});
    const Json expected = chat["choices"][0]["logprobs"]["content"];
    ASSERT_GT(part["logprobs"].size(), 0u);
    for (size_t i = 0; i < part["logprobs"].size(); ++i) EXPECT_EQ(part["logprobs"][i], expected[i]) << i;
    EXPECT_EQ(part["logprobs"][0]["top_logprobs"].size(), 2u);
    body["stream"] = true;
    Json streamed = Json::array();
    for (const auto& [name, event] : s.events("/v1/responses", body, false))
        if (name == "response.output_text.delta")
            for (const Json& one : event["logprobs"]) streamed.push_back(one);
    EXPECT_EQ(streamed, part["logprobs"]);
    body = {{"input", "hello"}, {"max_output_tokens", 3}};
    EXPECT_EQ(s.ask("/v1/responses", body)["output"][0]["content"][0]["logprobs"], Json::array());
}

// Reasoning is an item of the output. Sent back, it belongs to the next message or call.
TEST(Responses, ReasoningIsAnItem) {
    const TestServer s({.chat_template = "{% for m in messages %}<s>{{ m.role }}{% if m.reasoning_content is defined %}"
                                         "[{{ m.reasoning_content }}]{% endif %}:{{ m.content }}"
                                         "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}<mask>"
                                         "{% endfor %}{% if add_generation_prompt %}<s>assistant\n<think>{% endif %}"});
    const Json format{{"type", "json_schema"}, {"name", "x"}, {"schema", {{"const", 5}}}};
    Json body{{"input", "q"}, {"max_output_tokens", 60}, {"seed", 4}, {"text", {{"format", format}}}};
    const Json answer = s.ask("/v1/responses", body);
    ASSERT_EQ(answer["output"].size(), 2u) << answer;
    const Json reasoning = answer["output"][0], message = answer["output"][1];
    EXPECT_EQ(reasoning["type"], "reasoning");
    EXPECT_EQ(reasoning["status"], "completed");
    EXPECT_EQ(reasoning["summary"], Json::array());
    ASSERT_EQ(reasoning["content"].size(), 1u);
    EXPECT_EQ(reasoning["content"][0]["type"], "reasoning_text");
    EXPECT_EQ(message["content"][0]["text"], "5");
    EXPECT_NE(reasoning["id"], message["id"]);
    const int64_t thought = answer["usage"]["output_tokens_details"]["reasoning_tokens"];
    EXPECT_GT(thought, 20);
    EXPECT_LT(thought, answer["usage"]["output_tokens"]);

    Json streamed = body;
    streamed["stream"] = true;
    std::string text;
    std::vector<std::string> names;
    Json whole;
    for (const auto& [name, event] : s.events("/v1/responses", streamed, false)) {
        if (name == "response.reasoning_text.delta") text += event["delta"];
        if (names.empty() || names.back() != name) names.push_back(name);
        if (name == "response.reasoning_text.done") {
            EXPECT_EQ(event["text"].get<std::string>(), text);
        }
        if (name == "response.completed") whole = event["response"]["output"];
    }
    EXPECT_EQ(text, reasoning["content"][0]["text"].get<std::string>());
    EXPECT_EQ(whole[0]["content"], reasoning["content"]);
    EXPECT_THAT(names, testing::ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                                            "response.content_part.added", "response.reasoning_text.delta",
                                            "response.reasoning_text.done", "response.content_part.done",
                                            "response.output_item.done", "response.output_item.added",
                                            "response.content_part.added", "response.output_text.delta",
                                            "response.output_text.done", "response.content_part.done",
                                            "response.output_item.done", "response.completed"));

    // Reasoning that the token limit ends is the only item.
    const Json cut = s.ask("/v1/responses", {{"input", "q"}, {"max_output_tokens", 4}, {"seed", 4}});
    ASSERT_EQ(cut["output"].size(), 1u) << cut;
    EXPECT_EQ(cut["output"][0]["type"], "reasoning");
    EXPECT_EQ(cut["output"][0]["status"], "incomplete");
    EXPECT_EQ(cut["usage"]["output_tokens_details"]["reasoning_tokens"], 4);

    const auto tokens = [&](const Json& input) {
        return s.ask("/v1/responses", {{"input", input}, {"max_output_tokens", 1}})["usage"]["input_tokens"];
    };
    const auto written = [&](const std::string& prompt) {
        return s.chat.encode(prompt + "<s>assistant\n<think>", false).size();
    };
    const Json thinks{
        {"type", "reasoning"}, {"summary", Json::array()}, {"content", {{{"type", "reasoning_text"}, {"text", "hm"}}}}};
    const Json says{{"role", "assistant"}, {"content", "five"}};
    const Json calls{{"type", "function_call"}, {"call_id", "1"}, {"name", "f"}, {"arguments", "{}"}};
    const Json asks{{"role", "user"}, {"content", "q"}};
    EXPECT_EQ(tokens({asks, thinks, says, asks}), written("<s>user:q<mask><s>assistant[hm]:five<mask><s>user:q<mask>"));
    EXPECT_EQ(tokens({asks, thinks, calls, asks}), written("<s>user:q<mask><s>assistant[hm]:f<mask><s>user:q<mask>"));
    EXPECT_EQ(tokens({asks, thinks, asks}), written("<s>user:q<mask><s>user:q<mask>"));
    const Json secret{
        {"type", "reasoning"}, {"summary", Json::array()}, {"content", nullptr}, {"encrypted_content", "x"}};
    EXPECT_EQ(tokens({asks, secret, says, asks}), written("<s>user:q<mask><s>assistant:five<mask><s>user:q<mask>"));
}

TEST(Responses, MaxToolCallsBoundsTheCalls) {
    const TestServer s({.chat_template = agent_template});
    for (int seed = 0; seed < 6; ++seed) {
        const Json answer = s.ask("/v1/responses", {{"input", "q"},
                                                    {"tools", {function("f")}},
                                                    {"tool_choice", "required"},
                                                    {"max_tool_calls", 1},
                                                    {"seed", seed},
                                                    {"temperature", 1.0},
                                                    {"max_output_tokens", 300}});
        EXPECT_EQ(answer["output"].size(), 1u) << answer;
        EXPECT_EQ(answer["max_tool_calls"], 1);
    }
}

TEST(InputReader, GivesTheSameTextForAnyPieces) {
    const std::pair<std::string, std::string> cases[]{
        {R"({"input": "a\n\"b\" \\ \u00e9 \ud83d\ude00 é"})", "a\n\"b\" \\ \u00e9 \U0001F600 \u00e9"},
        {R"( { "text" : "x" , "more": 1})", "x"},
        {R"({"input": ""})", ""},
        {R"({"input": "cut)", "cut"},
        {"not JSON", "not JSON"},
        {R"({"input": 5})", R"({"input": 5})"}};
    for (const auto& [arguments, text] : cases)
        for (size_t size = 1; size <= arguments.size(); ++size) {
            InputReader reader;
            std::string joined;
            for (size_t at = 0; at < arguments.size(); at += size)
                joined += reader.push(std::string_view(arguments).substr(at, size));
            EXPECT_EQ(joined, text) << arguments << " by " << size;
        }
}

TEST(PendingTokens, BelongToTheTextThatTheyDecodeTo) {
    PendingTokens pending;
    for (const char* token : {"<think>", "hm", "</think>", "\n\n", "Hel", "lo ", "wor<", "tool"})
        pending.push(token, token);
    EXPECT_EQ(pending.take("hm"), Json::array({"hm"}));
    EXPECT_EQ(pending.take("Hello"), Json::array({"Hel", "lo "}));
    EXPECT_EQ(pending.take(" wor"), Json::array({"wor<"}));
    EXPECT_EQ(pending.take("<tool"), Json::array({"tool"}));
    EXPECT_EQ(pending.take("x"), Json::array());
}

}  // namespace
}  // namespace nibble::test
