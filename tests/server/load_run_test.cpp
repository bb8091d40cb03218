// The load generator with a server of nibble, and its computations on hand-made records.
#include "server/load_run.h"

#include "server/server_fixture.h"

namespace nibble::test {
namespace {

TEST(LoadRun, QuantilesAreNearestRanks) {
    std::vector<double> values;
    for (int i = 100; i >= 1; --i) values.push_back(i);
    const LoadQuantiles q = quantiles(values);
    EXPECT_EQ(q.p50, 50);
    EXPECT_EQ(q.p90, 90);
    EXPECT_EQ(q.p99, 99);
    EXPECT_EQ(q.mean, 50.5);
    EXPECT_EQ(quantiles({3}).p99, 3);
    EXPECT_EQ(quantiles({}).p50, 0);
}

TEST(LoadRun, SummarizesRecords) {
    LoadPlan plan;
    plan.ttft_goal = 0.5;
    plan.tpot_goal = 0.1;
    const std::vector<LoadRecord> records{
        {.ok = true, .ttft = 0.4, .latency = 1.3, .gaps = {0.3, 0.6}, .input_tokens = 5, .output_tokens = 10},
        {.ok = true, .ttft = 0.6, .latency = 1.0, .gaps = {0.4}, .input_tokens = 7, .output_tokens = 5},
        {.ok = true, .ttft = 0.1, .latency = 0.1, .input_tokens = 7, .output_tokens = 1},
        {.ok = false, .error = "gone"}};
    const LoadResult r = summarize(plan, records, 2);
    EXPECT_EQ(r.done, 3);
    EXPECT_EQ(r.failed, 1);
    EXPECT_EQ(r.first_error, "gone");
    EXPECT_EQ(r.good, 2) << "the second request's first token came too late";
    EXPECT_EQ(r.output_tokens, 16);
    EXPECT_EQ(r.input_tokens, 19);
    EXPECT_EQ(r.output_rate(), 8);
    EXPECT_DOUBLE_EQ(r.tpot.p50, 0.1);  // 0.9 / 9 and 0.4 / 4
    EXPECT_EQ(r.itl.p50, 0.4);
    EXPECT_EQ(r.ttft.p50, 0.4);
    EXPECT_EQ(r.goodput(), 1);
}

TEST(LoadRun, RunsClosedAndOpenLoops) {
    ServerSetup setup;
    setup.options.api_keys = {"key"};
    const TestServer s(std::move(setup));
    LoadPlan plan;
    plan.url.address = s.server->address();
    plan.api_key = "key";
    plan.vocabulary = 256;
    plan.input_tokens = 9;
    plan.output_tokens = 12;
    plan.requests = 20;
    plan.concurrency = 4;
    for (const double rate : {0.0, 1000.0}) {
        plan.rate = rate;
        const auto r = run_load(plan);
        ASSERT_TRUE(r.ok()) << r.error().message();
        EXPECT_EQ(r->plan.model, "tiny");
        EXPECT_EQ(r->failed, 0) << r->first_error;
        EXPECT_EQ(r->done, 20);
        EXPECT_EQ(r->output_tokens, 20 * 12);
        EXPECT_EQ(r->input_tokens, 20 * 9);
        EXPECT_LE(r->ttft.p50, r->latency.p99);
    }
    plan.rate = 0;
    plan.texts = {"a text", "another one"};
    const auto texts = run_load(plan);
    ASSERT_TRUE(texts.ok()) << texts.error().message();
    EXPECT_EQ(texts->failed, 0) << texts->first_error;
    // Failed requests are counted, with the reason.
    plan.model = "other";
    const auto failed = run_load(plan);
    ASSERT_TRUE(failed.ok()) << failed.error().message();
    EXPECT_EQ(failed->failed, 20);
    EXPECT_NE(failed->first_error.find("status 404"), std::string::npos) << failed->first_error;
    plan.model.clear();
    plan.url.address = {.unix_path = "/nowhere/at/all"};
    EXPECT_FALSE(run_load(plan).ok());
}

TEST(ServerPage, LoadsNothingFromOtherServers) {
    const TestServer s;
    const HttpResponse page = s.get("/");
    EXPECT_EQ(page.status, 200);
    EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
    EXPECT_TRUE(page.body.ends_with("</html>\n"));
    EXPECT_NE(header_of(page.headers, "content-security-policy").find("default-src 'none'"), std::string::npos);
    const size_t icon = page.body.find("<link");
    EXPECT_TRUE(page.body.substr(icon).starts_with("<link rel=\"icon\" href=\"data:"));
    EXPECT_EQ(page.body.find("<link", icon + 1), std::string::npos);
    for (const char* outside : {" src=", "@import", "url("})
        EXPECT_EQ(page.body.find(outside), std::string::npos) << outside;
    // Every route that the page requests exists.
    for (const char* path : {"/metrics", "/v1/manifest", "/v1/models"}) {
        EXPECT_NE(page.body.find(path), std::string::npos);
        EXPECT_EQ(s.get(path).status, 200);
    }
    // Every counter in the page's charts is in /metrics.
    const std::string metrics = s.get("/metrics").body;
    for (size_t at = 0; (at = page.body.find("\"vllm:", at)) != std::string::npos; ++at) {
        const std::string name = page.body.substr(at + 1, page.body.find('"', at + 1) - at - 1);
        EXPECT_NE(metrics.find("\n" + name + "{"), std::string::npos) << name;
    }
}

}  // namespace
}  // namespace nibble::test
