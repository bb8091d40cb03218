// Fields that other programs rely on: offsets in characters, neutral values of other servers' fields, /tokenizer_info,
// default sampling parameters, the finish reason in the log.
#include "server/server_fixture.h"

#include <set>

namespace nibble::test {
namespace {

size_t characters(std::string_view text) {
    return size_t(std::ranges::count_if(text, [](char c) { return (uint8_t(c) & 0xC0) != 0x80; }));
}

// Returns the offsets of the tokens of a text: the complete characters before each.
std::vector<int64_t> expected_offsets(const TestServer& s, const std::vector<int32_t>& ids, int64_t from = 0) {
    std::vector<int64_t> out;
    StreamDecoder decoder(*s.chat.tokenizer, true);
    for (const int32_t id : ids) {
        out.push_back(from);
        from += int64_t(characters(decoder.push(TokenId(id))));
    }
    return out;
}

TEST(ServerApi, OffsetsCountCharacters) {
    const TestServer s;
    for (const std::string text : {"plain", "für née año z", "日本語のテキスト", "a😀b👍🏽c", "é", "<s>ä<mask>ö",
                                   "\xC3\xA9\xF0\x9F\x98"}) {
        const auto ids = s.chat.encode(text, false);
        Json body{{"prompt", ids}, {"max_tokens", 6},          {"echo", true},
                  {"logprobs", 1}, {"return_token_ids", true}, {"temperature", 1.5},
                  {"seed", 3},     {"ignore_eos", true}};
        const Json choice = s.ask("/v1/completions", body)["choices"][0];
        const std::string said = choice["text"];
        const auto offsets = choice["logprobs"]["text_offset"].get<std::vector<int64_t>>();
        ASSERT_EQ(offsets.size(), ids.size() + 6) << text;
        std::vector<int64_t> expected = expected_offsets(s, ids);
        const std::string prompt =
            s.chat.tokenizer->decode({reinterpret_cast<const TokenId*>(ids.data()), ids.size()}, true);
        const auto answer = expected_offsets(s, choice["token_ids"], int64_t(characters(prompt)));
        expected.insert(expected.end(), answer.begin(), answer.end());
        EXPECT_EQ(offsets, expected) << text;
        EXPECT_TRUE(said.starts_with(prompt));
        EXPECT_LE(offsets.back(), int64_t(characters(said)));
        // Pieces of a stream continue the count, separately for each choice.
        body["stream"] = true;
        body["n"] = 2;
        std::vector<int64_t> streamed[2];
        for (const Json& e : s.stream("/v1/completions", body))
            for (const Json& offset : e.at("choices")[0]["logprobs"]["text_offset"])
                streamed[e["choices"][0]["index"].get<int>()].push_back(offset);
        EXPECT_EQ(streamed[0], offsets) << text;
        EXPECT_EQ(streamed[1].size(), offsets.size());
        EXPECT_EQ(std::vector(streamed[1].begin(), streamed[1].begin() + std::ptrdiff_t(ids.size())),
                  std::vector(offsets.begin(), offsets.begin() + std::ptrdiff_t(ids.size())));
        body["max_tokens"] = 0;
        body["stream"] = false;
        body.erase("n");
        EXPECT_EQ(s.ask("/v1/completions", body)["choices"][0]["logprobs"]["text_offset"],
                  Json(std::vector(offsets.begin(), offsets.begin() + std::ptrdiff_t(ids.size()))));
    }
}

TEST(ServerApi, NeutralFieldsAreAcceptedAndUnknownOnesNamed) {
    const TestServer s;
    const std::pair<const char*, std::pair<Json, Json>> fields[] = {
        {"length_penalty", {1.0, 0.5}},
        {"early_stopping", {false, true}},
        {"include_reasoning", {true, false}},
        {"guided_decoding_backend", {"xgrammar", nullptr}},
        {"logits_processors", {Json::array(), Json::array({"x"})}},
        {"kv_transfer_params", {Json::object(), {{"a", 1}}}},
        {"vllm_xargs", {Json::object(), {{"a", 1}}}},
        {"separate_reasoning", {true, false}},
        {"stream_reasoning", {true, false}},
        {"no_stop_trim", {false, true}},
        {"lora_path", {"", "adapter"}},
        {"return_hidden_states", {false, true}},
        {"rid", {"abc", nullptr}},
        {"typical_p", {1, 0.5}},
        {"repeat_penalty", {1.0, 1.1}},
        {"dry_multiplier", {0, 0.8}},
        {"xtc_probability", {0.0, 0.5}},
        {"mirostat", {0, 2}},
        {"mirostat_tau", {5.0, nullptr}},
        {"n_probs", {0, 3}},
        {"top_n_sigma", {-1, 1.5}},
        {"timings_per_token", {false, true}},
        {"reasoning_format", {"auto", "none"}},
        {"suffix", {"", "end"}},
        {"grammar", {"", "root ::= a"}},
        {"documents", {Json::array(), Json::array({{{"text", "x"}}})}},
        {"use_beam_search", {false, true}},
        {"spaces_between_special_tokens", {true, false}},
        {"best_of", {1, 2}},
        {"mm_processor_kwargs", {Json::object(), {{"a", 1}}}}};
    for (const auto& [route, body] :
         {std::pair("/v1/completions", Json{{"prompt", "a"}, {"max_tokens", 1}}),
          std::pair("/v1/chat/completions",
                    Json{{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 1}})})
        for (const auto& [name, values] : fields) {
            Json asked = body;
            asked[name] = values.first;
            s.ask(route, asked);
            asked[name] = nullptr;
            s.ask(route, asked);
            if (values.second.is_null()) continue;
            asked[name] = values.second;
            EXPECT_EQ(s.ask(route, asked, 400)["error"]["param"], name);
        }
}

// All fields of vLLM's object, as its own client writes them.
TEST(ServerApi, StructuredOutputsMayNameEveryOption) {
    const TestServer s;
    Json body{{"prompt", "a"},
              {"structured_outputs",
               {{"json", nullptr},
                {"regex", nullptr},
                {"choice", {"yes"}},
                {"grammar", nullptr},
                {"json_object", nullptr},
                {"disable_fallback", false},
                {"disable_any_whitespace", false},
                {"disable_additional_properties", false},
                {"whitespace_pattern", nullptr},
                {"structural_tag", nullptr},
                {"_backend", "xgrammar"}}}};
    EXPECT_EQ(s.ask("/v1/completions", body)["choices"][0]["text"], "yes");
    body["structured_outputs"]["disable_any_whitespace"] = true;
    EXPECT_EQ(s.ask("/v1/completions", body, 400)["error"]["param"], "structured_outputs");
}

TEST(ServerApi, FieldsInNvextAreRead) {
    const TestServer s;
    const Json base{{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"max_tokens", 60}, {"seed", 1}};
    const auto text = [&](const Json& nvext) {
        Json body = base;
        body["nvext"] = nvext;
        return s.ask("/v1/chat/completions", body)["choices"][0]["message"]["content"].get<std::string>();
    };
    EXPECT_EQ(text({{"guided_choice", {"yes"}}}), "yes");
    EXPECT_EQ(text({{"guided_regex", "ab{3}"}}), "abbb");
    EXPECT_EQ(text({{"guided_grammar", "root ::= \"xy\""}}), "xy");
    EXPECT_EQ(text({{"guided_json", {{"const", 5}}}, {"guided_decoding_backend", "outlines"}}), "5");
    Json body = base;
    body["nvext"] = {{"top_k", 1}, {"ignore_eos", true}, {"guided_json", nullptr}};
    EXPECT_EQ(s.ask("/v1/chat/completions", body)["usage"]["completion_tokens"], 60);
    for (const Json& wrong : {Json{{"colour", "red"}}, Json("x"), Json{{"top_k", 3}}}) {
        body["top_k"] = 2;
        body["nvext"] = wrong;
        EXPECT_EQ(s.ask("/v1/chat/completions", body, 400)["error"]["param"], "nvext") << wrong;
    }
    const Json completion = s.ask("/v1/completions", {{"prompt", "a"}, {"nvext", {{"guided_choice", {"no"}}}}});
    EXPECT_EQ(completion["choices"][0]["text"], "no");
}

TEST(ServerApi, ModelsStateTheDefaultSampling) {
    const TestServer s;
    const auto models = parse_json(s.get("/v1/models").body);
    ASSERT_TRUE(models.ok());
    const Json& defaults = (*models)["data"][0]["default_sampling_params"];
    EXPECT_EQ(defaults["temperature"], 1.0);
    EXPECT_EQ(defaults["top_p"], 1.0);
    EXPECT_EQ(defaults["from_generation_config"], Json::array());
}

TEST(ServerApi, TheLogContainsTheFinishReason) {
    const TestServer s;
    s.ask("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3}, {"ignore_eos", true}});
    s.ask("/v1/completions", {{"prompt", "a"}, {"guided_choice", {"yes"}}});
    ASSERT_TRUE(TestServer::wait_until([&] { return s.log().size() >= 2; }));
    std::string all;
    for (const std::string& line : s.log()) all += line + "\n";
    EXPECT_NE(all.find("length"), std::string::npos) << all;
    EXPECT_NE(all.find("stop"), std::string::npos) << all;
}

TEST(ServerApi, ToolsThatTheTemplateLeavesOutAreLoggedOnce) {
    const Json tool{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}};
    const Json message{{"role", "user"}, {"content", "a"}};
    for (const bool writes : {false, true}) {
        ServerSetup setup;
        setup.tool_calls = "hermes";
        setup.chat_template = std::string("{% for m in messages %}{{ m.content }}{% endfor %}") +
                              (writes ? "{% if tools %}{{ tools | tojson }}{% endif %}" : "");
        const TestServer s(std::move(setup));
        const Json chat{{"messages", {message}}, {"max_tokens", 1}, {"tools", {tool}}};
        Json none = chat, own = chat,
             responses{{"input", "a"}, {"max_output_tokens", 1}, {"tools", {tool["function"]}}};
        none["tool_choice"] = "none";
        own["chat_template"] = "{{ tools | tojson }}";
        responses["tools"][0]["type"] = "function";
        s.ask("/v1/chat/completions", none);
        s.ask("/v1/chat/completions", own);
        const auto noted = [&] {
            return std::ranges::count_if(
                s.log(), [](const std::string& line) { return line.find("the model does not see them") != line.npos; });
        };
        ASSERT_TRUE(TestServer::wait_until([&] { return s.log().size() >= 2; }));
        EXPECT_EQ(noted(), 0);
        s.ask("/v1/chat/completions", chat);
        s.ask("/v1/chat/completions", chat);
        s.ask("/v1/responses", responses);
        ASSERT_TRUE(TestServer::wait_until([&] { return s.log().size() >= 5; }));
        EXPECT_EQ(noted(), writes ? 0 : 1);
    }
}

TEST(ServerApi, IdsOfToolCallsNeverRepeat) {
    ServerSetup setup;
    setup.chat_template =
        "{% for t in tools or [] %}<tool_call>{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}"
        "{% endfor %}";
    const TestServer s(std::move(setup));
    const Json tools = Json::array(
        {{{"type", "function"},
          {"function", {{"name", "f"}, {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}}});
    Json body{{"messages", {{{"role", "user"}, {"content", "a"}}}},
              {"tools", tools},
              {"n", 3},
              {"tool_choice", "required"},
              {"parallel_tool_calls", false},
              {"max_tokens", 200},
              {"seed", 1}};
    std::set<std::string> ids;
    for (int i = 0; i < 3; ++i) {
        const Json answer = s.ask("/v1/chat/completions", body);
        for (const Json& choice : answer["choices"])
            for (const Json& call : choice["message"]["tool_calls"]) ids.insert(call["id"]);
    }
    EXPECT_EQ(ids.size(), 9u);
    // Cut off at every length: the call's name is incomplete, and nothing becomes content.
    body["n"] = 1;
    for (int most = 1; most <= 20; ++most) {
        body["max_tokens"] = most;
        const Json choice = s.ask("/v1/chat/completions", body)["choices"][0];
        EXPECT_TRUE(choice["message"]["content"].is_null() || choice["message"]["content"] == "") << choice;
    }
}

}  // namespace
}  // namespace nibble::test
