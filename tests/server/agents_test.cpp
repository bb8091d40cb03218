// Requests of agents and tracing tools: deprecated functions, traceparent, model names; and the metrics that vLLM's
// dashboards read.
#include "server_fixture.h"

#include <gmock/gmock.h>

namespace nibble::test {
namespace {

const std::string tool_template =
    "{% if tools %}<s>system\n{{ tools | tojson }}<tool_call>{\"name\": f}</tool_call><mask>{% endif %}"
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}{{ c['function'] | tojson }}{% endfor %}<mask>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}";

const Json user = Json::array({{{"role", "user"}, {"content", "q"}}});
const Json weather{{"name", "weather"},
                   {"description", "of today"},
                   {"parameters",
                    {{"type", "object"},
                     {"properties", {{"unit", {{"enum", {"C", "F"}}}}}},
                     {"required", {"unit"}},
                     {"additionalProperties", false}}}};

// Custom tools of /v1/chat/completions: the format, and a regular expression for the input of a required call.
struct CustomCase {
    const char* what;
    Json format;
    const char* input;
};
class CustomTools : public testing::TestWithParam<CustomCase> {};

TEST_P(CustomTools, AreCalledWithTheirInput) {
    const TestServer s({.chat_template = tool_template});
    Json custom{{"name", "patch"}, {"description", "edits"}};
    if (!GetParam().format.is_null()) custom["format"] = GetParam().format;
    const Json tools =
        Json::array({{{"type", "custom"}, {"custom", custom}}, {{"type", "function"}, {"function", weather}}});
    // made likely, so that texts without a grammar end
    const std::string quote = std::to_string(s.chat.encode("\"", false).at(0));
    Json body{
        {"messages", user},  {"tools", tools},   {"tool_choice", {{"type", "custom"}, {"custom", {{"name", "patch"}}}}},
        {"max_tokens", 300}, {"temperature", 1}, {"logit_bias", {{quote, 6}}},
        {"seed", 5}};
    const Json choice = s.ask("/v1/chat/completions", body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
    const Json call = choice["message"]["tool_calls"][0];
    EXPECT_EQ(call["type"], "custom");
    EXPECT_FALSE(call.contains("function"));
    EXPECT_EQ(call["custom"]["name"], "patch");
    const std::string input = call["custom"]["input"];
    EXPECT_THAT(input, testing::MatchesRegex(GetParam().input));
    // The stream contains the same.
    Json streamed = body;
    streamed["stream"] = true;
    Json joined, first;
    for (const Json& chunk : s.stream("/v1/chat/completions", streamed))
        for (const Json& piece : chunk["choices"][0]["delta"].value("tool_calls", Json::array())) {
            EXPECT_EQ(piece["index"], 0);
            if (first.is_null()) first = piece;
            joined = (joined.is_null() ? "" : joined.get<std::string>()) + piece["custom"]["input"].get<std::string>();
        }
    EXPECT_EQ(first["type"], "custom");
    EXPECT_TRUE(first.contains("id"));
    EXPECT_EQ(first["custom"]["name"], "patch");
    EXPECT_EQ(joined, input);
    // The call and its result are sent back.
    Json more = user;
    more.push_back(choice["message"]);
    more.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "done"}});
    const Json next{{"messages", more}, {"tools", tools}, {"max_tokens", 2}};
    s.ask("/v1/chat/completions", next);
    const std::string prompt = s.ask("/v1/chat/completions/render", next)["prompt"];
    EXPECT_NE(prompt.find(Json{{"input", input}}.dump().substr(1, 8)), prompt.npos) << prompt;
    EXPECT_NE(prompt.find("<s>tool\ndone"), prompt.npos);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, CustomTools,
    testing::Values(
        CustomCase{"none", nullptr, "(.|\n)*"}, CustomCase{"text", {{"type", "text"}}, "(.|\n)*"},
        CustomCase{"lark",
                   {{"type", "grammar"},
                    {"grammar",
                     {{"syntax", "lark"},
                      {"definition", "start: \"<\" LETTER LF \">\"\n%import common.LETTER\n%import common.LF\n"}}}},
                   "<[a-zA-Z]\n>"},
        CustomCase{"regex",
                   {{"type", "grammar"}, {"grammar", {{"syntax", "regex"}, {"definition", "[a-c]{2}\""}}}},
                   "[a-c][a-c]\""}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(CustomTools, AreAllowedAndRefusedByName) {
    const TestServer s({.chat_template = tool_template});
    const auto custom = [](Json format, const char* name = "patch") {
        return Json::array({{{"type", "custom"}, {"custom", {{"name", name}, {"format", std::move(format)}}}}});
    };
    const auto grammar = [](const char* syntax, const char* definition) {
        return Json{{"type", "grammar"}, {"grammar", {{"syntax", syntax}, {"definition", definition}}}};
    };
    Json body{{"messages", user}, {"max_tokens", 200}, {"seed", 1}, {"tools", custom(grammar("regex", "[ab]"))}};
    body["tools"].push_back({{"type", "function"}, {"function", weather}});
    body["tool_choice"] = {
        {"type", "allowed_tools"},
        {"allowed_tools", {{"mode", "required"}, {"tools", {{{"type", "custom"}, {"custom", {{"name", "patch"}}}}}}}}};
    body["parallel_tool_calls"] = false;
    EXPECT_EQ(s.ask("/v1/chat/completions", body)["choices"][0]["message"]["tool_calls"][0]["type"], "custom");
    const std::pair<Json, const char*> wrong[]{
        {custom({{"type", "xml"}}), "format.type"},
        {custom({{"type", "grammar"}}), "[0].custom.format.grammar is missing"},
        {custom(grammar("peg", "x")), "format.syntax is neither lark nor regex"},
        {custom(grammar("lark", "")), "format.definition is missing"},
        {custom(grammar("lark", "start: other")), "other"},
        {custom(grammar("lark", "start: /(?=a)a/")), "look-ahead is not supported"},
        {custom(grammar("regex", "(?<!a)b")), "is not supported"},
        {custom({{"type", "text"}}, ""), "name"},
        {Json::array({{{"type", "custom"}, {"name", "patch"}}}), "[0].custom.name is missing"},
        {Json::array({{{"type", "magic"}}}), "neither 'function' nor 'custom'"}};
    for (const auto& [tools, says] : wrong) {
        const Json error =
            s.ask("/v1/chat/completions", {{"messages", user}, {"tools", tools}, {"max_tokens", 1}}, 400);
        EXPECT_EQ(error["error"]["param"], "tools") << error;
        EXPECT_NE(error["error"]["message"].get<std::string>().find(says), std::string::npos) << error;
    }
    const Json other = s.ask("/v1/chat/completions",
                             {{"messages", user},
                              {"tools", custom({{"type", "text"}})},
                              {"tool_choice", {{"type", "custom"}, {"custom", {{"name", "other"}}}}}},
                             400);
    EXPECT_EQ(other["error"]["param"], "tool_choice");
}

TEST(DeprecatedFunctions, AreToolsWithOlderFieldNames) {
    const TestServer s({.chat_template = tool_template});
    const Json asked{{"messages", user}, {"max_tokens", 200}, {"temperature", 1}, {"seed", 3}};
    Json old = asked, today = asked;
    old["functions"] = Json::array({weather});
    old["function_call"] = {{"name", "weather"}};
    today["tools"] = Json::array({{{"type", "function"}, {"function", weather}}});
    today["tool_choice"] = {{"type", "function"}, {"function", {{"name", "weather"}}}};
    const Json choice = s.ask("/v1/chat/completions", old)["choices"][0];
    const Json call = choice["message"]["function_call"];
    EXPECT_EQ(choice["finish_reason"], "function_call");
    EXPECT_FALSE(choice["message"].contains("tool_calls"));
    EXPECT_EQ(call, s.ask("/v1/chat/completions", today)["choices"][0]["message"]["tool_calls"][0]["function"]);
    old["stream"] = true;
    Json joined{{"name", ""}, {"arguments", ""}};
    Json finish;
    for (const Json& chunk : s.stream("/v1/chat/completions", old)) {
        const Json& one = chunk["choices"][0];
        if (const auto piece = one["delta"].find("function_call"); piece != one["delta"].end())
            for (const auto& [name, text] : piece->items())
                joined[name] = joined[name].get<std::string>() + text.get<std::string>();
        if (!one["finish_reason"].is_null()) finish = one["finish_reason"];
    }
    EXPECT_EQ(joined, call);
    EXPECT_EQ(finish, "function_call");
    // The call and its result are sent back in the deprecated form.
    Json more = user;
    more.push_back({{"role", "assistant"}, {"content", nullptr}, {"function_call", call}});
    more.push_back({{"role", "function"}, {"name", "weather"}, {"content", "20"}});
    Json next{{"messages", more}, {"functions", old["functions"]}, {"max_tokens", 2}};
    for (const char* word : {"auto", "none"}) {
        next["function_call"] = word;
        s.ask("/v1/chat/completions", next);
    }
    EXPECT_NE(s.ask("/v1/chat/completions/render", next)["prompt"].get<std::string>().find("<s>tool\n20"),
              std::string::npos);
}

TEST(DeprecatedFunctions, ErrorsNameTheField) {
    const TestServer s({.chat_template = tool_template});
    const std::pair<Json, const char*> cases[]{
        {{{"functions", 3}}, "functions"},
        {{{"functions", {{{"name", "a b"}}}}}, "functions"},
        {{{"functions", {weather}}, {"tools", {{{"type", "function"}, {"function", weather}}}}}, "functions"},
        {{{"functions", {weather}}, {"function_call", {{"name", "other"}}}}, "function_call"},
        {{{"functions", {weather}}, {"function_call", 3}}, "function_call"},
        {{{"function_call", {{"name", "weather"}}}}, "function_call"}};
    for (const auto& [fields, param] : cases) {
        Json body{{"messages", user}};
        body.update(fields);
        EXPECT_EQ(s.ask("/v1/chat/completions", body, 400)["error"]["param"], param) << body;
    }
}

// Every API accepts a returned call whose arguments are not an object, for templates that write text and for those that
// iterate over members.
TEST(BrokenCalls, AreAcceptedInTheHistoryOfEveryApi) {
    const std::string iterating =
        "{% if tools %}<tool_call>{\"name\": f}</tool_call>{% endif %}{% for m in messages %}{{ m['content'] or '' }}"
        "{% for c in m['tool_calls'] or [] %}{% for k, v in c['function']['arguments'].items() %}[{{ k }}={{ v }}]"
        "{% endfor %}{% endfor %}{% endfor %}";
    for (const std::string& source : {tool_template, iterating}) {
        const TestServer s({.chat_template = source});
        for (const char* arguments : {"{\"a\": \"b", "", "[1]", "nothing", "{\"a\": 1}"}) {
            const Json call{{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
            s.ask("/v1/chat/completions",
                  {{"messages",
                    {user[0],
                     {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}},
                     {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "wrong"}}}},
                   {"max_tokens", 1}});
            s.ask("/v1/responses",
                  {{"input",
                    {user[0],
                     {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", arguments}},
                     {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "wrong"}}}},
                   {"max_output_tokens", 1}});
            const Json use{{"type", "tool_use"}, {"id", "c"}, {"name", "f"}, {"input", arguments}};
            const Json result{{"type", "tool_result"}, {"tool_use_id", "c"}, {"content", "wrong"}};
            s.ask("/v1/messages", {{"messages",
                                    {user[0],
                                     {{"role", "assistant"}, {"content", Json::array({use})}},
                                     {{"role", "user"}, {"content", Json::array({result})}}}},
                                   {"max_tokens", 1}});
        }
    }
}

struct TraceCase {
    const char* what;
    HttpHeaders headers;
    std::string echoed;  // empty: it is ignored
};
class Traceparent : public testing::TestWithParam<TraceCase> {};

TEST_P(Traceparent, IsInTheAnswerAndInTheLogIfValid) {
    const TestServer s;
    const HttpResponse whole = s.post("/v1/completions", R"({"prompt": "a", "max_tokens": 1})", GetParam().headers);
    const HttpResponse stream =
        s.post("/v1/completions", R"({"prompt": "a", "max_tokens": 1, "stream": true})", GetParam().headers);
    const HttpResponse wrong = s.post("/v1/completions", "{}", GetParam().headers);
    for (const HttpResponse& r : {whole, stream, wrong})
        EXPECT_EQ(header_of(r.headers, "traceparent"), GetParam().echoed);
    ASSERT_TRUE(TestServer::wait_until([&] { return s.log().size() == 3; }));
    for (const std::string& line : s.log())
        EXPECT_EQ(parse_json(line)->value("traceparent", std::string()), GetParam().echoed) << line;
}

const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736", span = "00f067aa0ba902b7";
INSTANTIATE_TEST_SUITE_P(
    Headers, Traceparent,
    testing::Values(
        TraceCase{"none", {}, ""},
        TraceCase{"valid", {{"traceparent", "00-" + trace + "-" + span + "-01"}}, "00-" + trace + "-" + span + "-01"},
        TraceCase{"any_case_of_name",
                  {{"TraceParent", "00-" + trace + "-" + span + "-00"}},
                  "00-" + trace + "-" + span + "-00"},
        TraceCase{"later_version",
                  {{"traceparent", "cc-" + trace + "-" + span + "-01-more"}},
                  "cc-" + trace + "-" + span + "-01-more"},
        TraceCase{"later_version_alone",
                  {{"traceparent", "01-" + trace + "-" + span + "-01"}},
                  "01-" + trace + "-" + span + "-01"},
        TraceCase{"more_in_version_0", {{"traceparent", "00-" + trace + "-" + span + "-01-more"}}, ""},
        TraceCase{"more_without_dash", {{"traceparent", "cc-" + trace + "-" + span + "-01more"}}, ""},
        TraceCase{"version_ff", {{"traceparent", "ff-" + trace + "-" + span + "-01"}}, ""},
        TraceCase{"upper_case", {{"traceparent", "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + span + "-01"}}, ""},
        TraceCase{"zero_trace", {{"traceparent", "00-" + std::string(32, '0') + "-" + span + "-01"}}, ""},
        TraceCase{"zero_parent", {{"traceparent", "00-" + trace + "-" + std::string(16, '0') + "-01"}}, ""},
        TraceCase{"short", {{"traceparent", "00-" + trace + "-" + span}}, ""},
        TraceCase{"empty", {{"traceparent", ""}}, ""},
        TraceCase{"words", {{"traceparent", "00-" + std::string(49, 'x') + "-0"}}, ""},
        TraceCase{
            "two",
            {{"traceparent", "00-" + trace + "-" + span + "-01"}, {"traceparent", "00-" + trace + "-" + span + "-00"}},
            ""}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(Metrics, IncludeThoseOfVllmsDashboards) {
    const TestServer s;
    const std::vector<int32_t> prompt(200, 70);
    for (int i = 0; i < 2; ++i) s.ask("/v1/completions", {{"prompt", prompt}, {"max_tokens", 2}, {"temperature", 0}});
    // The second answer may arrive before its request is counted.
    EXPECT_TRUE(TestServer::wait_until([&] { return s.metric("vllm:request_num_preemptions_count") == 2; }));
    const std::string text = s.get("/metrics").body;
    const std::pair<const char*, const char*> types[]{
        {"prompt_tokens_cached_total", "counter"},           {"prompt_tokens_by_source_total", "counter"},
        {"num_requests_waiting_by_reason", "gauge"},         {"request_num_preemptions", "histogram"},
        {"request_prefill_kv_computed_tokens", "histogram"}, {"kv_block_lifetime_seconds", "histogram"},
        {"kv_block_idle_before_evict_seconds", "histogram"}, {"kv_block_reuse_gap_seconds", "histogram"}};
    for (const auto& [name, type] : types)
        EXPECT_NE(text.find(fmt::format("# TYPE vllm:{} {}\n", name, type)), std::string::npos) << name;
    for (const char* label : {"source=\"local_compute\"", "source=\"local_cache_hit\"",
                              "source=\"external_kv_transfer\"", "reason=\"capacity\"", "reason=\"deferred\""})
        EXPECT_NE(text.find(label), std::string::npos) << label;
    const double cached = s.metric("vllm:prompt_tokens_cached_total");
    EXPECT_EQ(cached, 192);  // three blocks of 64 tokens
    EXPECT_EQ(s.metric("vllm:prompt_tokens_by_source_total"), s.metric("vllm:prompt_tokens_total"));
    EXPECT_EQ(s.metric("vllm:request_prefill_kv_computed_tokens_sum"), s.metric("vllm:prompt_tokens_total") - cached);
    EXPECT_EQ(s.metric("vllm:request_num_preemptions_count"), 2);
    EXPECT_EQ(s.metric("vllm:kv_block_reuse_gap_seconds_count"), 3);
    EXPECT_EQ(s.metric("vllm:num_requests_waiting_by_reason"), s.metric("vllm:num_requests_waiting"));
}

// Uses a cache so small that later prompts evict blocks of earlier ones.
TEST(Metrics, EvictedBlocksHaveTimes) {
    const TestServer s({.engine = {.kv_memory = 4 * 64 * 256}});
    for (int32_t token = 70; token < 80; ++token)
        s.ask("/v1/completions", {{"prompt", std::vector<int32_t>(150, token)}, {"max_tokens", 2}, {"temperature", 0}});
    const double evicted = s.metric("vllm:kv_block_lifetime_seconds_count");
    EXPECT_GT(evicted, 0);
    EXPECT_EQ(s.metric("vllm:kv_block_idle_before_evict_seconds_count"), evicted);
    EXPECT_GE(s.metric("vllm:kv_block_lifetime_seconds_sum"), s.metric("vllm:kv_block_idle_before_evict_seconds_sum"));
}

}  // namespace
}  // namespace nibble::test
