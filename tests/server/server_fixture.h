// A server with the model of tests/data/chat, in this process, on a free port.
#pragma once

#include "base/json.h"
#include "http/client.h"
#include "server/model_server.h"
#include "support/chat_model.h"

#include <functional>
#include <mutex>
#include <thread>

namespace nibble::test {

inline constexpr std::chrono::milliseconds server_patience{120'000};

struct ServerSetup {
    ServerOptions options;
    EngineOptions engine;
    std::optional<std::string> chat_template;  // replaces the model's template
    std::string tool_calls = "auto";           // ChatOptions::tools
    std::string license;                       // license of the model
    bool ready = true;
};

class TestServer {
public:
    explicit TestServer(ServerSetup setup = {}) {
        setup.options.log = [this](const std::string& line) {
            const std::lock_guard lock(mutex_);
            log_.push_back(line);
        };
        auto listening = ModelServer::listen(std::move(setup.options));
        EXPECT_TRUE(listening.ok()) << listening.error().message();
        server = *std::move(listening);
        if (setup.engine.kv_memory == 0) setup.engine.kv_memory = int64_t{64} << 20;
        engine_options_ = setup.engine;
        template_ = setup.chat_template;
        license_ = setup.license;
        tool_calls_ = setup.tool_calls;
        if (setup.ready) serve();
    }

    void serve() {
        auto engine = Engine::create(model_pointer(), *chat.tokenizer, engine_options_);
        EXPECT_TRUE(engine.ok()) << engine.error().message();
        auto form = template_ ? ChatTemplate::parse(*template_) : ChatTemplate::open(test_data("chat"));
        EXPECT_TRUE(form.ok()) << form.error().message();
        auto format = ChatFormat::create(*chat.tokenizer, std::make_shared<const ChatTemplate>(*std::move(form)),
                                         {{"bos_token", "<s>"}, {"eos_token", "<mask>"}}, {.tools = tool_calls_});
        EXPECT_TRUE(format.ok()) << format.error().message();
        Request like;
        like.sampling.temperature = 1;
        like.eos = {271};
        ServedModel model{.names = {"tiny", "alias"},
                          .root = "tests/data/chat",
                          .engine = *std::move(engine),
                          .tokenizer = *chat.tokenizer,
                          .format = std::make_shared<const ChatFormat>(*std::move(format)),
                          .like = std::move(like),
                          .tokenizer_info = {{"eos_token", "<mask>"}},
                          .created = 1,
                          .license = license_};
        const Status grammars = model.prepare_grammars();
        EXPECT_TRUE(grammars.ok()) << grammars.error().message();
        model.weights = std::make_unique<ServedWeights>(
            *model.engine, std::shared_ptr<Model>(std::shared_ptr<void>(), &*chat.model), chat.checkpoint, chat.pool);
        server->serve(std::move(model));
    }

    std::shared_ptr<const LanguageModel> model_pointer() const { return {std::shared_ptr<void>(), &*chat.model}; }
    HttpClient client() const {
        auto c = HttpClient::connect(server->address(), server_patience);
        EXPECT_TRUE(c.ok()) << c.error().message();
        return *std::move(c);
    }
    HttpResponse send(const HttpRequest& request) const {
        auto r = client().send(request);
        EXPECT_TRUE(r.ok()) << request.path << ": " << r.error().message();
        return r.ok() ? *std::move(r) : HttpResponse{.status = 0};
    }
    HttpResponse get(const std::string& path) const { return send({.path = path}); }
    HttpResponse post(const std::string& path, const std::string& body, HttpHeaders headers = {}) const {
        return send({.method = "POST", .path = path, .headers = std::move(headers), .body = body});
    }
    // Returns the response's JSON; expects this status.
    Json ask(const std::string& path, const Json& body, int status = 200) const {
        const HttpResponse r = post(path, body.dump());
        EXPECT_EQ(r.status, status) << r.body;
        auto json = parse_json(r.body);
        EXPECT_TRUE(json.ok()) << r.body;
        return json.ok() ? *std::move(json) : Json();
    }
    // Returns all events of a stream; with `done`, the last must be [DONE], which is left out.
    std::vector<std::pair<std::string, Json>> events(const std::string& path, const Json& body, bool done) const {
        std::vector<std::pair<std::string, Json>> all;
        bool ended = false;
        SseReader reader;
        HttpClient c = client();
        const auto note = [&](const SseEvent& e) {
            EXPECT_FALSE(ended) << e.data;
            if (e.data == "[DONE]") {
                ended = true;
                return;
            }
            auto json = parse_json(e.data);
            EXPECT_TRUE(json.ok()) << e.data;
            if (json.ok()) all.emplace_back(e.name, *std::move(json));
        };
        const auto r = c.send({.method = "POST", .path = path, .body = body.dump()},
                              [&](const HttpResponse& head, std::string_view piece) {
                                  EXPECT_EQ(head.status, 200) << piece;
                                  reader.push(piece, note);
                                  return true;
                              });
        EXPECT_TRUE(r.ok()) << r.error().message();
        EXPECT_EQ(ended, done);
        return all;
    }
    std::vector<Json> stream(const std::string& path, const Json& body) const {
        std::vector<Json> out;
        for (auto& [name, json] : events(path, body, true)) out.push_back(std::move(json));
        return out;
    }
    std::vector<std::string> log() const {
        const std::lock_guard lock(mutex_);
        return log_;
    }
    // Returns the sum of all lines with this name.
    double metric(const std::string& name) const {
        const std::string text = get("/metrics").body;
        double sum = 0;
        bool found = false;
        for (size_t at = 0; (at = text.find("\n" + name + "{", at)) != text.npos; ++at) {
            sum += std::stod(text.substr(text.find("} ", at) + 2));
            found = true;
        }
        EXPECT_TRUE(found) << name;
        return sum;
    }
    static testing::AssertionResult wait_until(const std::function<bool()>& done) {
        for (const auto end = std::chrono::steady_clock::now() + server_patience;
             std::chrono::steady_clock::now() < end;) {
            if (done()) return testing::AssertionSuccess();
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return testing::AssertionFailure() << "waited for " << server_patience.count() << " ms";
    }

    ChatModel chat;  // must outlive the server

private:
    EngineOptions engine_options_;
    std::optional<std::string> template_;
    std::string license_, tool_calls_;
    mutable std::mutex mutex_;
    std::vector<std::string> log_;

public:
    std::unique_ptr<ModelServer> server;
};

}  // namespace nibble::test
