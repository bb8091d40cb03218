// The server with well-behaved and hostile peers. Waits are limited to 60 s; no test passes because it was fast.
#include "http/server.h"

#include "http/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace nibble {
namespace {

using namespace std::chrono_literals;
constexpr std::chrono::milliseconds patience = 60s;

// Waits until `done` holds.
testing::AssertionResult wait_until(const std::function<bool()>& done) {
    for (const auto end = std::chrono::steady_clock::now() + patience; std::chrono::steady_clock::now() < end;) {
        if (done()) return testing::AssertionSuccess();
        std::this_thread::sleep_for(5ms);
    }
    return testing::AssertionFailure() << "waited for " << patience.count() << " ms";
}

// Routes: /echo returns the request; /stream?n writes n pieces; /hold keeps the answer for the test.
struct Site {
    std::mutex mutex;
    std::vector<std::shared_ptr<HttpAnswer>> held;
    std::atomic<int> gone{0}, requests{0};
    std::unique_ptr<HttpServer> server;

    explicit Site(HttpLimits limits = {}) {
        auto made = HttpServer::listen(
            {}, std::move(limits),
            [this](HttpRequest r, std::shared_ptr<HttpAnswer> answer) { handle(std::move(r), std::move(answer)); });
        EXPECT_TRUE(made.ok()) << made.error().message();
        server = *std::move(made);
        server->start();
    }
    ~Site() {
        held.clear();
        server.reset();
    }

    void handle(HttpRequest r, std::shared_ptr<HttpAnswer> answer) {
        ++requests;
        if (r.path == "/echo") {
            answer->send({.headers = {{"X-Method", r.method}, {"X-Name", std::string(r.query_value("name"))}},
                          .body = std::move(r.body)});
        } else if (r.path == "/stream") {
            const int n = std::stoi(std::string(r.query_value("n")));
            answer->begin({.headers = {{"Content-Type", "text/event-stream"}}});
            for (int i = 0; i < n; ++i) answer->write("data: " + std::to_string(i) + "\n\n");
            answer->end();
        } else if (r.path == "/hold") {
            answer->on_gone([this] { ++gone; });
            const std::lock_guard lock(mutex);
            held.push_back(std::move(answer));
        } else if (r.path == "/drop") {
            return;
        } else {
            answer->send({.status = 404, .body = "no"});
        }
    }
    size_t held_now() {
        const std::lock_guard lock(mutex);
        return held.size();
    }
    HttpClient client() const {
        auto c = HttpClient::connect(server->address(), patience);
        EXPECT_TRUE(c.ok()) << c.error().message();
        return *std::move(c);
    }
    // Expects that another client is still served.
    void expect_alive() const {
        HttpClient c = client();
        const auto r = c.send({.method = "POST", .path = "/echo", .body = "still here"});
        ASSERT_TRUE(r.ok()) << r.error().message();
        EXPECT_EQ(r->body, "still here");
    }
};

// Returns everything that the server sends in response to these bytes until it closes.
std::string answer_to(const Site& site, std::string_view bytes) {
    HttpClient c = site.client();
    EXPECT_TRUE(c.write(bytes).ok());
    std::string all;
    while (true) {
        const auto some = c.read_some();
        if (!some.ok() || some->empty()) return all;
        all += *some;
    }
}

TEST(HttpServer, AnswersAndKeepsTheConnection) {
    Site site;
    HttpClient c = site.client();
    for (int i = 0; i < 3; ++i) {
        const auto r = c.send({.method = "POST", .path = "/echo?name=a%20b", .body = std::string(100'000, 'x')});
        ASSERT_TRUE(r.ok()) << r.error().message();
        EXPECT_EQ(r->status, 200);
        EXPECT_EQ(header_of(r->headers, "x-name"), "a b");
        EXPECT_EQ(header_of(r->headers, "x-method"), "POST");
        EXPECT_EQ(r->body.size(), 100'000u);
        EXPECT_TRUE(c.open());
    }
    const auto missing = c.send({.path = "/nowhere"});
    ASSERT_TRUE(missing.ok());
    EXPECT_EQ(missing->status, 404);
    const auto head = c.send({.method = "HEAD", .path = "/echo"});
    ASSERT_TRUE(head.ok()) << head.error().message();
    EXPECT_EQ(head->status, 200);
    EXPECT_EQ(site.server->connections(), 1);
}

TEST(HttpServer, ListensAtAUnixSocketAndReplacesADeadOne) {
    const std::string path = testing::TempDir() + "nibble-http-" + std::to_string(::getpid());
    const auto handler = [](const HttpRequest& r, const std::shared_ptr<HttpAnswer>& a) { a->send({.body = r.peer}); };
    for (int round = 0; round < 2; ++round) {
        auto server = HttpServer::listen({.unix_path = path}, {}, handler);
        ASSERT_TRUE(server.ok()) << server.error().message();
        (*server)->start();
        EXPECT_FALSE(HttpServer::listen({.unix_path = path}, {}, handler).ok()) << "taken";
        auto c = HttpClient::connect({.unix_path = path}, patience);
        ASSERT_TRUE(c.ok()) << c.error().message();
        const auto r = c->send({.path = "/"});
        ASSERT_TRUE(r.ok()) << r.error().message();
        EXPECT_EQ(r->body, "unix");
        if (round == 1) continue;
        // The state after kill -9: a socket file without a listener.
        server->reset();
        HttpAddress dead{.unix_path = path};
        const auto fd = listen_at(dead);
        ASSERT_TRUE(fd.ok()) << fd.error().message();
        ::close(*fd);
    }
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
    Site site;
    HttpClient c = site.client();
    std::string all;
    for (int i = 0; i < 500; ++i)
        all += "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n" + std::to_string(100 + i);
    std::jthread writer([&] { EXPECT_TRUE(c.write(all).ok()); });
    for (int i = 0; i < 500; ++i) {
        const auto r = c.receive();
        ASSERT_TRUE(r.ok()) << r.error().message();
        ASSERT_EQ(r->body, std::to_string(100 + i));
    }
}

TEST(HttpServer, StreamsPiecesAsTheyCome) {
    Site site;
    HttpClient c = site.client();
    int events = 0;
    SseReader reader;
    const auto count = [&](const HttpResponse& head, std::string_view piece) {
        EXPECT_EQ(header_of(head.headers, "transfer-encoding"), "chunked");
        reader.push(piece, [&](const SseEvent& e) { EXPECT_EQ(e.data, std::to_string(events++)); });
        return true;
    };
    const auto r = c.send({.path = "/stream?n=1000"}, count);
    ASSERT_TRUE(r.ok()) << r.error().message();
    EXPECT_EQ(events, 1000);
    EXPECT_TRUE(c.open());

    // A piece comes before the answer is complete; HTTP/1.0 ends with the connection.
    ASSERT_TRUE(c.write("GET /hold HTTP/1.0\r\n\r\n").ok());
    ASSERT_TRUE(wait_until([&] { return site.held_now() == 1; }));
    EXPECT_TRUE(site.held[0]->begin({.body = "one"}));
    std::string text;
    while (!text.ends_with("one")) {
        const auto some = c.read_some();
        ASSERT_TRUE(some.ok()) << some.error().message();
        text += *some;
    }
    EXPECT_TRUE(site.held[0]->write(" two"));
    site.held[0]->end();
    EXPECT_FALSE(site.held[0]->write(" three"));
    for (auto some = c.read_some(); some.ok() && !some->empty(); some = c.read_some()) text += *some;
    EXPECT_TRUE(text.ends_with("one two")) << text;
    EXPECT_EQ(site.gone, 0);
}

TEST(HttpServer, WritesCommentsIntoAnIdleStream) {
    Site site;
    HttpClient c = site.client();
    ASSERT_TRUE(c.write("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n").ok());
    ASSERT_TRUE(wait_until([&] { return site.held_now() == 1; }));
    site.held[0]->begin({});
    site.held[0]->write_when_idle(": wait\n\n", 1ms);
    std::string text;
    while (text.find(": wait") == text.npos) {
        const auto some = c.read_some();
        ASSERT_TRUE(some.ok()) << some.error().message();
        text += *some;
    }
}

TEST(HttpServer, LearnsThatAPeerLeft) {
    Site site;
    for (const bool streams : {false, true}) {
        HttpClient c = site.client();
        ASSERT_TRUE(c.write("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n").ok());
        const size_t number = streams ? 2 : 1;
        ASSERT_TRUE(wait_until([&] { return site.held_now() == number; }));
        if (streams) {
            EXPECT_TRUE(site.held.back()->begin({.body = "x"}));
        }
        c.close();
        ASSERT_TRUE(wait_until([&] { return site.gone == static_cast<int>(number); }));
        EXPECT_FALSE(site.held.back()->write("y"));
    }
    int late = 0;
    site.held.back()->on_gone([&] { ++late; });
    EXPECT_EQ(late, 1);
    site.expect_alive();
}

TEST(HttpServer, DroppedAnswersAreErrors) {
    Site site;
    HttpClient c = site.client();
    const auto r = c.send({.path = "/drop"});
    ASSERT_TRUE(r.ok()) << r.error().message();
    EXPECT_EQ(r->status, 500);
    // A stream that is cut off is noticed: the last chunk is missing.
    ASSERT_TRUE(c.write("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n").ok());
    ASSERT_TRUE(wait_until([&] { return site.held_now() == 1; }));
    site.held[0]->begin({.body = "half"});
    site.held.clear();
    EXPECT_FALSE(c.receive().ok());
}

TEST(HttpServer, EndsAPeerThatDoesNotRead) {
    HttpLimits limits;
    limits.unsent_bytes = 1 << 20;
    Site site(limits);
    HttpClient c = site.client();
    ASSERT_TRUE(c.write("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n").ok());
    ASSERT_TRUE(wait_until([&] { return site.held_now() == 1; }));
    const auto answer = site.held[0];
    answer->begin({});
    const std::string piece(64 << 10, 'x');
    int written = 0;
    while (answer->write(piece) && written < 100'000) ++written;
    EXPECT_LT(written, 100'000);
    EXPECT_TRUE(wait_until([&] { return site.gone == 1; }));
    site.expect_alive();
}

TEST(HttpServer, RefusesWhatIsNotHttpOrTooLarge) {
    HttpLimits limits;
    limits.body_bytes = 1000;
    limits.error_body = [](int status, std::string_view) {
        return HttpResponse{.status = status, .body = "{\"code\":" + std::to_string(status) + "}"};
    };
    Site site(limits);
    const auto status = [&](const std::string& bytes, int want) {
        const std::string said = answer_to(site, bytes);
        EXPECT_TRUE(said.starts_with("HTTP/1.1 " + std::to_string(want) + " "))
            << bytes.substr(0, 80) << " -> " << said;
        EXPECT_TRUE(said.ends_with("{\"code\":" + std::to_string(want) + "}")) << said;
    };
    const std::string post = "POST /echo HTTP/1.1\r\nHost: x\r\n";
    status("hello\r\n\r\n", 400);
    status("GET /\r\n\r\n", 400);
    status("GET / HTTP/2.0\r\n\r\n", 505);
    status("GET relative HTTP/1.1\r\nHost: x\r\n\r\n", 400);
    status("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400);
    status("GET / HTTP/1.1\r\nno colon\r\n\r\n", 400);
    status("GET / HTTP/1.1\r\nA: " + std::string(20'000, 'x') + "\r\n\r\n", 431);
    status("GET /" + std::string(100'000, 'x'), 431);
    status(post + "Content-Length: 1001\r\n\r\n", 413);
    status(post + "Content-Length: 1000000000000\r\n\r\n", 413);
    status(post + "Content-Length: -1\r\n\r\n", 400);
    status(post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400);
    status(post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
    status(post + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400);
    status(post + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcXYZ\r\n\r\n", 400);
    status(post + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'x') + "\r\n0\r\n\r\n", 413);
    status(post + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", 400);
    status(post + "Expect: tea\r\nContent-Length: 1\r\n\r\n", 417);
    EXPECT_EQ(site.requests, 0);
    site.expect_alive();
}

TEST(HttpServer, ReadsChunkedBodiesAndAnswersContinue) {
    Site site;
    HttpClient c = site.client();
    ASSERT_TRUE(c.write("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                        "3;ext=1\r\nabc\r\n4\r\ndefg\r\n0\r\nTrailer: x\r\n\r\n")
                    .ok());
    auto r = c.receive();
    ASSERT_TRUE(r.ok()) << r.error().message();
    EXPECT_EQ(r->body, "abcdefg");
    ASSERT_TRUE(c.write("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n").ok());
    const auto go = c.read_some();
    ASSERT_TRUE(go.ok()) << go.error().message();
    EXPECT_EQ(*go, "HTTP/1.1 100 Continue\r\n\r\n");
    ASSERT_TRUE(c.write("ok").ok());
    r = c.receive();
    ASSERT_TRUE(r.ok()) << r.error().message();
    EXPECT_EQ(r->body, "ok");
}

TEST(HttpServer, SurvivesRequestsCutAtEveryByte) {
    Site site;
    const std::string whole =
        "POST /echo?name=x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    for (size_t cut = 0; cut < whole.size(); ++cut) {
        {
            HttpClient c = site.client();  // closes
            ASSERT_TRUE(c.write(whole.substr(0, cut)).ok());
        }
        HttpClient c = site.client();  // continues after a pause
        ASSERT_TRUE(c.write(whole.substr(0, cut)).ok());
        ASSERT_TRUE(c.write(whole.substr(cut)).ok());
        const auto r = c.receive();
        ASSERT_TRUE(r.ok()) << cut << ": " << r.error().message();
        ASSERT_EQ(r->body, "abc");
    }
    EXPECT_EQ(site.requests, static_cast<int>(whole.size()));
    EXPECT_TRUE(wait_until([&] { return site.server->connections() == 0; }));
}

TEST(HttpServer, EndsSlowPeersAndServesOthersMeanwhile) {
    HttpLimits limits;
    limits.header_time = limits.body_time = limits.idle_time = 300ms;
    Site site(limits);
    std::vector<HttpClient> slow;
    for (int i = 0; i < 100; ++i) {
        slow.push_back(site.client());
        ASSERT_TRUE(slow.back()
                        .write(i % 2 ? "GET /echo HT" : "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab")
                        .ok());
    }
    slow.push_back(site.client());  // sends nothing
    for (HttpClient& c : slow) {
        std::string said;
        for (auto some = c.read_some(); some.ok() && !some->empty(); some = c.read_some()) said += *some;
        EXPECT_EQ(said.starts_with("HTTP/1.1 408 "), &c != &slow.back()) << said;
    }
    EXPECT_EQ(site.requests, 0);
    site.expect_alive();
}

TEST(HttpServer, BoundsConnectionsAndTheMemoryOfBodies) {
    HttpLimits limits;
    limits.connections = 5;
    limits.bodies_bytes = 200'000;  // half of it for one peer
    limits.body_time = std::chrono::milliseconds(2000);
    Site site(limits);
    HttpClient big = site.client();
    ASSERT_TRUE(
        big.write("POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 99000\r\n\r\n" + std::string(99'000, 'x')).ok());
    // The request was passed on; its memory is released with it, so the next one is served.
    ASSERT_TRUE(wait_until([&] { return site.held_now() == 1; }));
    {
        HttpClient first = site.client(), second = site.client();
        const std::string half =
            "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + std::string(60'000, 'x');
        ASSERT_TRUE(first.write(half).ok());
        ASSERT_TRUE(second.write(half).ok());
        // One of them gets 503. The other one may too, if it got less than its share first, or if it waits too long for
        // the rest of its body.
        std::vector<int> statuses;
        for (HttpClient* c : {&first, &second}) {
            const auto r = c->receive();
            ASSERT_TRUE(r.ok()) << r.error().message();
            statuses.push_back(r->status);
        }
        EXPECT_THAT(statuses, testing::Contains(503));
        EXPECT_THAT(statuses, testing::Each(testing::AnyOf(503, 408)));
    }
    ASSERT_TRUE(wait_until([&] { return site.server->connections() == 1; }));
    std::vector<HttpClient> many;
    for (int i = 0; i < 4; ++i) many.push_back(site.client());
    ASSERT_TRUE(wait_until([&] { return site.server->connections() == 5; }));
    const std::string said = answer_to(site, "");
    EXPECT_TRUE(said.starts_with("HTTP/1.1 503 ")) << said;
    many.clear();
    ASSERT_TRUE(wait_until([&] { return site.server->connections() == 1; }));
    site.expect_alive();
}

TEST(HttpServer, DrainsWhatIsUnderWayAndTakesNoMore) {
    Site site;
    HttpClient idle = site.client(), busy = site.client();
    ASSERT_TRUE(idle.send({.path = "/echo"}).ok());
    ASSERT_TRUE(busy.write("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n").ok());
    ASSERT_TRUE(wait_until([&] { return site.held_now() == 1; }));
    std::thread drain([&] { site.server->drain(std::chrono::steady_clock::now() + patience); });
    const auto closed = idle.read_some();  // the idle connection ends first
    EXPECT_TRUE(closed.ok() && closed->empty());
    EXPECT_FALSE(HttpClient::connect(site.server->address(), patience).ok());
    site.held[0]->send({.body = "done"});
    const auto r = busy.receive();
    ASSERT_TRUE(r.ok()) << r.error().message();
    EXPECT_EQ(r->body, "done");
    EXPECT_FALSE(busy.open());
    drain.join();
    EXPECT_EQ(site.server->connections(), 0);
}

TEST(HttpServer, CutsWhatIsNotDoneAtTheDeadline) {
    Site site;
    HttpClient busy = site.client();
    ASSERT_TRUE(busy.write("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n").ok());
    ASSERT_TRUE(wait_until([&] { return site.held_now() == 1; }));
    site.server->drain(std::chrono::steady_clock::now() + 1ms);
    EXPECT_EQ(site.gone, 1);
    EXPECT_FALSE(busy.receive().ok());
}

TEST(HttpServer, HoldsHundredsOfStreamsAtOnce) {
    Site site;
    constexpr size_t n = 400;  // two descriptors each, of 1,024
    std::vector<HttpClient> clients;
    for (size_t i = 0; i < n; ++i) {
        clients.push_back(site.client());
        ASSERT_TRUE(clients.back().write("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n").ok());
    }
    ASSERT_TRUE(wait_until([&] { return site.held_now() == n; }));
    for (auto& answer : site.held) answer->begin({});
    for (int round = 0; round < 20; ++round)
        for (auto& answer : site.held) EXPECT_TRUE(answer->write(std::to_string(round) + ","));
    for (auto& answer : site.held) answer->end();
    for (HttpClient& c : clients) {
        const auto r = c.receive();
        ASSERT_TRUE(r.ok()) << r.error().message();
        EXPECT_EQ(r->body, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,");
    }
}

}  // namespace
}  // namespace nibble
