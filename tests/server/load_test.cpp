// Many clients at once, and clients that misbehave: answers are the same as alone, and errors affect only their
// request.
#include "server/server_fixture.h"

#include <algorithm>
#include <atomic>
#include <map>

namespace nibble::test {
namespace {

constexpr const char* completions = "/v1/completions";

Json load_body(int i) {
    return {{"prompt", "load " + std::to_string(i % 7)},
            {"max_tokens", 1 + i % 23},
            {"temperature", i % 3},
            {"seed", i},
            {"n", 1 + i % 3},
            {"logprobs", i % 4},
            {"priority", i % 2},
            {"stream", i % 2 == 1}};
}

// Returns texts and log-probabilities of all choices, from whole answers and streams.
std::string said(const TestServer& s, Json body) {
    std::map<int, std::string> texts;
    const auto note = [&](const Json& json) {
        for (const Json& c : json["choices"]) {
            std::string& text = texts[c["index"].get<int>()];
            text += c["text"].get<std::string>();
            for (const Json& l : c["logprobs"]["token_logprobs"]) text += " " + l.dump();
        }
    };
    if (body["stream"].get<bool>())
        for (const Json& json : s.stream(completions, body)) note(json);
    else
        note(s.ask(completions, body));
    // Streams contain text and scores in another order; sorted, both are equal.
    std::string all;
    for (auto& [index, text] : texts) {
        std::ranges::sort(text);
        all += std::to_string(index) + ":" + text + "\n";
    }
    return all;
}

TEST(ServerLoad, AnswersUnderLoadEqualThoseOfAnIdleServer) {
    constexpr int n = 96;
    std::vector<std::string> want(n);
    {
        const TestServer quiet({.engine = {.sequences = 1, .prefix_cache = false}});
        for (int i = 0; i < n; ++i) want[size_t(i)] = said(quiet, load_body(i));
    }
    // A cache so small that answers are preempted, with drafts.
    ServerSetup setup;
    setup.engine = {.sequences = 16, .step_rows = 24, .kv_memory = 1 << 17, .drafts = 3};
    const TestServer s(std::move(setup));
    std::vector<std::string> got(n);
    std::atomic<int> next{0};
    std::vector<std::jthread> clients;
    for (int c = 0; c < 12; ++c)
        clients.emplace_back([&] {
            for (int i = next++; i < n; i = next++) {
                if (i % 5 == 0) {  // a client that disconnects
                    HttpClient gone = s.client();
                    Json body = load_body(i);
                    body["max_tokens"] = 900;
                    body["stream"] = true;
                    const auto left = gone.send({.method = "POST", .path = completions, .body = body.dump()},
                                                [](const HttpResponse&, std::string_view) { return false; });
                    EXPECT_TRUE(left.ok()) << left.error().message();
                }
                got[size_t(i)] = said(s, load_body(i));
            }
        });
    clients.clear();
    for (int i = 0; i < n; ++i) EXPECT_EQ(got[size_t(i)], want[size_t(i)]) << i;
    ASSERT_TRUE(TestServer::wait_until(
        [&] { return s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") == 0; }));
    EXPECT_GT(s.metric("vllm:generation_tokens_total"), 0);
    EXPECT_EQ(s.metric("vllm:time_to_first_token_seconds_count"), s.metric("vllm:request_prefill_time_seconds_count"));
}

TEST(ServerLoad, ADisconnectEndsTheRequest) {
    const TestServer s;
    for (const bool streams : {true, false}) {
        const double before = s.metric("vllm:request_success_total");
        HttpClient c = s.client();
        const Json body{{"prompt", "x"}, {"max_tokens", 1000}, {"ignore_eos", true}, {"stream", streams}, {"n", 64}};
        const std::string text = body.dump();
        ASSERT_TRUE(c.write("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                            std::to_string(text.size()) + "\r\n\r\n" + text)
                        .ok());
        c.close();
        // Returns true if it was cancelled or had just finished: nothing is left, and all its choices were counted
        // once.
        ASSERT_TRUE(TestServer::wait_until([&] { return s.metric("vllm:request_success_total") == before + 64; }));
        EXPECT_EQ(s.metric("vllm:num_requests_running"), 0);
    }
    EXPECT_EQ(s.ask(completions, {{"prompt", "x"}, {"max_tokens", 2}})["choices"].size(), 1u);
}

TEST(ServerLoad, AFullQueueReturnsRetryAfter) {
    ServerSetup setup;
    setup.engine = {.sequences = 1, .queue = 4};
    const TestServer s(std::move(setup));
    // A request that can never fit into the queue gets no 429, and no part of it is queued.
    EXPECT_EQ(s.post(completions, R"({"prompt": "a", "n": 5, "max_tokens": 2})").status, 400);
    const Json many{{"prompt", Json(std::vector<std::string>(64, "a"))}, {"n", 3}, {"max_tokens", 900}};
    EXPECT_EQ(s.post(completions, many.dump()).status, 400);

    const std::string text = R"({"prompt": "a", "n": 4, "max_tokens": 1000, "ignore_eos": true, "stream": true})";
    const auto full = [&] {  // the four answers may end before the next request is read
        HttpClient c = s.client();
        EXPECT_TRUE(c.write("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                            std::to_string(text.size()) + "\r\n\r\n" + text)
                        .ok());
        const HttpResponse r = s.post(completions, R"({"prompt": ["a", "b"], "n": 2, "max_tokens": 2})");
        if (r.status != 429) return false;
        EXPECT_GE(std::stoi(std::string(header_of(r.headers, "retry-after"))), 1);
        return true;
    };
    ASSERT_TRUE(TestServer::wait_until(full));
    ASSERT_TRUE(TestServer::wait_until(
        [&] { return s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") == 0; }));
    EXPECT_EQ(s.post(completions, R"({"prompt": "a", "n": 4, "max_tokens": 2})").status, 200);
}

TEST(ServerLoad, ADeadlineEndsARequest) {
    const TestServer s;
    const HttpResponse r =
        s.post(completions, R"({"prompt": "a", "n": 100, "max_tokens": 1000, "ignore_eos": true, "timeout": 0.001})");
    EXPECT_EQ(r.status, 504) << r.body;
    // In a stream the status is already sent, so the last event contains the error.
    const std::vector<Json> events = s.stream(completions, {{"prompt", "a"},
                                                            {"n", 100},
                                                            {"max_tokens", 1000},
                                                            {"ignore_eos", true},
                                                            {"timeout", 0.001},
                                                            {"stream", true}});
    EXPECT_EQ(events.back()["error"]["code"], 504) << events.back();
}

TEST(ServerLoad, DrainsRunningRequestsAndRefusesNewOnes) {
    TestServer s;
    HttpClient c = s.client();
    bool begun = false;
    std::string text;
    std::jthread drain;
    SseReader reader;
    const Json body{{"prompt", "x"}, {"max_tokens", 900}, {"ignore_eos", true}, {"stream", true}};
    bool done = false;
    const auto r = c.send(
        {.method = "POST", .path = completions, .body = body.dump()}, [&](const HttpResponse&, std::string_view piece) {
            if (!std::exchange(begun, true))
                drain = std::jthread([&] { s.server->drain(std::chrono::steady_clock::now() + server_patience); });
            reader.push(piece, [&](const SseEvent& e) { done = done || e.data == "[DONE]"; });
            return true;
        });
    ASSERT_TRUE(r.ok()) << r.error().message();
    EXPECT_TRUE(done);
    drain.join();
}

TEST(ServerLoad, AnEndlessTemplateEndsOnlyItsRequest) {
    ServerSetup setup;
    setup.chat_template =
        "{% if messages[0].content == 'loop' %}{% for i in range(100000000) %}{% for j in range(100000000) %}x"
        "{% endfor %}{% endfor %}{% elif messages[0].content == 'double' %}{% set ns = namespace(s='x' * 1000) %}"
        "{% for i in range(1000) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}{% else %}ok{% endif %}";
    const TestServer s(std::move(setup));
    const auto status = [&](const char* content) {
        const Json body{{"messages", Json::array({{{"role", "user"}, {"content", content}}})}, {"max_tokens", 1}};
        return s.post("/v1/chat/completions", body.dump()).status;
    };
    EXPECT_EQ(status("loop"), 400);
    EXPECT_EQ(status("double"), 400);
    EXPECT_EQ(status("fine"), 200);
}

// Six requests that are costly to parse, all at once, together with others: the others do not wait for the six, and
// none of the six takes much longer than its timeout.
TEST(ServerLoad, CostlyRequestsDoNotDelayOthers) {
    const TestServer s;
    const Json messages = Json::array({{{"role", "user"}, {"content", "x"}}});
    const char* const loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    std::vector<Json> costly;
    for (int i = 0; i < 6; ++i) {
        Json body{{"messages", messages}, {"max_tokens", 4}, {"timeout", 1}};
        if (i % 3 < 2)
            body["chat_template"] = loops;
        else
            body["guided_regex"] = "(?:a|b)*a(?:a|b){25}" + std::string(size_t(i), 'c');
        costly.push_back(std::move(body));
    }
    std::atomic<int> left{static_cast<int>(costly.size())};
    std::vector<std::jthread> clients;
    for (const Json& body : costly)
        clients.emplace_back([&, text = body.dump()] {
            const HttpResponse r = s.post("/v1/chat/completions", text);
            EXPECT_TRUE(r.status == 504 || r.status == 400) << r.status << r.body;
            --left;
        });
    int asked = 0;
    do {
        EXPECT_EQ(s.ask("/v1/chat/completions", {{"messages", messages}, {"max_tokens", 1}})["choices"].size(), 1u);
        ++asked;
    } while (left > 0);
    EXPECT_GT(asked, 12);  // if they waited for the six, there would be six or fewer
}

TEST(ServerLoad, ADeadlineEndsARunningTemplate) {
    const TestServer s;
    Json body{{"messages", Json::array({{{"role", "user"}, {"content", "x"}}})},
              {"max_tokens", 1},
              {"chat_template", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"}};
    const HttpResponse steps = s.post("/v1/chat/completions", body.dump());
    EXPECT_EQ(steps.status, 400);
    EXPECT_NE(steps.body.find("bytes of texts and lists made on the way is reached"), std::string::npos) << steps.body;
    EXPECT_EQ((*parse_json(steps.body))["error"]["param"], "chat_template");
    body["timeout"] = 0.002;
    EXPECT_EQ(s.post("/v1/chat/completions", body.dump()).status, 504);
    EXPECT_EQ(s.post("/tokenize", body.dump()).status, 504);
    // The server's own limit applies, too.
    ServerSetup setup;
    setup.options.most_seconds = 0.002;
    const TestServer strict(std::move(setup));
    body.erase("timeout");
    EXPECT_EQ(strict.post("/v1/chat/completions", body.dump()).status, 504);
    // An error in a request's own template is reported as such.
    const Json wrong = s.ask("/v1/chat/completions",
                             {{"messages", body["messages"]}, {"chat_template", "{% if %}"}, {"max_tokens", 1}}, 400);
    EXPECT_EQ(wrong["error"]["param"], "chat_template") << wrong;
    const Json raises =
        s.ask("/v1/chat/completions",
              {{"messages", body["messages"]}, {"chat_template", "{{ 1 + 'a' }}"}, {"max_tokens", 1}}, 400);
    EXPECT_EQ(raises["error"]["param"], "chat_template") << raises;
}

TEST(ServerLoad, HostileBodiesAreErrors) {
    const TestServer s;
    std::string keys = "{\"prompt\": \"a\"";
    for (int i = 0; i < 100'000; ++i) keys += ", \"k" + std::to_string(i) + "\": 0";
    EXPECT_EQ(s.post(completions, keys + "}").status, 400);
    EXPECT_EQ(s.post(completions, std::string(1'000'000, '[')).status, 400);
    EXPECT_EQ(s.post(completions, "{\"prompt\": \"" + std::string(4'000'000, 'x') + "\"}").status, 400);
    EXPECT_EQ(s.post("/tokenize", "{\"prompt\": \"" + std::string(500'000, ' ') + "\"}").status, 200);
    HttpClient c = s.client();
    ASSERT_TRUE(c.write("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n").ok());
    const auto r = c.receive();
    ASSERT_TRUE(r.ok()) << r.error().message();
    EXPECT_EQ(r->status, 413);
    EXPECT_EQ((*parse_json(r->body))["error"]["code"], 413);
    // Bodies truncated at every byte, and with one wrong byte.
    const std::string body = R"({"prompt": "abc", "max_tokens": 2, "stop": ["x"], "logit_bias": {"5": 1.5}})";
    for (size_t i = 0; i < body.size(); ++i) {
        EXPECT_EQ(s.post(completions, body.substr(0, i)).status, 400) << i;
        std::string wrong = body;
        wrong[i] = '\x01';
        EXPECT_EQ(s.post(completions, wrong).status, 400) << i;
    }
    EXPECT_EQ(s.post(completions, body).status, 200);
}

}  // namespace
}  // namespace nibble::test
