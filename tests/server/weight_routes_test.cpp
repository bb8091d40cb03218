// The routes that replace the weights of a served model. The oracle is a model that is loaded from the same values.
#include "formats/minifloat.h"
#include "model/cpu/widen.h"
#include "server/routes.h"
#include "server_fixture.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace nibble::test {
namespace {

struct NewValues {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> values;
};

// The bytes of a safetensors file with F32 tensors, written from its definition.
std::string f32_file(std::span<const NewValues> tensors) {
    Json header = Json::object();
    std::string data;
    for (const NewValues& t : tensors) {
        const size_t begin = data.size();
        data.append(reinterpret_cast<const char*>(t.values.data()), t.values.size() * sizeof(float));
        header[t.name] = {{"dtype", "F32"}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const uint64_t size = text.size();
    return std::string(reinterpret_cast<const char*>(&size), 8) + text + data;
}

class WeightRoutes : public testing::Test {
protected:
    static ServerSetup setup() {
        ServerSetup s;
        s.options.weight_routes = true;
        return s;
    }
    void SetUp() override {
        for (size_t i = 0; i < server_.chat.checkpoint->tensors().size(); ++i) {
            const CheckpointTensor& t = server_.chat.checkpoint->tensors()[i];
            Matrix scratch;
            const auto view = server_.chat.checkpoint->read_plain(i, 0, t.rows(), scratch);
            ASSERT_TRUE(view.ok());
            NewValues next{t.name, t.shape, std::vector<float>(size_t(t.rows() * t.cols()))};
            widen(*view, next.values.data());
            for (size_t k = 0; k < next.values.size(); ++k)  // BF16 values, so that no rounding is left to the server
                next.values[k] = bf16_to_float(bf16_from_float(next.values[k] * (0.75f + 0.1f * float(k % 5))));
            values_.push_back(std::move(next));
        }
        std::filesystem::copy(test_data("chat"), folder_ / "model");
        write_file(folder_ / "model/model.safetensors", f32_file(values_));
    }
    HttpResponse post(const std::string& path, const std::string& body = {}, std::string type = "application/json",
                      const std::vector<std::pair<std::string, std::string>>& query = {}) const {
        std::string target = path;
        for (const auto& [name, value] : query) target += (target == path ? "?" : "&") + name + "=" + value;
        return server_.send({.method = "POST",
                             .path = std::move(target),
                             .headers = {{"Content-Type", std::move(type)}},
                             .body = body});
    }
    HttpResponse send_file(std::span<const NewValues> tensors,
                           const std::vector<std::pair<std::string, std::string>>& query = {}) const {
        return post("/update_weights", f32_file(tensors), "application/octet-stream", query);
    }
    std::vector<double> scores() const {
        const Json answer =
            server_.ask("/v1/completions", {{"prompt", prompt_}, {"max_tokens", 1}, {"prompt_logprobs", 0}});
        std::vector<double> out;
        for (const Json& place : answer["choices"][0]["prompt_logprobs"])
            if (place.is_object()) out.push_back(place.begin().value()["logprob"].get<double>());
        return out;
    }
    std::vector<double> expected_scores(const std::filesystem::path& model) const {
        const ChatModel chat(2, model);
        const std::vector<int32_t> tokens = chat.encode(prompt_);
        const std::vector<double> all = chat.log_probs(tokens);
        std::vector<double> out;
        for (size_t i = 1; i < tokens.size(); ++i)
            out.push_back(all[(i - 1) * size_t(chat.model->config().vocab) + size_t(tokens[i])]);
        return out;
    }
    void expect_scores(const std::filesystem::path& model) const {
        const std::vector<double> expected = expected_scores(model), got = scores();
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-4) << i;
    }
    Json state(const std::string& path) const { return *parse_json(server_.get(path).body); }

    const std::string prompt_ = "hello world, the quick brown fox";
    TestServer server_{setup()};
    TempDir folder_;
    std::vector<NewValues> values_;
};

TEST_F(WeightRoutes, AnswersAreThoseOfAModelWithTheNewValues) {
    expect_scores(test_data("chat"));
    EXPECT_EQ(state("/weight_info")["weight_version"], "default");
    const HttpResponse sent = send_file(values_, {{"version", "7"}, {"partial", "false"}});
    EXPECT_EQ(sent.status, 200) << sent.body;
    EXPECT_EQ(state("/weight_info")["weight_version"], "7");
    expect_scores(folder_ / "model");

    const Json first{{"update_info", {{"path", test_data("chat").string()}}}};
    EXPECT_EQ(post("/update_weights", first.dump()).status, 200);
    expect_scores(test_data("chat"));

    const Json disk{{"model_path", (folder_ / "model").string()}, {"weight_version", "disk"}, {"flush_cache", true}};
    EXPECT_EQ(post("/update_weights_from_disk", disk.dump()).status, 200);
    EXPECT_EQ(state("/weight_info")["weight_version"], "disk");
    expect_scores(folder_ / "model");
}

TEST_F(WeightRoutes, AnUpdateOfSeveralRequestsTakesEffectAtItsEnd) {
    EXPECT_EQ(post("/finish_weight_update").status, 400) << "none has begun";
    EXPECT_EQ(post("/start_weight_update").status, 200);
    const size_t half = values_.size() / 2;
    EXPECT_EQ(send_file(std::span(values_).first(half)).status, 200);
    expect_scores(test_data("chat"));
    NewValues wrong = values_[0];
    wrong.name = "model.nothing";
    EXPECT_EQ(send_file({&wrong, 1}).status, 400) << "the values of the first request stay";
    EXPECT_EQ(send_file(std::span(values_).subspan(half)).status, 200);
    EXPECT_EQ(post("/finish_weight_update", R"({"weight_version": "n", "partial": false})").status, 200);
    expect_scores(folder_ / "model");
    EXPECT_EQ(state("/weight_info")["weight_version"], "n");
    EXPECT_EQ(post("/finish_weight_update").status, 400) << "it has ended";
    // A trainer that starts again discards what another one has left.
    EXPECT_EQ(post("/start_weight_update").status, 200);
    EXPECT_EQ(send_file(std::span(values_).first(1)).status, 200);
    EXPECT_EQ(post("/start_weight_update").status, 200);
    EXPECT_EQ(post("/finish_weight_update", R"({"partial": false})").status, 400) << "no value was sent since";
}

TEST_F(WeightRoutes, ErrorsNameTheFieldAndKeepTheWeights) {
    const auto refused = [&](const HttpResponse& r, const char* message, int status = 400) {
        EXPECT_EQ(r.status, status) << r.body;
        EXPECT_THAT(r.body, testing::HasSubstr(message));
    };
    NewValues bad = values_[0];
    bad.shape = {1, 2};
    bad.values.resize(2);
    refused(send_file({&bad, 1}), "has shape [1, 2]");
    bad = values_[0];
    bad.values[3] = std::numeric_limits<float>::infinity();
    refused(send_file({&bad, 1}), "element 3 is not finite");
    refused(send_file(std::span(values_).first(1), {{"partial", "false"}}), "is missing among the new weights");
    refused(send_file(values_, {{"mode", "hurry"}}), "choose abort, wait or keep");
    refused(send_file(values_, {{"partial", "maybe"}}), "is not true or false");
    refused(send_file(values_, {{"speed", "1"}}), "'speed'");
    refused(send_file(values_, {{"version", "1"}, {"version", "2"}}), "occurs twice");
    refused(send_file(values_, {{"recipe", "no_recipe"}}), "no_recipe");
    refused(post("/update_weights", "no file", "application/octet-stream"), "safetensors");
    refused(post("/update_weights"), "update_info");
    refused(post("/update_weights", R"({"update_info": {"names": ["a"]}})"), "path");
    refused(post("/update_weights", R"({"update_info": {"path": "x", "names": ["a"]}})"), "names");
    refused(post("/update_weights", R"({"update_info": {"path": "/no/such/folder"}})"), "/no/such/folder");
    refused(post("/update_weights_from_disk", "{}"), "model_path");
    refused(post("/update_weights_from_disk", R"({"model_path": "x", "flush_cache": false})"), "flush_cache");
    refused(post("/sleep", "", "", {{"level", "3"}}), "level 3");
    refused(post("/sleep", "", "", {{"level", "one"}}), "whole number");
    refused(post("/wake_up", "", "", {{"tags", "all"}}), "tags");
    EXPECT_EQ(state("/weight_info")["weight_version"], "default");
    expect_scores(test_data("chat"));
}

TEST_F(WeightRoutes, APausedModelAnswersAfterwards) {
    EXPECT_EQ(post("/pause", "", "", {{"mode", "keep"}}).status, 200);
    EXPECT_EQ(state("/is_paused")["is_paused"], true);
    std::vector<double> late;
    std::thread asks([&] { late = scores(); });
    EXPECT_EQ(send_file(values_).status, 200);
    EXPECT_EQ(state("/is_paused")["is_paused"], true) << "an update does not end the pause";
    EXPECT_EQ(post("/resume").status, 200);
    asks.join();
    EXPECT_EQ(late, scores());
    EXPECT_EQ(state("/is_paused")["is_paused"], false);
}

TEST_F(WeightRoutes, ASleepingModelWakesUpWithItsWeights) {
    const std::vector<double> before = scores();
    for (const char* level : {"1", "2"}) {
        EXPECT_EQ(post("/sleep", "", "", {{"level", level}}).status, 200);
        EXPECT_EQ(state("/is_sleeping")["is_sleeping"], true);
        EXPECT_EQ(server_.get("/health").status, 200);
        if (level[0] == '2') {
            EXPECT_EQ(post("/wake_up", "", "", {{"tags", "kv_cache"}}).status, 400) << "there are no weights";
            EXPECT_EQ(post("/wake_up", "", "", {{"tags", "weights"}}).status, 200);
            EXPECT_EQ(state("/is_sleeping")["is_sleeping"], true);
        }
        EXPECT_EQ(post("/wake_up").status, 200);
        EXPECT_EQ(state("/is_sleeping")["is_sleeping"], false);
        EXPECT_EQ(scores(), before);
    }
    EXPECT_EQ(post("/reset_prefix_cache").status, 200);
}

TEST(WeightRoutesAccess, NeedTheFlagAndTheKey) {
    const TestServer plain;
    for (const Route& route : all_routes())
        if (route.of_weights) {
            const HttpResponse r =
                plain.send({.method = route.takes("POST") ? "POST" : "GET", .path = std::string(route.path)});
            EXPECT_EQ(r.status, 404) << route.path;
            EXPECT_THAT(r.body, testing::HasSubstr("--weight-routes"));
        }
    ServerSetup setup;
    setup.options.weight_routes = true;
    setup.options.api_keys = {"secret"};
    const TestServer guarded(std::move(setup));
    for (const Route& route : all_routes()) {
        if (!route.of_weights) continue;
        const char* method = route.takes("POST") ? "POST" : "GET";
        EXPECT_EQ(guarded.send({.method = method, .path = std::string(route.path)}).status, 401) << route.path;
    }
    EXPECT_EQ(guarded.post("/pause", "", {{"Authorization", "Bearer secret"}}).status, 200);
    EXPECT_EQ(guarded.post("/resume", "", {{"Authorization", "Bearer secret"}}).status, 200);
}

}  // namespace
}  // namespace nibble::test
