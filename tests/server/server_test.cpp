// Answers of the routes equal those of the engine alone, whole and streamed.
#include "engine/answer_all.h"
#include "server/server_fixture.h"

#include <algorithm>
#include <set>

namespace nibble::test {
namespace {

// Returns the engine's answer to a request.
WholeAnswer engine_answer(const TestServer& s, const Request& request) {
    auto engine = Engine::create(s.model_pointer(), *s.chat.tokenizer, {.sequences = 1, .kv_memory = 1 << 20});
    EXPECT_TRUE(engine.ok()) << engine.error().message();
    std::vector<WholeAnswer> answers;
    const Status done = answer_all(**engine, {request}, {}, answers);
    EXPECT_TRUE(done.ok()) << done.error().message();
    return answers.back();
}

TEST(Server, CompletionsEqualTheAnswersOfTheEngine) {
    const TestServer s;
    Request request;
    request.prompt = s.chat.encode("once upon");
    request.eos = {271};
    request.max_tokens = 12;
    request.sampling = {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .seed = 7};
    request.top_logprobs = 2;
    const WholeAnswer want = engine_answer(s, request);
    const Json body{{"model", "tiny"}, {"prompt", "once upon"}, {"max_tokens", 12}, {"temperature", 0.8},
                    {"top_k", 40},     {"top_p", 0.9},          {"seed", 7},        {"logprobs", 2}};
    const Json whole = s.ask("/v1/completions", body);
    const Json& choice = whole["choices"][0];
    EXPECT_EQ(choice["text"], want.text);
    EXPECT_EQ(choice["finish_reason"], want.finish == FinishReason::length ? "length" : "stop");
    ASSERT_EQ(choice["logprobs"]["tokens"].size(), want.tokens.size());
    for (size_t i = 0; i < want.tokens.size(); ++i)
        EXPECT_EQ(choice["logprobs"]["token_logprobs"][i].get<float>(), want.tokens[i].logprob) << i;
    EXPECT_EQ(whole["usage"]["prompt_tokens"], request.prompt.size());
    EXPECT_EQ(whole["usage"]["completion_tokens"], want.tokens.size());
    EXPECT_EQ(whole["object"], "text_completion");
    EXPECT_EQ(whole["timings"]["predicted_n"], want.tokens.size());

    Json streamed = body;
    streamed["stream"] = true;
    streamed["stream_options"] = {{"include_usage", true}};
    std::string text;
    std::vector<float> logprobs;
    Json usage;
    for (const Json& e : s.stream("/v1/completions", streamed)) {
        EXPECT_TRUE(e.contains("usage"));
        if (e["choices"].empty()) {
            usage = e["usage"];
            continue;
        }
        text += e["choices"][0]["text"].get<std::string>();
        for (const Json& l : e["choices"][0]["logprobs"]["token_logprobs"]) logprobs.push_back(l.get<float>());
    }
    EXPECT_EQ(text, want.text);
    ASSERT_EQ(logprobs.size(), want.tokens.size());
    for (size_t i = 0; i < logprobs.size(); ++i) EXPECT_EQ(logprobs[i], want.tokens[i].logprob);
    EXPECT_EQ(usage["completion_tokens"], want.tokens.size());
}

TEST(Server, CompletionsOfManyPromptsAndChoices) {
    const TestServer s;
    const std::vector<int32_t> a = s.chat.encode("first"), b = s.chat.encode("the second one");
    const Json answer =
        s.ask("/v1/completions", {{"prompt", {a, b}}, {"n", 3}, {"max_tokens", 4}, {"seed", 5}, {"temperature", 1.5}});
    ASSERT_EQ(answer["choices"].size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
        Request request;
        request.prompt = i < 3 ? a : b;
        request.sequence = i / 3 + i % 3;
        request.max_tokens = 4;
        request.eos = {271};
        request.sampling = {.temperature = 1.5f, .seed = 5};
        EXPECT_EQ(answer["choices"][i]["index"], i);
        EXPECT_EQ(answer["choices"][i]["text"], engine_answer(s, request).text) << i;
    }
    EXPECT_EQ(answer["usage"]["prompt_tokens"], a.size() + b.size());
    const Json texts = s.ask("/v1/completions", {{"prompt", {"x", "y"}}, {"max_tokens", 1}});
    EXPECT_EQ(texts["choices"].size(), 2u);
}

TEST(Server, EchoReturnsThePromptAndItsLogProbabilities) {
    const TestServer s;
    const std::vector<int32_t> ids = s.chat.encode("once upon a time");
    Request request;
    request.prompt = ids;
    request.max_tokens = 1;
    request.prompt_logprobs = 1;
    const WholeAnswer want = engine_answer(s, request);
    // A request of evaluation harnesses: only the prompt is scored.
    const Json alone =
        s.ask("/v1/completions", {{"prompt", "once upon a time"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}});
    const Json& scores = alone["choices"][0]["logprobs"];
    ASSERT_EQ(scores["token_logprobs"].size(), ids.size());
    EXPECT_TRUE(scores["token_logprobs"][0].is_null());
    for (size_t i = 1; i < ids.size(); ++i)
        EXPECT_EQ(scores["token_logprobs"][i].get<float>(), want.prompt[i].logprob) << i;
    EXPECT_NE(alone["choices"][0]["text"].get<std::string>().find("once upon a time"), std::string::npos);
    EXPECT_EQ(alone["usage"]["completion_tokens"], 0);

    const Json more = s.ask("/v1/completions",
                            {{"prompt", ids}, {"max_tokens", 2}, {"prompt_logprobs", 3}, {"return_token_ids", true}});
    const Json& prompt = more["choices"][0]["prompt_logprobs"];
    ASSERT_EQ(prompt.size(), ids.size());
    EXPECT_TRUE(prompt[0].is_null());
    for (size_t i = 1; i < ids.size(); ++i) {
        const Json& own = prompt[i][std::to_string(ids[i])];
        EXPECT_EQ(own["logprob"].get<float>(), want.prompt[i].logprob);
        EXPECT_EQ(own["rank"], want.prompt[i].rank);  // also for tokens that are not among the three most likely
        std::set<int> ranks;
        for (const auto& [id, one] : prompt[i].items()) ranks.insert(one["rank"].get<int>());
        for (int k = 1; k <= 3; ++k) EXPECT_TRUE(ranks.contains(k)) << prompt[i].dump();
    }
    EXPECT_EQ(more["choices"][0]["prompt_token_ids"], Json(ids));
    EXPECT_EQ(more["choices"][0]["token_ids"].size(), 2u);
}

TEST(Server, ChatEqualsTheEnginesAnswerToTheRenderedTemplate) {
    const TestServer s;
    const Json messages =
        Json::array({{{"role", "system"}, {"content", "be brief"}},
                     {{"role", "user"}, {"content", Json::array({{{"type", "text"}, {"text", "hi"}}})}}});
    Request request;
    request.prompt = s.chat.encode("<s>system\nbe brief<mask><s>user\nhi<mask><s>assistant\n", false);
    request.eos = {271};
    request.max_tokens = 10;
    request.sampling = {.temperature = 0};
    request.top_logprobs = 3;
    const WholeAnswer want = engine_answer(s, request);
    const Json body{{"messages", messages},
                    {"max_completion_tokens", 10},
                    {"temperature", 0},
                    {"logprobs", true},
                    {"top_logprobs", 3}};
    const Json whole = s.ask("/v1/chat/completions", body);
    const Json& choice = whole["choices"][0];
    EXPECT_EQ(choice["message"]["content"], want.text);
    EXPECT_EQ(choice["message"]["role"], "assistant");
    EXPECT_EQ(whole["usage"]["prompt_tokens"], request.prompt.size());
    ASSERT_EQ(choice["logprobs"]["content"].size(), want.tokens.size());
    for (size_t i = 0; i < want.tokens.size(); ++i) {
        const Json& l = choice["logprobs"]["content"][i];
        EXPECT_EQ(l["logprob"].get<float>(), want.tokens[i].logprob);
        EXPECT_EQ(l["top_logprobs"].size(), 3u);
        EXPECT_EQ(l["top_logprobs"][0]["logprob"].get<float>(), want.tokens[i].top[0].logprob);
    }
    Json streamed = body;
    streamed["stream"] = true;
    streamed["n"] = 2;
    const std::vector<Json> events = s.stream("/v1/chat/completions", streamed);
    std::string text[2], finish[2];
    for (const Json& e : events) {
        const Json& c = e["choices"][0];
        const size_t index = c["index"];
        if (c["delta"].contains("content")) text[index] += c["delta"]["content"].get<std::string>();
        if (!c["finish_reason"].is_null()) finish[index] += c["finish_reason"].get<std::string>();
        EXPECT_EQ(e["object"], "chat.completion.chunk");
    }
    EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(text[i], want.text);
        EXPECT_EQ(finish[i], choice["finish_reason"].get<std::string>());
    }
    EXPECT_TRUE(events.back().contains("timings"));
}

TEST(Server, APredictionSavesStepsAndChangesNothing) {
    const TestServer s;
    Json body{
        {"messages", Json::array({{{"role", "user"}, {"content", "hi"}}})}, {"max_tokens", 40}, {"temperature", 0}};
    const Json without = s.ask("/v1/chat/completions", body);
    EXPECT_FALSE(without["usage"].contains("completion_tokens_details"));
    const std::string said = without["choices"][0]["message"]["content"];
    for (const Json& content :
         {Json(said), Json::array({{{"type", "text"}, {"text", said}}}), Json("something else")}) {
        body["prediction"] = {{"type", "content"}, {"content", content}};
        const Json answer = s.ask("/v1/chat/completions", body);
        EXPECT_EQ(answer["choices"], without["choices"]);
        const Json& details = answer["usage"]["completion_tokens_details"];
        EXPECT_EQ(details["accepted_prediction_tokens"], answer["timings"].value("draft_n_accepted", 0));
        EXPECT_EQ(details["rejected_prediction_tokens"],
                  answer["timings"].value("draft_n", 0) - answer["timings"].value("draft_n_accepted", 0));
        Json streamed = body;
        streamed["stream"] = true;
        streamed["stream_options"] = {{"include_usage", true}};
        EXPECT_EQ(s.stream("/v1/chat/completions", streamed).back()["usage"], answer["usage"]);
    }
    for (const Json& wrong : {Json("text"), Json{{"type", "content"}}, Json{{"content", "x"}},
                              Json{{"type", "content"}, {"content", Json::array({"x"})}}}) {
        body["prediction"] = wrong;
        EXPECT_EQ(s.ask("/v1/chat/completions", body, 400)["error"]["param"], "prediction") << wrong;
    }
}

TEST(Server, TemplatesGetEffortAndVerbosity) {
    ServerSetup setup;
    setup.chat_template =
        "{{ reasoning_effort | default('-') }}, {{ verbosity | default('-') }}: {{ messages[0]['content'] }}";
    const TestServer s(std::move(setup));
    const Json messages = Json::array({{{"role", "user"}, {"content", "hi"}}});
    const auto tokens = [&](const std::string& text) { return std::ssize(s.chat.encode(text, false)); };
    const auto chat = [&](const Json& more) {
        Json body{{"messages", messages}, {"max_tokens", 1}};
        body.update(more);
        return s.ask("/v1/chat/completions", body)["usage"]["prompt_tokens"].get<int64_t>();
    };
    EXPECT_EQ(chat(Json::object()), tokens("-, -: hi"));
    EXPECT_EQ(chat({{"reasoning_effort", "high"}, {"verbosity", "medium"}}), tokens("high, medium: hi"));
    const auto response = [&](const Json& more) {
        Json body{{"input", "hi"}, {"max_output_tokens", 1}};
        body.update(more);
        return s.ask("/v1/responses", body)["usage"]["input_tokens"].get<int64_t>();
    };
    EXPECT_EQ(response(Json::object()), tokens("-, -: hi"));
    EXPECT_EQ(response({{"reasoning", {{"effort", "high"}, {"summary", "auto"}}}, {"text", {{"verbosity", "low"}}}}),
              tokens("high, low: hi"));
    const auto wrong = [&](const char* route, const Json& body, const char* param) {
        EXPECT_EQ(s.ask(route, body, 400)["error"]["param"], param) << body;
    };
    wrong("/v1/chat/completions", {{"messages", messages}, {"verbosity", 1}}, "verbosity");
    wrong("/v1/responses", {{"input", "hi"}, {"reasoning", {{"summary", "long"}}}}, "reasoning");
    wrong("/v1/responses", {{"input", "hi"}, {"reasoning", "high"}}, "reasoning");
    wrong("/v1/responses", {{"input", "hi"}, {"text", {{"verbosity", 2}}}}, "text");
    wrong("/v1/responses", {{"input", "hi"}, {"text", {{"colour", "red"}}}}, "text");
}

TEST(Server, ParametersOfSamplingReachTheEngine) {
    const TestServer s;
    const Json base{{"prompt", "abc"}, {"max_tokens", 6}, {"temperature", 0}, {"return_token_ids", true}};
    const auto ids = [&](const Json& more) {
        Json body = base;
        body.update(more);
        return Json(s.ask("/v1/completions", body)["choices"][0]);
    };
    const Json plain = ids(Json::object());
    const std::vector<int32_t> tokens = plain["token_ids"];
    const int32_t first = tokens[0];
    EXPECT_NE(ids({{"logit_bias", {{std::to_string(first), -100}}}})["token_ids"][0], first);
    for (const int32_t id : ids({{"allowed_token_ids", {70, 71}}})["token_ids"].get<std::vector<int32_t>>())
        EXPECT_TRUE(id == 70 || id == 71) << id;
    const Json stopped = ids({{"stop_token_ids", Json::array({first})}});
    EXPECT_EQ(stopped["finish_reason"], "stop");
    EXPECT_EQ(stopped["stop_reason"], first);
    EXPECT_EQ(stopped["token_ids"].size(), 1u);
    EXPECT_GE(ids({{"stop_token_ids", Json::array({first})}, {"min_tokens", 3}})["token_ids"].size(), 3u);
    EXPECT_EQ(ids({{"max_tokens", 3}, {"ignore_eos", true}})["token_ids"].size(), 3u);
    // A text of the answer is forbidden, or ends the answer.
    const Json letters = ids({{"allowed_token_ids", s.chat.encode("xyz", false)}});
    const std::string said = letters["text"];
    ASSERT_FALSE(said.empty());
    const Json without =
        ids({{"allowed_token_ids", s.chat.encode("xyz", false)}, {"bad_words", Json::array({said.substr(0, 1)})}});
    EXPECT_EQ(without["text"].get<std::string>().find(said[0]), std::string::npos);
    const Json cut = ids({{"allowed_token_ids", s.chat.encode("xyz", false)}, {"stop", said.substr(1, 1)}});
    EXPECT_EQ(cut["finish_reason"], "stop");
    EXPECT_EQ(cut["stop_reason"], said.substr(1, 1));
    EXPECT_EQ(cut["text"], said.substr(0, said.find(said[1])));
    const Json kept = ids({{"allowed_token_ids", s.chat.encode("xyz", false)},
                           {"stop", said.substr(1, 1)},
                           {"include_stop_str_in_output", true}});
    EXPECT_EQ(kept["text"], said.substr(0, said.find(said[1]) + 1));
    const Json repeated = ids({{"repetition_penalty", 50}, {"frequency_penalty", 2}, {"presence_penalty", 2}});
    const std::vector<int32_t> varied = repeated["token_ids"];
    EXPECT_EQ(std::set<int32_t>(varied.begin(), varied.end()).size(), varied.size());
    const auto seeded = [&](int64_t seed) {
        return Json(ids({{"temperature", 2}, {"seed", seed}, {"max_tokens", 12}})["token_ids"]);
    };
    EXPECT_EQ(seeded(3), seeded(3));
    EXPECT_NE(seeded(3), seeded(-4));
    EXPECT_EQ(
        ids({{"prompt", s.chat.encode("zzz abc", false)}, {"truncate_prompt_tokens", 3}})["prompt_token_ids"].size(),
        3u);
}

TEST(Server, SpacesAloneCanBeBadWords) {
    const TestServer s;
    const Json body{{"prompt", "a b c"}, {"max_tokens", 900}, {"temperature", 2}, {"seed", 1}, {"ignore_eos", true}};
    const std::vector<int32_t> space = s.chat.encode(" ", false);
    ASSERT_EQ(space.size(), 1u);
    const auto spaces = [&](const Json& words) {
        Json json = body;
        json["bad_words"] = words;
        json["return_token_ids"] = true;
        const auto ids = s.ask("/v1/completions", json)["choices"][0]["token_ids"].get<std::vector<int32_t>>();
        return std::ranges::count(ids, space[0]);
    };
    EXPECT_GT(spaces(Json::array()), 0);
    EXPECT_EQ(spaces(Json::array({" "})), 0);
    EXPECT_EQ(s.ask("/v1/completions", {{"prompt", "a"}, {"bad_words", {""}}}, 400)["error"]["param"], "bad_words");
}

TEST(Server, InvalidRequestsGetErrorsThatNameTheField) {
    const TestServer s;
    const auto wrong = [&](const std::string& path, const std::string& body, const std::string& param,
                           int status = 400) {
        const HttpResponse r = s.post(path, body);
        EXPECT_EQ(r.status, status) << body << r.body;
        const auto json = parse_json(r.body);
        ASSERT_TRUE(json.ok()) << r.body;
        const Json& error = (*json)["error"];
        EXPECT_FALSE(error["message"].get<std::string>().empty());
        EXPECT_TRUE(error["type"].is_string());
        EXPECT_EQ(error["param"], param.empty() ? Json(nullptr) : Json(param)) << body << r.body;
    };
    const std::string completions = "/v1/completions", chat = "/v1/chat/completions";
    wrong(completions, "", "");
    wrong(completions, "{", "");
    wrong(completions, "[]", "");
    wrong(completions, "{\"prompt\": \"\xff\"}", "");
    wrong(completions, "{\"prompt\": \"a\", \"prompt\": \"b\"}", "");
    wrong(completions, "{}", "prompt");
    wrong(completions, R"({"prompt": 5})", "prompt");
    wrong(completions, R"({"prompt": [1, "a"]})", "prompt");
    wrong(completions, R"({"prompt": [99999]})", "prompt");
    wrong(completions, R"({"prompt": []})", "prompt");
    wrong(completions, R"({"prompt": "a", "temprature": 1})", "temprature");
    wrong(completions, R"({"prompt": "a", "suffix": "b"})", "suffix");
    wrong(completions, R"({"prompt": "a", "temperature": -1})", "temperature");
    wrong(completions, R"({"prompt": "a", "temperature": "hot"})", "temperature");
    wrong(completions, R"({"prompt": "a", "top_p": 0})", "top_p");
    wrong(completions, R"({"prompt": "a", "n": 1000})", "n");
    wrong(completions, R"({"prompt": "a", "best_of": 3})", "best_of");
    wrong(completions, R"({"prompt": "a", "max_tokens": 0})", "max_tokens");
    wrong(completions, R"({"prompt": "a", "logit_bias": {"x": 1}})", "logit_bias");
    wrong(completions, R"({"prompt": "a", "logit_bias": {"1": 1000}})", "logit_bias");
    wrong(completions, R"({"prompt": "a", "stop": [""]})", "stop");
    wrong(completions, R"({"prompt": "a", "seed": 1.5})", "seed");
    wrong(completions, R"({"prompt": "a", "stream_options": {"include_usage": true}})", "stream_options");
    wrong(completions, R"({"prompt": "a", "model": "gpt"})", "model", 404);
    wrong(completions, Json{{"prompt", std::string(5000, 'x')}}.dump(), "prompt");
    const Json user{{"role", "user"}, {"content", std::string(5000, 'x')}};
    for (const auto& [path, body, param] :
         {std::tuple(completions, Json{{"prompt", user["content"]}}, "prompt"),
          std::tuple(chat, Json{{"messages", Json::array({user})}}, "messages"),
          std::tuple(std::string("/v1/responses"), Json{{"input", user["content"]}}, "input")}) {
        const Json error = (*parse_json(s.post(path, body.dump()).body))["error"];
        EXPECT_EQ(error["code"], "context_length_exceeded") << error;
        EXPECT_EQ(error["param"], param) << error;
    }
    // Far beyond the context: the answer states a bound, and what fits after a cut is answered.
    const Json far{{"role", "user"}, {"content", std::string(400'000, 'x')}};
    for (const auto& [path, body] :
         {std::pair(completions, Json{{"prompt", far["content"]}}), std::pair(chat, Json{{"messages", {far}}}),
          std::pair(std::string("/v1/responses"), Json{{"input", far["content"]}}),
          std::pair(std::string("/v1/messages"), Json{{"messages", {far}}, {"max_tokens", 1}})}) {
        const std::string said = s.post(path, body.dump()).body;
        EXPECT_NE(said.find("has more than 2048 tokens"), said.npos) << path << said;
    }
    s.ask(completions, {{"prompt", far["content"]}, {"truncate_prompt_tokens", 5}, {"max_tokens", 1}});
    s.ask(chat, {{"messages", {far}}, {"truncate_prompt_tokens", 5}, {"max_tokens", 1}});
    EXPECT_GT(s.ask("/tokenize", {{"prompt", far["content"]}})["count"], 2049);
    EXPECT_EQ((*parse_json(s.post(completions, R"({"prompt": []})").body))["error"]["code"], 400);
    wrong(chat, "{}", "messages");
    wrong(chat, R"({"messages": []})", "messages");
    wrong(chat, R"({"messages": [{"content": "no role"}]})", "messages");
    wrong(chat, R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages");
    wrong(chat, R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3})", "top_logprobs");
    wrong("/tokenize", "{}", "prompt");
    wrong("/detokenize", R"({"tokens": [-1]})", "tokens");
    EXPECT_EQ(s.get("/nowhere").status, 404);
    EXPECT_EQ(s.get(completions).status, 405);
    // Neutral values are accepted.
    const Json fine = s.ask(
        completions, {{"prompt", "a"}, {"user", "me"}, {"suffix", nullptr}, {"max_tokens", 1}, {"model", "alias"}});
    EXPECT_EQ(fine["model"], "tiny");
}

TEST(Server, EncodesAndDecodesTokens) {
    const TestServer s;
    const Json there = s.ask("/tokenize", {{"prompt", "hello <s>"}, {"return_token_strs", true}});
    const auto ids = s.chat.encode("hello <s>");
    EXPECT_EQ(there["tokens"], Json(ids));
    EXPECT_EQ(there["count"], ids.size());
    EXPECT_EQ(there["token_strs"].size(), ids.size());
    const auto bare = s.chat.encode("hello <s>", false);
    EXPECT_EQ(s.ask("/tokenize", {{"prompt", "hello <s>"}, {"add_special_tokens", false}})["tokens"], Json(bare));
    EXPECT_EQ(s.ask("/detokenize", {{"tokens", bare}})["prompt"], "hello <s>");
    const Json messages = Json::array({{{"role", "user"}, {"content", "x"}}});
    EXPECT_EQ(s.ask("/tokenize", {{"messages", messages}})["tokens"],
              Json(s.chat.encode("<s>user\nx<mask><s>assistant\n", false)));
}

TEST(Server, ProbesReportWhetherItIsReady) {
    TestServer s({.ready = false});
    EXPECT_EQ(s.get("/v1/health/live").status, 200);
    for (const char* path : {"/health", "/ping", "/v1/health/ready", "/v1/models", "/v1/metadata"})
        EXPECT_EQ(s.get(path).status, 503) << path;
    const HttpResponse early = s.post("/v1/completions", R"({"prompt": "a"})");
    EXPECT_EQ(early.status, 503);
    EXPECT_FALSE(header_of(early.headers, "retry-after").empty());
    s.serve();
    for (const char* path : {"/health", "/ping", "/v1/health/ready", "/v1/health/live", "/v1/models", "/v1/metadata",
                             "/version", "/v1/version", "/metrics", "/v1/metrics", "/v1/models/tiny", "/v1/manifest"})
        EXPECT_EQ(s.get(path).status, 200) << path;
    EXPECT_EQ(s.get("/v1/models/other").status, 404);
    EXPECT_EQ(s.get("/v1/license").status, 404) << "none came with the model";
    EXPECT_TRUE(s.get("/health").body.empty());
    EXPECT_GT(s.metric("vllm:lora_requests_info"), 1e9) << "the time";
}

TEST(Server, KeysAreRequiredForAnswers) {
    ServerSetup setup;
    setup.options.api_keys = {"first-key", "second"};
    const TestServer s(std::move(setup));
    const std::string body = R"({"prompt": "a", "max_tokens": 1})";
    for (const char* key : {"", "Bearer ", "Bearer first", "Bearer first-keyy", "Bearer first-kez", "first-key"}) {
        const HttpResponse r = s.post("/v1/completions", body, {{"Authorization", key}});
        EXPECT_EQ(r.status, 401) << key;
        EXPECT_EQ((*parse_json(r.body))["error"]["type"], "AuthenticationError");
    }
    EXPECT_EQ(s.post("/v1/completions", body, {{"Authorization", "Bearer first-key"}}).status, 200);
    EXPECT_EQ(s.post("/v1/completions", body, {{"X-Api-Key", "second"}}).status, 200);
    EXPECT_EQ(s.get("/v1/models").status, 401);
    for (const char* path : {"/health", "/metrics", "/v1/health/ready"}) EXPECT_EQ(s.get(path).status, 200) << path;
}

TEST(Server, AnEmptyTurnIsAcceptedInTheHistory) {
    const TestServer s;
    const auto tokens = [&](Json said) {
        const Json messages{{{"role", "user"}, {"content", "a"}},
                            {{"role", "assistant"}, {"content", std::move(said)}},
                            {{"role", "user"}, {"content", "b"}}};
        return s.ask("/v1/messages/count_tokens", {{"messages", messages}})["input_tokens"];
    };
    const Json empty = tokens("");
    EXPECT_EQ(tokens(Json::array()), empty);  // equals the answer of /v1/messages if the first token is the last
    EXPECT_EQ(tokens(Json::array({{{"type", "thinking"}, {"thinking", "hm"}, {"signature", ""}}})), empty);
}

TEST(Server, AnInvalidTokenIdIsAnErrorThatNamesTheField) {
    const TestServer s;
    for (const auto& [name, value] : {std::pair{"logit_bias", Json{{"99999", 1}}},
                                      {"stop_token_ids", Json{-1}},
                                      {"allowed_token_ids", Json{99999}}}) {
        Json body{{"prompt", "a"}, {"max_tokens", 1}};
        body[name] = value;
        EXPECT_EQ(s.ask("/v1/completions", body, 400)["error"]["param"], name);
    }
}

TEST(Server, BrowserRequestsOfOtherOriginsAreRefusedByDefault) {
    ServerSetup setup;
    setup.options.cors_origin = "https://ui.example";
    const TestServer open(std::move(setup)), closed;
    const auto allowed = [](const TestServer& s) {
        const HttpResponse r = s.send({.method = "OPTIONS", .path = "/v1/chat/completions"});
        EXPECT_EQ(r.status, 204);
        const std::string origin(header_of(r.headers, "access-control-allow-origin"));
        EXPECT_EQ(header_of(s.get("/health").headers, "access-control-allow-origin"), origin);
        return origin;
    };
    EXPECT_EQ(allowed(open), "https://ui.example");
    EXPECT_EQ(allowed(closed), "");
    // Headers of official clients are accepted; a text that is not a list of names, is too long, or comes from another
    // page is not.
    const std::string asked =
        "anthropic-beta,anthropic-dangerous-direct-browser-access, openai-organization, x-stainless-retry-count";
    const auto headers = [&](const TestServer& s, std::string wanted, std::string origin = "https://ui.example") {
        const HttpResponse r =
            s.send({.method = "OPTIONS",
                    .path = "/v1/messages",
                    .headers = {{"Origin", std::move(origin)}, {"Access-Control-Request-Headers", std::move(wanted)}}});
        return std::string(header_of(r.headers, "access-control-allow-headers"));
    };
    EXPECT_EQ(headers(open, asked), asked);
    EXPECT_EQ(headers(closed, asked), "");
    const std::string few = headers(open, "");
    EXPECT_NE(few.find("X-Api-Key"), std::string::npos);
    EXPECT_EQ(headers(open, asked, "https://other.example"), few);
    EXPECT_EQ(headers(open, "x-a: b"), few);
    EXPECT_EQ(headers(open, std::string(5000, 'x')), few);
}

TEST(Server, LogsOneLinePerRequestWithoutItsText) {
    const TestServer s;
    const HttpResponse r =
        s.post("/v1/completions", R"({"prompt": "a secret", "max_tokens": 2})", {{"X-Request-Id", "my-id.1"}});
    EXPECT_EQ(header_of(r.headers, "x-request-id"), "my-id.1");
    EXPECT_EQ((*parse_json(r.body))["id"], "cmpl-my-id.1");
    ASSERT_TRUE(TestServer::wait_until([&] { return !s.log().empty(); }));
    const Json line = *parse_json(s.log()[0]);
    EXPECT_EQ(line["request_id"], "my-id.1");
    EXPECT_EQ(line["status"], 200);
    EXPECT_EQ(line["completion_tokens"], 2);
    EXPECT_EQ(s.log()[0].find("secret"), std::string::npos);
    const HttpResponse other = s.post("/v1/completions", "{}", {{"X-Request-Id", "bad id"}});
    EXPECT_NE(header_of(other.headers, "x-request-id"), "bad id");
}

TEST(Server, TheLogNamesErrorsWithoutQuotingTheRequest) {
    const TestServer s;
    s.post("/v1/completions", R"({"prompt": "a", "temprature": 2})");
    s.post("/v1/completions", "my secret");
    s.post("/v1/chat/completions", R"({"messages": [{"role": "my secret"}]})");
    s.post("/my-secret", "");
    s.post("/health", "");
    ASSERT_TRUE(TestServer::wait_until([&] { return s.log().size() == 5; }));
    // In any order, because a line is written after its answer.
    std::multiset<std::pair<int, std::string>> said;
    for (const std::string& text : s.log()) {
        const Json line = *parse_json(text);
        said.emplace(line["status"], line["error"]);
    }
    EXPECT_EQ(said, (std::multiset<std::pair<int, std::string>>{{400, "BadRequestError"},
                                                                {400, "messages"},
                                                                {400, "temprature"},
                                                                {404, "NotFoundError"},
                                                                {405, "BadRequestError"}}));
}

}  // namespace
}  // namespace nibble::test
