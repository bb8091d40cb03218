// Requests that two programs may read differently, followed by a second request where one of them would see a body. The
// server rejects all of them and closes the connection.
#include "http/framing.h"

#include "http/body_budget.h"
#include "http/client.h"
#include "http/server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

namespace nibble {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

struct FramingCase {
    const char* name;
    const char* head;  // after "POST / HTTP/1.1\r\n"
    int status;
};

const FramingCase framing_cases[]{
    {"other coding last", "Host: x\r\nTransfer-Encoding: chunked, gzip\r\n", 400},
    {"other coding first", "Host: x\r\nTransfer-Encoding: gzip, chunked\r\n", 501},
    {"two lines of codings", "Host: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501},
    {"chunked twice", "Host: x\r\nTransfer-Encoding: chunked, chunked\r\n", 400},
    {"chunked in two lines", "Host: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400},
    {"identity", "Host: x\r\nTransfer-Encoding: identity\r\n", 400},
    {"identity with a length", "Host: x\r\nTransfer-Encoding: identity\r\nContent-Length: 3\r\n", 400},
    {"like chunked", "Host: x\r\nTransfer-Encoding: xchunked\r\n", 400},
    {"like chunked with a length", "Host: x\r\nTransfer-Encoding: xchunked\r\nContent-Length: 3\r\n", 400},
    {"quoted", "Host: x\r\nTransfer-Encoding: \"chunked\"\r\n", 400},
    {"with a parameter", "Host: x\r\nTransfer-Encoding: chunked;q=1\r\n", 400},
    {"with a vertical tab", "Host: x\r\nTransfer-Encoding: \vchunked\r\n", 400},
    {"empty coding", "Host: x\r\nTransfer-Encoding:\r\n", 400},
    {"a list that begins empty", "Host: x\r\nTransfer-Encoding: , chunked\r\n", 501},
    {"both lengths", "Host: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n", 400},
    {"both lengths, other order", "Host: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n", 400},
    {"two equal lengths", "Host: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n", 400},
    {"two lengths", "Host: x\r\nContent-Length: 3\r\nContent-Length: 0\r\n", 400},
    {"a list of lengths", "Host: x\r\nContent-Length: 3, 3\r\n", 400},
    {"a signed length", "Host: x\r\nContent-Length: +3\r\n", 400},
    {"a hexadecimal length", "Host: x\r\nContent-Length: 0x3\r\n", 400},
    {"a length with a space before the colon", "Host: x\r\nContent-Length : 3\r\n", 400},
    {"a coding with a space before the colon", "Host: x\r\nTransfer-Encoding : chunked\r\n", 400},
    {"no Host", "", 400},
    {"two Hosts", "Host: x\r\nHost: x\r\n", 400},
    {"two Hosts in a line", "Host: x, y\r\n", 400},
    {"a Host with a path", "Host: x/y\r\n", 400},
    {"a Host with a user", "Host: a@x\r\n", 400},
    {"gzip", "Host: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n", 415},
    {"two encodings", "Host: x\r\nContent-Encoding: identity\r\nContent-Encoding: br\r\nContent-Length: 3\r\n", 415},
    {"a list of encodings", "Host: x\r\nContent-Encoding: identity, deflate\r\nContent-Length: 3\r\n", 415},
};

// Returns the statuses that the server sends until it closes the connection.
std::vector<int> statuses_of(const HttpAddress& address, std::string_view bytes, bool shuts = false) {
    auto client = HttpClient::connect(address, 60s);
    EXPECT_TRUE(client.ok());
    EXPECT_TRUE(client->write(bytes).ok());
    if (shuts) client->shut_down_writing();
    std::string said;
    for (auto some = client->read_some(); some.ok() && !some->empty(); some = client->read_some()) said += *some;
    std::vector<int> out;
    for (size_t at = 0; (at = said.find("HTTP/1.1 ", at)) != said.npos; at += 9)
        if (said[at + 9] >= '1' && said[at + 9] <= '9') out.push_back(std::stoi(said.substr(at + 9, 3)));
    return out;
}

std::unique_ptr<HttpServer> echo_server(HttpAddress at = {}, HttpLimits limits = {}) {
    auto server = HttpServer::listen(std::move(at), std::move(limits),
                                     [](const HttpRequest& r, const std::shared_ptr<HttpAnswer>& answer) {
                                         answer->send({.body = r.host + " " + r.path + " " + r.body});
                                     });
    EXPECT_TRUE(server.ok()) << server.error().message();
    (*server)->start();
    return *std::move(server);
}

TEST(HttpFraming, AmbiguousRequestsAreRefusedAndEndTheConnection) {
    const auto server = echo_server();
    const std::string second = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n";
    for (const auto& [name, head, status] : framing_cases) {
        const std::string request = std::string("POST / HTTP/1.1\r\n") + head + "\r\n";
        EXPECT_EQ(statuses_of(server->address(), request + second), std::vector<int>{status}) << name;
    }
    for (const char* head :
         {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "GET / HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n",
          "CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a,b/ HTTP/1.1\r\nHost: x\r\n\r\n",
          "GET http://u@x/ HTTP/1.1\r\nHost: x\r\n\r\n"})
        EXPECT_EQ(statuses_of(server->address(), head + second), std::vector<int>{400}) << head;
}

// Line ends and versions of RFC 9112, whole and byte by byte.
TEST(HttpFraming, LineEndsAndVersions) {
    const auto server = echo_server();
    const struct {
        const char* bytes;
        int status;
    } heads[]{{"GET / HTTP/1.2\r\nHost: x\r\n", 200},
              {"GET / HTTP/1.9\r\nHost: x\r\n", 200},
              {"GET / HTTP/1.0\r\n", 200},
              {"GET / HTTP/1.2\r\n", 400},  // handled like HTTP/1.1: a Host is required
              {"POST / HTTP/1.2\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n", 400},
              {"GET / HTTP/2.0\r\nHost: x\r\n", 505},
              {"GET / HTTP/0.9\r\nHost: x\r\n", 505},
              {"GET / HTTP/3.1\r\nHost: x\r\n", 505},
              {"GET / HTTP/1.10\r\nHost: x\r\n", 400},
              {"GET / HTTP/11\r\nHost: x\r\n", 400},
              {"GET / http/1.1\r\nHost: x\r\n", 400},
              {"GET / HTTP/1.1 \r\nHost: x\r\n", 400},
              {"GET /\r\nHost: x\r\n", 400},
              {"GET / HTTP/1.1\nHost: x\n\n", 400},
              {"GET / HTTP/1.1\nHost: x\r\n", 400},
              {"GET / HTTP/1.1\r\nHost: x\n", 400},
              {"GET / HTTP/1.1\r\nHost: x\r\nA: b\nTransfer-Encoding: chunked\r\n", 400},
              {"GET / HTTP/1.1\r\nHost: x\r\n\n", 400},
              {"GET / HTTP/1.1\r\nHost: x\rA: b\r\n", 400},
              {"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n", 400},
              {"GET / HTTP/1.1\r\nHost: x\r\nA:\r\n\tb\r\n", 400},
              {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n chunked\r\n", 400},
              {"GET / HTTP/1.1\r\n Host: x\r\n", 400}};
    for (const auto& [head, status] : heads) {
        const std::string request = std::string(head) + "Connection: close\r\n\r\n";
        EXPECT_EQ(statuses_of(server->address(), request), std::vector<int>{status}) << head;
        auto slow = HttpClient::connect(server->address(), 60s);
        ASSERT_TRUE(slow.ok());
        for (const char byte : request)
            if (!slow->write({&byte, 1}).ok()) break;  // the server has closed it
        const auto answer = slow->receive();
        if (answer.ok()) EXPECT_EQ(answer->status, status) << head;
    }
    // Bodies may hold any line ends, and a request may follow them.
    const std::string post = "POST / HTTP/1.3\r\nHost: x\r\nContent-Length: 4\r\n\r\n\na\n\n";
    const std::string last = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(statuses_of(server->address(), post + post + last), (std::vector<int>{200, 200, 200}));
}

TEST(HttpFraming, OrdinaryRequestsAreRead) {
    const auto server = echo_server();
    const struct {
        const char *request, *body;
    } good[]{
        {"GET / HTTP/1.0\r\n\r\n", " / "},
        {"GET /a HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n", " /a "},
        {"GET http://b:1/a HTTP/1.1\r\nHost: c\r\nConnection: close\r\n\r\n", "b:1 /a "},
        {"POST / HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close\r\nTransfer-Encoding: "
         "Chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
         "[::1]:80 / hi"},
        {"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\nhi",
         "x / hi"},
        {"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nHost: "
         "y\r\nAuthorization: Bearer k\r\n\r\n",
         "x / hi"}};
    for (const auto& [request, body] : good) {
        auto client = HttpClient::connect(server->address(), 60s);
        ASSERT_TRUE(client.ok() && client->write(request).ok());
        const auto r = client->receive();
        ASSERT_TRUE(r.ok()) << request << r.error().message();
        EXPECT_EQ(r->status, 200) << request;
        EXPECT_EQ(r->body, body) << request;
    }
}

TEST(HttpFraming, AClientThatEndsItsSideGetsAllItsAnswers) {
    std::mutex mutex;
    std::vector<std::shared_ptr<HttpAnswer>> held;
    std::atomic<int> gone{0};
    auto server = HttpServer::listen({}, {}, [&](const HttpRequest& r, std::shared_ptr<HttpAnswer> answer) {
        if (r.path != "/hold") return answer->send({.body = r.path});
        answer->on_gone([&] { ++gone; });
        const std::lock_guard lock(mutex);
        held.push_back(std::move(answer));
    });
    ASSERT_TRUE(server.ok());
    (*server)->start();
    const auto holds = [&](size_t n) {
        for (const auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end;) {
            const std::lock_guard lock(mutex);
            if (held.size() == n) return true;
        }
        return false;
    };
    const std::string get = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", hold = "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n";
    const auto& at = (*server)->address();
    EXPECT_EQ(statuses_of(at, get, true), std::vector<int>{200});
    EXPECT_EQ(statuses_of(at, get + get + get, true), (std::vector<int>{200, 200, 200}));
    EXPECT_EQ(statuses_of(at, get + "GET /b HT", true), (std::vector<int>{200})) << "the rest never comes";
    EXPECT_EQ(statuses_of(at, "GET /a HTTP/1.0\r\n\r\n", true), (std::vector<int>{200}));
    // A slow answer follows at most a few interim ones, and further requests still work.
    std::thread answers([&] {
        ASSERT_TRUE(holds(1));
        std::this_thread::sleep_for(1300ms);
        held[0]->send({.body = "late"});
    });
    std::vector<int> statuses = statuses_of(at, hold + get, true);
    answers.join();
    std::erase(statuses, 100);
    EXPECT_EQ(statuses, (std::vector<int>{200, 200}));
    EXPECT_EQ(gone, 0);
    // A peer that has really closed is noticed.
    {
        auto leaves = HttpClient::connect(at, 60s);
        ASSERT_TRUE(leaves.ok() && leaves->write(hold).ok());
        ASSERT_TRUE(holds(2));
        leaves->shut_down_writing();
    }
    for (const auto end = std::chrono::steady_clock::now() + 60s; gone == 0 && std::chrono::steady_clock::now() < end;)
        std::this_thread::sleep_for(5ms);
    EXPECT_EQ(gone, 1);
    held.clear();
}

TEST(HttpFraming, OnePeerLeavesMemoryForOtherBodies) {
    HttpLimits limits;
    limits.body_bytes = 1 << 20;
    limits.bodies_bytes = 4 << 20;
    BodyBudgets budgets(limits.bodies_bytes);
    std::vector<std::shared_ptr<BodyBudgets::Share>> greedy;
    for (int i = 0; i < 100; ++i) {
        greedy.push_back(budgets.share("1.2.3.4"));
        while (greedy.back()->take(100'000)) {
        }
    }
    EXPECT_TRUE(budgets.share("1.2.3.5")->take(900'000)) << "another peer";
    for (int i = 0; i < 100; ++i) {
        greedy.push_back(budgets.share("2.0.0." + std::to_string(i)));
        while (greedy.back()->take(100'000)) {
        }
    }
    EXPECT_FALSE(budgets.share("1.2.3.5")->take(900'000)) << "large bodies fill what is for them";
    EXPECT_TRUE(budgets.share("1.2.3.5")->take(60'000)) << "the rest is for small ones";
    greedy.clear();
    EXPECT_TRUE(budgets.share("1.2.3.4")->take(2 << 20)) << "what ended is given back";
    EXPECT_FALSE(budgets.share("1.2.3.4")->take((2 << 20) + 1)) << "half of all for one peer";
}

struct SocketFolder {
    fs::path path = fs::path(testing::TempDir()) / ("nibble-sockets-" + std::to_string(::getpid()));
    SocketFolder() { fs::create_directories(path); }
    ~SocketFolder() { fs::remove_all(path); }
};

TEST(UnixSockets, OnlyTheSocketOfADeadServerIsRemoved) {
    const SocketFolder folder;
    const std::string at = folder.path / "s";
    const auto handler = [](const HttpRequest&, const std::shared_ptr<HttpAnswer>&) {};
    const auto refused = [&] {
        const auto server = HttpServer::listen({.unix_path = at}, {}, handler);
        return !server.ok();
    };
    std::ofstream(at) << "precious";
    EXPECT_TRUE(refused());
    std::string text;
    std::ifstream(at) >> text;
    EXPECT_EQ(text, "precious");
    fs::remove(at);
    fs::create_directory(at);
    EXPECT_TRUE(refused());
    fs::remove(at);
    ASSERT_EQ(::mkfifo(at.c_str(), 0600), 0);
    EXPECT_TRUE(refused());
    EXPECT_TRUE(fs::is_fifo(at));
    fs::remove(at);
    fs::create_symlink(folder.path / "file", at);
    std::ofstream(folder.path / "file") << "precious";
    EXPECT_TRUE(refused());
    EXPECT_TRUE(fs::is_symlink(at) && fs::file_size(folder.path / "file") == 8);
    fs::remove(at);

    auto first = echo_server({.unix_path = at});
    EXPECT_TRUE(refused()) << "a live server's";
    EXPECT_EQ(statuses_of(first->address(), "GET / HTTP/1.0\r\n\r\n"), std::vector<int>{200});
    fs::remove(at);
    const auto second = echo_server({.unix_path = at});
    first.reset();
    EXPECT_TRUE(fs::is_socket(at)) << "it is the second server's";
    EXPECT_EQ(statuses_of(second->address(), "GET / HTTP/1.0\r\n\r\n"), std::vector<int>{200});
    fs::remove(at);
    std::ofstream(at) << "put there meanwhile";
    second->drain(std::chrono::steady_clock::now());
    EXPECT_TRUE(fs::is_regular_file(at));
}

}  // namespace
}  // namespace nibble
