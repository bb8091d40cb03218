// Every route of the server's table (server/routes.h) over HTTP. A route without an example here, or without a
// description in docs/server-api.md, fails the test.
#include "server/routes.h"

#include "server_fixture.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>

namespace nibble::test {
namespace {

// A request to a route, and the expected response.
struct Example {
    Json body;               // body of a POST request
    Json shape;              // shape of the response, see has_shape(); null: it is not JSON
    std::string type, text;  // for responses that are not JSON: content type, and contained text ("": the body is
                             // empty)
    std::string path;        // if it differs from the route's
};

// Checks that `answer` has every member of `shape`: texts are equal ("": any text), numbers match any number, null
// matches anything, true and false are equal, and lists begin with the elements of the shape's list.
bool has_shape(const Json& answer, const Json& shape) {
    if (shape.is_null()) return true;
    if (shape.is_object()) {
        if (!answer.is_object()) return false;
        for (const auto& [name, value] : shape.items())
            if (!answer.contains(name) || !has_shape(answer[name], value)) return false;
        return true;
    }
    if (shape.is_array()) return answer.is_array() && !answer.empty() && has_shape(answer[0], shape[0]);
    if (shape.is_string())
        return answer.is_string() && (shape.get_ref<const std::string&>().empty() || answer == shape);
    return shape.is_number() ? answer.is_number() : answer == shape;
}

const std::map<std::string, Example, std::less<>>& examples() {
    static const Json messages = Json::array({{{"role", "user"}, {"content", "x"}}});
    static const Json model{{"id", ""},   {"object", "model"}, {"created", 0},       {"owned_by", "system"},
                            {"root", ""}, {"parent", nullptr}, {"max_model_len", 0}, {"permission", {{{"id", ""}}}}};
    static const Json prompt{{"model", "tiny"}, {"prompt", ""}, {"prompt_token_ids", {0}}};
    static const Json usage{{"prompt_tokens", 0}, {"completion_tokens", 0}, {"total_tokens", 0}};
    static const Json service{{"object", "health.response"}, {"message", ""}, {"status", ""}};
    static const Example page{.type = "text/html; charset=utf-8", .text = "<script>"};
    static const Example metrics{.type = "text/plain; version=0.0.4; charset=utf-8",
                                 .text = "vllm:num_requests_running{"};
    static const Example message{.shape = {{"message", ""}}};
    static const std::map<std::string, Example, std::less<>> all{
        {"/v1/chat/completions",
         {.body = {{"messages", messages}, {"max_tokens", 2}, {"temperature", 0}},
          .shape = {{"id", ""},
                    {"object", "chat.completion"},
                    {"created", 0},
                    {"model", "tiny"},
                    {"choices",
                     {{{"index", 0},
                       {"message", {{"role", "assistant"}, {"content", ""}}},
                       {"logprobs", nullptr},
                       {"finish_reason", "length"}}}},
                    {"usage", usage}}}},
        {"/v1/completions",
         {.body = {{"prompt", "a"}, {"max_tokens", 2}, {"temperature", 0}},
          .shape = {{"id", ""},
                    {"object", "text_completion"},
                    {"created", 0},
                    {"model", "tiny"},
                    {"choices", {{{"index", 0}, {"text", ""}, {"logprobs", nullptr}, {"finish_reason", "length"}}}},
                    {"usage", usage}}}},
        {"/v1/messages",
         {.body = {{"messages", messages}, {"max_tokens", 2}, {"temperature", 0}},
          .shape = {{"id", ""},
                    {"type", "message"},
                    {"role", "assistant"},
                    {"model", "tiny"},
                    {"content", {{{"type", "text"}, {"text", ""}}}},
                    {"stop_reason", "max_tokens"},
                    {"usage", {{"input_tokens", 0}, {"output_tokens", 0}}}}}},
        {"/v1/messages/count_tokens", {.body = {{"messages", messages}}, .shape = {{"input_tokens", 0}}}},
        {"/v1/responses",
         {.body = {{"input", "hello"}, {"max_output_tokens", 2}, {"temperature", 0}},
          .shape =
              {{"id", ""},
               {"object", "response"},
               {"created_at", 0},
               {"status", "incomplete"},
               {"model", "tiny"},
               {"output",
                {{{"type", "message"}, {"role", "assistant"}, {"content", {{{"type", "output_text"}, {"text", ""}}}}}}},
               {"usage", {{"input_tokens", 0}, {"output_tokens", 0}, {"total_tokens", 0}}}}}},
        {"/v1/responses/*", {.shape = {{"id", ""}, {"object", "response"}, {"output", {{{"type", "message"}}}}}}},
        {"/v1/chat/completions/render", {.body = {{"messages", messages}}, .shape = prompt}},
        {"/v1/completions/render", {.body = {{"prompt", "a"}}, .shape = prompt}},
        {"/tokenize", {.body = {{"prompt", "a"}}, .shape = {{"tokens", {0}}, {"count", 0}, {"max_model_len", 0}}}},
        {"/tokenizer_info", {.shape = {{"eos_token", "<mask>"}}}},
        {"/detokenize", {.body = {{"tokens", {70, 71}}}, .shape = {{"prompt", ""}}}},
        {"/", page},
        {"/index.html", page},
        {"/v1/models", {.shape = {{"object", "list"}, {"data", Json::array({model})}}}},
        {"/v1/models/*", {.shape = model, .path = "/v1/models/alias"}},
        {"/health", {}},
        {"/ping", {}},
        {"/v1/health/live", {.shape = service}},
        {"/v1/health/ready", {.shape = service}},
        {"/version", {.shape = {{"version", ""}}}},
        {"/v1/version", {.shape = {{"release", ""}, {"api", ""}}}},
        {"/v1/metadata",
         {.shape = {{"version", ""},
                    {"assetInfo", {""}},
                    {"licenseInfo",
                     {{"name", ""},
                      {"path", ""},
                      {"sha", "36cec8084ec54da0813a8549beda71763774b882bb2d941d12b679803e4d333b"},
                      {"size", 0},
                      {"type", "file"}}},
                    {"modelInfo", {{{"modelUrl", ""}, {"shortName", "tiny"}}}},
                    {"repository_override", ""},
                    {"selectedModelProfileId", ""}}}},
        {"/v1/manifest", {.shape = {{"model", "tiny"}, {"root", ""}, {"profile", Json::object()}}}},
        {"/v1/license", {.type = "text/plain; charset=utf-8", .text = "do what you like"}},
        {"/metrics", metrics},
        {"/v1/metrics", metrics},
        {"/start_weight_update", message},
        {"/update_weights",
         {.body = {{"update_info", {{"path", test_data("chat").string()}}}}, .shape = message.shape}},
        {"/finish_weight_update", {.body = {{"weight_version", "seven"}}, .shape = message.shape}},
        {"/update_weights_from_disk",
         {.body = {{"model_path", test_data("chat").string()}, {"weight_version", "eight"}},
          .shape = {{"success", true}, {"message", ""}}}},
        {"/weight_info", {.shape = {{"weight_version", "eight"}}}},
        {"/get_world_size", {.shape = {{"world_size", 1}}}},
        {"/pause", {.shape = {{"status", "paused"}}}},
        {"/resume", {.shape = {{"status", "resumed"}}}},
        {"/is_paused", {.shape = {{"is_paused", false}}}},
        {"/sleep", {}},
        {"/wake_up", {}},
        {"/is_sleeping", {.shape = {{"is_sleeping", false}}}},
        {"/reset_prefix_cache", {}},
    };
    return all;
}

class Routes : public testing::Test {
protected:
    static void SetUpTestSuite() {
        ServerSetup setup;
        setup.license = "do what you like";
        setup.options.weight_routes = true;
        server_ = std::make_unique<TestServer>(std::move(setup));
        const Json stored = server_->ask("/v1/responses", {{"input", "hello"}, {"max_output_tokens", 2}});
        stored_ = "/v1/responses/" + stored["id"].get<std::string>();
    }
    static void TearDownTestSuite() { server_.reset(); }

    static const Example& example(const Route& route) {
        static const Example none;
        const auto found = examples().find(route.path);
        EXPECT_NE(found, examples().end()) << route.path << " has no example in this file";
        return found == examples().end() ? none : found->second;
    }
    static std::string path(const Route& route) {
        if (route.path == "/v1/responses/*") return stored_;
        return example(route).path.empty() ? std::string(route.path) : example(route).path;
    }
    static HttpResponse ask(const std::string& method, const std::string& path, const std::string& body = {}) {
        return server_->send(
            {.method = method, .path = path, .headers = {{"Content-Type", "application/json"}}, .body = body});
    }
    // The error has the form of the path's API.
    static void expect_error(const HttpResponse& r, int status, const std::string& path) {
        static const Json openai{{"error", {{"message", ""}, {"type", ""}, {"param", nullptr}, {"code", nullptr}}}};
        static const Json anthropic{{"type", "error"}, {"error", {{"type", ""}, {"message", ""}}}};
        EXPECT_EQ(r.status, status) << path << ": " << r.body;
        EXPECT_EQ(header_of(r.headers, "content-type"), "application/json") << path;
        const auto json = parse_json(r.body);
        ASSERT_TRUE(json.ok()) << path << ": " << r.body;
        EXPECT_TRUE(has_shape(*json, path.starts_with("/v1/messages") ? anthropic : openai)) << path << ": " << r.body;
    }

    static inline std::unique_ptr<TestServer> server_;
    static inline std::string stored_;  // the path of a stored response
};

TEST_F(Routes, ShapesDistinguishAnswers) {
    const Json shape{{"a", ""}, {"b", {{{"c", 0}}}}, {"d", "x"}};
    EXPECT_TRUE(has_shape(Json{{"a", "any"}, {"b", {{{"c", 5}}}}, {"d", "x"}, {"more", 1}}, shape));
    EXPECT_FALSE(has_shape(Json{{"b", {{{"c", 5}}}}, {"d", "x"}}, shape));
    EXPECT_FALSE(has_shape(Json{{"a", 1}, {"b", {{{"c", 5}}}}, {"d", "x"}}, shape));
    EXPECT_FALSE(has_shape(Json{{"a", ""}, {"b", Json::array()}, {"d", "x"}}, shape));
    EXPECT_FALSE(has_shape(Json{{"a", ""}, {"b", {{{"c", "5"}}}}, {"d", "x"}}, shape));
    EXPECT_FALSE(has_shape(Json{{"a", ""}, {"b", {{{"c", 5}}}}, {"d", "y"}}, shape));
}

TEST_F(Routes, AnswerInTheFormatOfTheirApi) {
    for (const Route& route : all_routes())
        for (const std::string method : {"GET", "HEAD", "POST"}) {
            if (!route.takes(method)) continue;
            const Example& expected = example(route);
            const HttpResponse r = ask(method, path(route), expected.body.is_null() ? "" : expected.body.dump());
            SCOPED_TRACE(fmt::format("{} {}: {}", method, path(route), r.body.substr(0, 500)));
            EXPECT_EQ(r.status, 200);
            if (method == "HEAD") {
                EXPECT_EQ(r.body, "");
            } else if (expected.shape.is_null()) {
                EXPECT_EQ(header_of(r.headers, "content-type"), expected.type);
                if (expected.text.empty())
                    EXPECT_EQ(r.body, "");
                else
                    EXPECT_THAT(r.body, testing::HasSubstr(expected.text));
            } else {
                EXPECT_EQ(header_of(r.headers, "content-type"), "application/json");
                const auto json = parse_json(r.body);
                ASSERT_TRUE(json.ok());
                EXPECT_TRUE(has_shape(*json, expected.shape)) << expected.shape;
            }
        }
}

TEST_F(Routes, RefuseOtherMethodsAndNameTheAllowedOnes) {
    for (const Route& route : all_routes()) {
        std::set<std::string> taken{"OPTIONS"};
        for (const std::string method : {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}) {
            if (route.takes(method)) {
                taken.insert(method);
                continue;
            }
            const HttpResponse r = ask(method, path(route), "{}");
            EXPECT_EQ(header_of(r.headers, "allow"), route.allow()) << method << " " << route.path;
            if (method == "HEAD")
                EXPECT_EQ(r.status, 405) << route.path;
            else
                expect_error(r, 405, path(route));
        }
        std::set<std::string> named;
        std::istringstream words{std::string(route.allow())};
        for (std::string word; words >> word;) named.insert(word.substr(0, word.find(',')));
        EXPECT_EQ(named, taken) << route.path;
    }
}

TEST_F(Routes, RefuseWrongBodies) {
    for (const Route& route : all_routes())
        if (route.methods == RouteMethods::post)
            for (const char* body : {"", "{", "[]", "\"x\"", "{}", "{\"model\": 1}", "{\"prompt\": \"\xff\"}"})
                expect_error(ask("POST", path(route), body), 400, path(route));
}

TEST_F(Routes, OtherPathsAreUnknown) {
    for (const Route& route : all_routes())
        if (!route.path.ends_with("*"))
            for (const char* more : {"x", "/nowhere"})
                for (const char* method : {"GET", "POST", "DELETE"}) {
                    const std::string other = std::string(route.path) + more;
                    // matches /v1/models/*
                    if (other == "/v1/models/nowhere" && method != std::string("GET")) continue;
                    // matches /v1/responses/*
                    if (other == "/v1/responses/nowhere" && method == std::string("POST")) continue;
                    expect_error(ask(method, other, "{}"), 404, other);
                }
    expect_error(ask("GET", "/v1/models/other"), 404, "/v1/models/other");
}

TEST_F(Routes, AreThoseOfTheDocumentation) {
    std::ifstream in(std::string(NIBBLE_SOURCE_DIR) + "/docs/server-api.md");
    std::set<std::string> named, known;
    bool inside = false;
    for (std::string line; std::getline(in, line);) {
        if (line.starts_with("## ")) inside = line == "## Routes";
        if (!inside || !line.starts_with("| `")) continue;
        const std::string cell = line.substr(0, line.find('|', 1));
        static const std::regex word("`(?:[A-Z]+ )?(/[^` ]*)`");
        for (std::sregex_iterator it(cell.begin(), cell.end(), word), end; it != end; ++it) named.insert((*it)[1]);
    }
    for (const Route& route : all_routes()) known.emplace(route.path);
    if (named.erase("/v1/models/NAME")) named.insert("/v1/models/*");
    if (named.erase("/v1/responses/ID") && named.erase("/v1/responses/ID/input_items")) named.insert("/v1/responses/*");
    EXPECT_EQ(named, known);
}

}  // namespace
}  // namespace nibble::test
