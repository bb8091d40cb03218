// Input: bytes sent by a client. A first byte 'A' to 'I' picks a route, and the rest is its body. Any other input goes
// in pieces over a socket to a connection of the server: heads, chunked bodies, pipelined requests. The engine takes no
// requests, so everything is read and checked but nothing is generated. Every request must get exactly one answer in
// valid HTTP, and every refusal a JSON body with a message, within the limits of time and memory.
#include "chat/chat_format.h"
#include "engine/engine.h"
#include "http/connection.h"
#include "judge.h"
#include "model/cpu/model.h"
#include "server/routes.h"
#include "text/chat_template.h"

#include <sys/socket.h>
#include <unistd.h>
#include <boost/beast/http.hpp>

#include <algorithm>
#include <iterator>
#include <vector>

using namespace nibble;

namespace {

namespace beast_http = boost::beast::http;

// Routes that take a body, in the order of the table.
const std::vector<Route>& routes() {
    static const std::vector<Route> some = [] {
        std::vector<Route> found;
        std::ranges::copy_if(all_routes(), std::back_inserter(found),
                             [](const Route& route) { return route.methods == RouteMethods::post; });
        return found;
    }();
    return some;
}

template <class T>
T taken(Result<T> result) {
    if (!result.ok()) fprintf(stderr, "%s\n", result.error().message().c_str());
    require(result.ok());
    return *std::move(result);
}

// The model of tests/data/chat with an engine that takes no more requests.
struct Service {
    ThreadPool pool{1};
    ServerCore core;
    ModelPtr model;

    Service() {
        const std::filesystem::path folder = std::string(NIBBLE_SOURCE_DIR) + "/tests/data/chat";
        const auto net = std::make_shared<Model>(taken(Model::load(taken(Checkpoint::open(folder)), {}, pool)));
        const Tokenizer tokenizer = taken(Tokenizer::from_folder(folder));
        auto engine = taken(Engine::create(net, tokenizer, {.kv_memory = int64_t{16} << 20}));
        engine->drain(EngineClock::now());
        const auto form = std::make_shared<const ChatTemplate>(taken(ChatTemplate::open(folder)));
        ServedModel served{.names = {"tiny"}, .root = "chat", .engine = std::move(engine), .tokenizer = tokenizer};
        served.format = std::make_shared<const ChatFormat>(
            taken(ChatFormat::create(tokenizer, form, {{"bos_token", "<s>"}, {"eos_token", "<mask>"}})));
        served.like.eos = {271};
        require(served.prepare_grammars().ok());
        model = std::make_shared<const ServedModel>(std::move(served));
        core.served = model;
        core.memory = AnswerMemory(int64_t{1} << 30);
        core.options.limits.error_body = [](int status, std::string_view why) {
            return error_response_of({.status = status, .message = std::string(why)}, ApiStyle::openai);
        };
    }
};

Service& service() {
    static Service* const one = new Service;
    return *one;
}

void require_answer(int status, const std::string& body) {
    require(status >= 200 && status < 600);
    if (status < 400) return;
    const auto json = parse_json(body);
    require(json.ok() && json->is_object() && json->contains("error"));
    const Json& error = (*json)["error"];
    require(error.is_object() && error.contains("message") && error["message"].is_string() &&
            !error["message"].get_ref<const std::string&>().empty());
}

class HeardAnswer : public HttpAnswer {
public:
    void send(HttpResponse response) override {
        ++answers;
        require_answer(response.status, response.body);
    }
    bool begin(HttpResponse) override { return ++answers, true; }
    bool write(std::string_view) override { return true; }
    void end() override {}
    void abort() override { ++answers; }
    void write_when_idle(std::string, std::chrono::milliseconds) override {}
    void on_gone(std::function<void()>) override {}
    int answers = 0;
};

void answer_body(size_t route, std::string_view body) {
    const auto answer = std::make_shared<HeardAnswer>();
    HttpRequest request{.method = "POST", .path = std::string(routes()[route].path), .body = std::string(body)};
    routes()[route].answer(std::make_shared<HttpExchange>(service().core, std::move(request), answer), service().model);
    require(answer->answers == 1);
}

void answer_bytes(std::string_view bytes) {
    std::vector<bool> heads;  // per handled request: the answer has no body
    boost::asio::io_context io;
    HttpShared shared{
        .io = io, .limits = service().core.options.limits, .handler = {}, .bodies = BodyBudgets(96 << 10)};
    shared.limits.body_bytes = 64 << 10;
    shared.limits.header_bytes = 4 << 10;
    shared.handler = [&](HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
        heads.push_back(request.method == "HEAD");
        const auto exchange = std::make_shared<HttpExchange>(service().core, std::move(request), std::move(answer));
        if (exchange->request.path.ends_with("/metrics"))  // metrics belong to a server, which does not exist here
            exchange->fail({.status = 404, .message = "no metrics"});
        else if (const Route* const route = find_route(*exchange))
            route->answer(exchange, service().model);
    };
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    std::string said;
    {
        const auto connection = std::make_shared<HttpConnection>(
            shared, HttpSocket(io, boost::asio::generic::stream_protocol(AF_UNIX, 0), ends[0]), "fuzz");
        connection->start();
        const auto run = [&] {
            io.restart();
            while (io.poll() > 0) {
            }
            char buffer[16 << 10];
            for (ssize_t n; (n = recv(ends[1], buffer, sizeof(buffer), 0)) > 0;) said.append(buffer, size_t(n));
        };
        const size_t piece = 1 + bytes.size() / (1 + bytes.size() % 5);
        for (size_t at = 0; at < bytes.size() && !connection->closed();) {
            const ssize_t n = ::send(ends[1], bytes.data() + at, std::min(piece, bytes.size() - at), MSG_NOSIGNAL);
            if (n > 0) at += size_t(n);
            run();
        }
        run();
        connection->close();
        run();
    }
    io.restart();
    while (io.poll() > 0) {
    }
    close(ends[1]);
    require(shared.bodies.left() == int64_t{96} << 10);  // every share was returned
    for (size_t answer = 0; !said.empty();) {
        beast_http::response_parser<beast_http::string_body> parser;
        parser.eager(true);
        parser.body_limit(boost::none);
        if (answer < heads.size() && heads[answer]) parser.skip(true);
        boost::system::error_code error;
        const size_t used = parser.put(boost::asio::buffer(std::as_const(said)), error);
        require(!error && parser.is_done());
        said.erase(0, used);
        const int status = int(parser.get().result_int());
        if (status == 100) continue;
        if (!(answer < heads.size() && heads[answer])) require_answer(status, parser.get().body());
        ++answer;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    service();
    if (size == 0 || size > 128 << 10) return 0;
    const Judge judge;
    const std::string_view all(reinterpret_cast<const char*>(data), size);
    const size_t route = size_t(all[0] - 'A');
    if (all[0] >= 'A' && route < routes().size() && all.substr(1).starts_with('{'))
        answer_body(route, all.substr(1));
    else
        answer_bytes(all);
    return 0;
}
