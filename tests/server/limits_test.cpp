// The resources of one request are limited before it is accepted, for every client and route.
#include "server/access.h"
#include "server/answer_size.h"
#include "server_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nibble::test {
namespace {

Json many(size_t count, const Json& one) { return Json(std::vector<Json>(count, one)); }

Json many_biases(size_t count) {
    Json bias = Json::object();
    for (size_t i = 0; i < count; ++i) bias[std::to_string(i)] = 1;
    return bias;
}

struct RouteCase {
    const char* path;
    Json body;
};

std::vector<RouteCase> answering_routes() {
    const Json messages{{{"role", "user"}, {"content", "a"}}};
    return {{"/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}},
            {"/v1/chat/completions", {{"messages", messages}, {"max_tokens", 1}}},
            {"/v1/messages", {{"messages", messages}, {"max_tokens", 1}}},
            {"/v1/responses", {{"input", "a"}, {"max_output_tokens", 1}}}};
}

// Returns the length of the longest run of `c`.
size_t longest_run(std::string_view text, char c) {
    size_t best = 0, run = 0;
    for (const char x : text) best = std::max(best, run = x == c ? run + 1 : 0);
    return best;
}

TEST(Limits, EveryListIsLimitedOnEveryRoute) {
    const TestServer s;
    const struct {
        const char* name;
        Json most, over;
    } lists[]{{"stop", many(64, "zz"), many(65, "zz")},
              {"stop", "zz", Json::array({std::string(4097, 'z')})},
              {"stop_token_ids", many(272, 5), many(500'000, 5)},
              {"allowed_token_ids", many(272, 5), many(273, 5)},
              {"bad_words", many(1024, "zz"), many(1025, "zz")},
              {"bad_words", Json::array({std::string(1024, 'z')}), Json::array({std::string(1025, 'z')})},
              {"logit_bias", many_biases(272), many_biases(5000)}};
    for (const RouteCase& route : answering_routes())
        for (const auto& list : lists) {
            Json body = route.body;
            body[list.name] = list.most;
            s.ask(route.path, body);
            body[list.name] = list.over;
            const Json error = s.ask(route.path, body, 400)["error"];
            EXPECT_NE(error["message"].get<std::string>().find(list.name), std::string::npos) << route.path << error;
        }
    Json body = answering_routes()[2].body;
    body["stop_sequences"] = many(65, "zz");
    s.ask("/v1/messages", body, 400);
    body["stop_sequences"] = Json::array({std::string(4097, 'z')});
    s.ask("/v1/messages", body, 400);
    EXPECT_EQ(s.post("/v1/completions", "{\"prompt\": \"a\", \"allowed_token_ids\": [5" + std::string([] {
                                            std::string more;
                                            for (int i = 0; i < 4'200'000; ++i) more += ",5";
                                            return more;
                                        }()) +
                                            "]}")
                  .status,
              400)
        << "a body of more values than any request has";
}

TEST(Limits, TheLargestPossibleAnswerOfARequestIsBounded) {
    ServerSetup setup;
    setup.options.request_bytes = 4 << 20;
    const TestServer s(std::move(setup));
    const Json ids = many(500, 5), messages{{{"role", "user"}, {"content", "a"}}};
    const auto size = [&](const char* path, Json body, int status) {
        const Json answer = s.ask(path, body, status);
        if (status == 400) {
            EXPECT_EQ(answer["error"]["code"], "request_too_large") << body;
        }
    };
    const char *text = "/v1/completions", *chat = "/v1/chat/completions";
    size(text, {{"prompt", ids}, {"max_tokens", 1}, {"prompt_logprobs", 10}}, 200);
    size(text, {{"prompt", ids}, {"max_tokens", 1}, {"prompt_logprobs", 272}}, 400);
    size(text, {{"prompt", ids}, {"max_tokens", 1}, {"prompt_logprobs", 10}, {"n", 64}}, 400);
    size(text, {{"prompt", many(40, ids)}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 1}}, 400);
    size(text, {{"prompt", ids}, {"max_tokens", 400}, {"logprobs", 100}}, 400);
    size(text, {{"prompt", many(64, ids)}, {"max_tokens", 500}}, 200);
    size(text, {{"prompt", many(128, ids)}, {"max_tokens", 1}, {"n", 8}}, 400);
    size(chat, {{"messages", messages}, {"max_tokens", 900}, {"logprobs", true}, {"top_logprobs", 20}}, 400);
    size(chat, {{"messages", messages}, {"max_tokens", 900}, {"n", 128}}, 400);
    size(chat, {{"messages", messages}, {"max_tokens", 10}, {"logprobs", true}, {"top_logprobs", 20}}, 200);
    // An answer without a given length is as long as the request's memory permits.
    const Json cut =
        s.ask(chat, {{"messages", messages}, {"logprobs", true}, {"top_logprobs", 100}, {"ignore_eos", true}});
    EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
    EXPECT_GT(cut["usage"]["completion_tokens"], 50);
    EXPECT_LT(cut["usage"]["completion_tokens"], 200);
}

TEST(Limits, AllAnswersTogetherAreBoundedAndTheirMemoryIsReleased) {
    ServerSetup setup;
    setup.options.requests_bytes = 2 << 20;
    const TestServer s(std::move(setup));
    const Json large{{"prompt", many(100, 5)}, {"max_tokens", 800}, {"logprobs", 5}, {"ignore_eos", true}};
    const Json small{{"prompt", "a"}, {"max_tokens", 1}};
    std::atomic<int> ok{0}, full{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 6; ++i)
        clients.emplace_back([&] {
            const HttpResponse r = s.post("/v1/completions", large.dump());
            EXPECT_TRUE(r.status == 200 || r.status == 503) << r.status << r.body.substr(0, 300);
            if (r.status == 503) {
                EXPECT_NE(header_of(r.headers, "retry-after"), "");
                EXPECT_NE(r.body.find("memory_full"), std::string::npos);
            }
            ++(r.status == 200 ? ok : full);
        });
    for (std::thread& client : clients) client.join();
    EXPECT_GE(ok, 1);
    EXPECT_GE(full, 1);
    EXPECT_EQ(s.post("/v1/completions", large.dump()).status, 200) << "what ended counts no more";
    s.ask("/v1/completions", small);
}

TEST(Limits, AnswersOfManyPromptsAndChoicesEqualThoseOfEachAlone) {
    const TestServer s;
    const Json lists{{"bad_words", {"e", "ab", " t"}},
                     {"stop", {"qq", "zz"}},
                     {"logit_bias", {{"40", 2}}},
                     {"cache_salt", std::string(100'000, 's')},
                     {"max_tokens", 12},
                     {"temperature", 0},
                     {"logprobs", 3}};
    Json both = lists;
    both["prompt"] = {"once", "upon"};
    both["n"] = 2;
    const Json answer = s.ask("/v1/completions", both);
    ASSERT_EQ(answer["choices"].size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
        Json one = lists;
        one["prompt"] = both["prompt"][i / 2];
        const Json alone = s.ask("/v1/completions", one)["choices"][0];
        EXPECT_EQ(answer["choices"][i]["text"], alone["text"]);
        EXPECT_EQ(answer["choices"][i]["logprobs"]["token_logprobs"], alone["logprobs"]["token_logprobs"]);
    }
}

TEST(Limits, ErrorsAndTheLogQuoteLittleOfTheRequest) {
    const TestServer s;
    const std::string k(300'000, 'k');
    const auto quoted = [&](const HttpResponse& r) {
        EXPECT_GE(r.status, 400);
        EXPECT_LE(longest_run(r.body, 'k'), 256u) << r.body.substr(0, 200);
        EXPECT_LT(r.body.size(), 2000u);
        for (const auto& [name, value] : r.headers) EXPECT_LE(longest_run(value, 'k'), 256u) << name;
    };
    for (const RouteCase& route : answering_routes()) {
        for (const char* field : {"model", "stop", "seed", "logit_bias", "tools", "tool_choice", "response_format",
                                  "text", "guided_grammar", "guided_regex", "chat_template", "prediction",
                                  "temperature", "stream_options", "include", "metadata", "truncation", "cache_salt_"})
            for (const Json& value :
                 {Json(k), Json{{k, 1}}, Json::array({k}), Json{{"type", k}}, Json::array({{{"type", k}}})}) {
                Json body = route.body;
                body[field] = value;
                const HttpResponse r = s.post(route.path, body.dump());
                if (r.status >= 400) quoted(r);
            }
        Json unknown = route.body;
        unknown[k] = 1;
        quoted(s.post(route.path, unknown.dump()));
        Json role = route.body;
        role["messages"] = role["input"] = Json::array({{{"role", k}, {"content", "a"}}});
        quoted(s.post(route.path, role.dump()));
        quoted(s.post(route.path, "{\"" + k));
        quoted(s.post(route.path, k));
        quoted(s.post(route.path, "[" + k));
        quoted(s.post(route.path, "{\"" + k + "\":1,\"" + k + "\":1}"));
    }
    for (const char* path : {"/tokenize", "/detokenize", "/v1/chat/completions/render", "/v1/completions/render"})
        quoted(s.post(path, Json{{k, 1}}.dump()));
    const std::string name(10'000, 'k');
    quoted(s.get("/" + name));
    quoted(s.get("/v1/models/" + name));
    quoted(s.send({.method = name.substr(0, 3000), .path = "/health"}));
    quoted(s.send({.path = "/health", .headers = {{"Origin", "http://" + name}}}));
    for (const std::string& line : s.log()) {
        EXPECT_LT(line.size(), 2000u);
        EXPECT_LE(longest_run(line, 'k'), 256u) << line.substr(0, 300);
    }
}

TEST(Access, HostsAndOriginsAreCheckedWithoutAKey) {
    ServerOptions options;
    options.allowed_hosts = {"Box.example:8000"};
    options.cors_origin = "https://ui.example";
    const struct {
        const char *host, *origin;
        bool passes;
    } cases[]{{"127.0.0.1:8000", "", true},
              {"10.1.2.3", "", true},
              {"[::1]:8000", "", true},
              {"[fe80::1]", "", true},
              {"localhost", "", true},
              {"LOCALHOST:99", "", true},
              {"localhost.", "", true},
              {"a.localhost:1", "", true},
              {"box.example", "", true},
              {"BOX.example:1", "", true},
              {"", "", true},
              {"evil.example", "", false},
              {"localhost.evil.example", "", false},
              {"127.0.0.1.evil.example", "", false},
              {"evillocalhost", "", false},
              {"2130706433", "", false},
              {"127.1", "", false},
              {"0x7f.0.0.1", "", false},
              {"sub.box.example", "", false},
              {"localhost:8000", "http://localhost:8000", true},
              {"localhost:8000", "http://LOCALHOST:8000", true},
              {"localhost:8000", "https://ui.example", true},
              {"localhost:8000", "http://localhost:8001", false},
              {"localhost:8000", "http://127.0.0.1:8000", false},
              {"localhost:8000", "https://evil.example", false},
              {"localhost:8000", "https://ui.example.evil.example", false},
              {"localhost:8000", "null", false},
              {"evil.example", "http://evil.example", false}};
    for (const auto& [host, origin, passes] : cases) {
        HttpRequest request{.method = "POST", .path = "/v1/completions", .host = host};
        if (*origin) request.headers = {{"origin", origin}};
        const auto error = access_error(request, options);
        EXPECT_EQ(!error, passes) << host << " " << origin;
        if (error) {
            EXPECT_EQ(error->status, 403);
        }
        request.path = "/health";
        EXPECT_EQ(!access_error(request, options), passes) << host << " " << origin;
    }
    const HttpRequest foreign{
        .method = "POST", .path = "/v1/completions", .host = "evil.example", .headers = {{"origin", "http://x"}}};
    options.allowed_hosts = {"*"};
    options.cors_origin = "*";
    EXPECT_FALSE(access_error(foreign, options));
    ServerOptions at_socket;
    at_socket.address.unix_path = "/run/s";
    EXPECT_FALSE(access_error({.method = "POST", .path = "/v1/completions", .host = "public.example"}, at_socket))
        << "a browser reaches no unix socket: the proxy before it has its own names";
}

TEST(Access, KeysAreAcceptedInEverySpellingOfTheScheme) {
    ServerOptions options;
    options.api_keys = {"secret"};
    const auto passes = [&](HttpHeaders headers, const char* path = "/v1/completions") {
        return !access_error({.method = "POST", .path = path, .host = "any.example", .headers = std::move(headers)},
                             options);
    };
    for (const char* good : {"Bearer secret", "bearer secret", "BEARER secret", "bEaReR  secret"})
        EXPECT_TRUE(passes({{"authorization", good}})) << good;
    for (const char* wrong : {"secret", "Bearer", "Bearer ", "Bearer secret2", "Bearersecret", "Basic secret", ""})
        EXPECT_FALSE(passes({{"authorization", wrong}})) << wrong;
    EXPECT_TRUE(passes({{"x-api-key", "secret"}}));
    EXPECT_TRUE(passes({{"authorization", "Bearer secret"}, {"origin", "https://page.example"}})) << "it has the key";
    EXPECT_TRUE(passes({}, "/health"));
    EXPECT_FALSE(passes({}, "/tokenize"));
}

TEST(Access, PagesOfOtherSitesAreRefusedButProbesAreNot) {
    const TestServer s;
    const std::string body = R"({"prompt": "a", "max_tokens": 1})";
    EXPECT_EQ(s.post("/v1/completions", body).status, 200);
    EXPECT_EQ(s.post("/v1/completions", body, {{"Content-Type", "application/x-www-form-urlencoded"}}).status, 200)
        << "curl -d";
    EXPECT_EQ(s.post("/v1/completions", body, {{"Origin", "https://page.example"}}).status, 403);
    EXPECT_EQ(s.post("/v1/completions", body, {{"Origin", "null"}}).status, 403);
    HttpClient c = s.client();
    ASSERT_TRUE(c.write("GET /health HTTP/1.1\r\nHost: 10.0.0.7:8000\r\nUser-Agent: kube-probe/1.30\r\n\r\n").ok());
    EXPECT_EQ(c.receive()->status, 200);
    ASSERT_TRUE(c.write("GET /v1/models HTTP/1.1\r\nHost: rebound.example\r\n\r\n").ok());
    EXPECT_EQ(c.receive()->status, 403);
    ASSERT_TRUE(c.write("GET http://rebound.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n").ok());
    EXPECT_EQ(c.receive()->status, 403) << "the target's host counts";
}

TEST(Access, AHalfClosedClientGetsItsAnswer) {
    const TestServer s;
    for (const bool stream : {false, true}) {
        HttpClient c = s.client();
        const std::string body =
            Json{{"prompt", "a"}, {"max_tokens", 300}, {"ignore_eos", true}, {"stream", stream}}.dump();
        ASSERT_TRUE(
            c.write(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
                                body.size(), body))
                .ok());
        c.shut_down_writing();
        const auto r = c.receive();
        ASSERT_TRUE(r.ok()) << r.error().message();
        EXPECT_EQ(r->status, 200);
        EXPECT_NE(r->body.find(stream ? "[DONE]" : "\"finish_reason\":\"length\""), std::string::npos);
    }
}

TEST(AnswerSize, GrowsWithEveryPartOfAnAnswer) {
    Request r;
    r.max_tokens = 100;
    const std::vector<int64_t> prompts{50, 60};
    const AnswerForms whole{.whole = true};
    const auto bytes = [&](const Request& request, const AnswerForms& form) {
        return largest_answer(request, prompts, 1000, form);
    };
    const int64_t plain = bytes(r, whole);
    EXPECT_GT(plain, 0);
    EXPECT_LT(bytes(r, {}), plain) << "of a stream only what is unsent is kept";
    const auto more = [&](auto&& change) {
        Request request = r;
        AnswerForms form = whole;
        change(request, form);
        EXPECT_GT(bytes(request, form), plain);
    };
    more([](Request& q, AnswerForms&) { q.choices = 2; });
    more([](Request& q, AnswerForms&) { q.max_tokens = 101; });
    more([](Request& q, AnswerForms&) { q.top_logprobs = 0; });
    more([](Request& q, AnswerForms&) { q.prompt_logprobs = 1; });
    more([](Request& q, AnswerForms&) { q.expected = {1, 2, 3}; });
    more([](Request& q, AnswerForms&) { q.sampling.presence_penalty = 1; });
    more([](Request&, AnswerForms& f) { f.echo = true; });
    more([](Request&, AnswerForms& f) { f.token_ids = true; });
    more([](Request&, AnswerForms& f) { f.copied = 1; });
    r.max_tokens = int64_t{1} << 40;
    r.choices = 128;
    r.top_logprobs = 100;
    EXPECT_LT(largest_answer(r, prompts, int64_t{1} << 40, whole), INT64_MAX);
    Request fits = r;
    fits.choices = 1;
    const std::vector<int64_t> one{50};
    const int64_t most = most_tokens_within(1'000'000, fits, 50, 100'000, whole);
    fits.max_tokens = most;
    EXPECT_LE(largest_answer(fits, one, 100'000, whole), 1'000'000);
    fits.max_tokens = most + 1;
    EXPECT_GT(largest_answer(fits, one, 100'000, whole), 1'000'000);
    AnswerMemory memory(100);
    auto first = memory.take(60);
    EXPECT_TRUE(first);
    EXPECT_FALSE(memory.take(41));
    EXPECT_TRUE(memory.take(40));
    first.reset();
    EXPECT_TRUE(memory.take(100));
}

}  // namespace
}  // namespace nibble::test
