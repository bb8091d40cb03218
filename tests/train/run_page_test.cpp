#include "run/event_file.h"
#include "run/history.h"
#include "run/log.h"
#include "support/files.h"
#include "support/markup_check.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Creates a run of `steps` steps in FOLDER/NAME whose loss ends near `end`.
fs::path made_up_run(const fs::path& folder, const std::string& name, const std::string& group, double end,
                     int64_t steps = 700) {
    fs::create_directories(folder / name);
    auto log = RunLog::create(folder / name / run_log_name, {{"run", {{"name", name}, {"group", group}}}});
    EXPECT_TRUE(log.ok()) << log.error().message();
    for (int64_t i = 1; i <= steps; ++i) {
        const double loss = end + 3.0 / double(i) + 0.05 * double(i * 7 % 11);
        EXPECT_TRUE(log->add(to_json(LoggedStep{.step = i - 1,
                                                .loss = i == 40 ? std::nan("") : loss,
                                                .gradient_norm = 1 + 1.0 / double(i),
                                                .learning_rate = 1e-3,
                                                .seconds = 0.5,
                                                .tokens = 2048,
                                                .skipped = i == 40,
                                                .validation = i % 100 ? std::optional<double>() : end + 0.1}))
                        .ok());
    }
    EXPECT_TRUE(log->add({{"step", steps}, {"warning", "the disk is <full>"}}).ok());
    return folder / name;
}

TEST(RunHistoryFile, ReadsTheLog) {
    test::TempDir dir;
    const auto path = made_up_run(dir.path(), "a", "bf16", 2.0);
    for (const fs::path& given : {path, path / run_log_name, path / ""}) {
        const auto run = read_run_history(given);
        ASSERT_TRUE(run.ok()) << run.error().message();
        EXPECT_EQ(run->name, "a");
        EXPECT_EQ(run->group, "bf16");
        ASSERT_EQ(run->steps.size(), 700u);
        EXPECT_EQ(run->steps[6].step, 6);
        EXPECT_NEAR(run->steps[6].loss, 2.0 + 3.0 / 7 + 0.05 * (49 % 11), 1e-12);
        EXPECT_DOUBLE_EQ(run->steps[6].tokens_per_second(), 4096);
        EXPECT_TRUE(std::isnan(run->steps[39].loss) && run->steps[39].skipped);
        EXPECT_FALSE(run->steps[98].validation);
        EXPECT_EQ(run->steps[99].validation, 2.1);
        EXPECT_EQ(run->last_validation(), 2.1);
        EXPECT_EQ(run->warnings, (std::vector<std::string>{"the disk is <full>"}));
    }
    const auto message = [&](const fs::path& given) {
        const auto run = read_run_history(given);
        EXPECT_FALSE(run.ok()) << given;
        return run.ok() ? std::string() : run.error().message();
    };
    EXPECT_NE(message(dir / "none").find("does not exist"), std::string::npos);
    test::write_file(dir / "b.jsonl", "{\"run\": {}}\n{\"step\": 1, \"loss\": \"x\"}\n");
    EXPECT_NE(message(dir / "b.jsonl").find("b.jsonl: line 2: 'loss'"), std::string::npos);
    test::write_file(dir / "c.jsonl", "{\"run\": {}}\n");
    EXPECT_NE(message(dir / "c.jsonl").find("no steps yet"), std::string::npos);
    test::write_file(dir / "d.jsonl", "{\"step\": 1}\n");
    EXPECT_NE(message(dir / "d.jsonl").find("not the log"), std::string::npos);
}

TEST(RunPage, HoldsTheRunsAndTheirCurves) {
    test::TempDir dir;
    std::vector<RunHistory> runs;
    for (const auto& [name, group, end] :
         {std::tuple{"first", "bf16", 2.00}, std::tuple{"second", "bf16", 2.02}, std::tuple{"<third>", "nvfp4", 2.11}})
        runs.push_back(*read_run_history(made_up_run(dir.path(), name, group, end)));
    const std::string page = run_page(runs);
    EXPECT_EQ(test::check_markup(page).error, "");
    EXPECT_EQ(page.find("src=\"http"), std::string::npos);
    EXPECT_EQ(page.find("<third>"), std::string::npos) << "names are text";
    EXPECT_LT(page.size(), 300'000u) << "a point stands for several of the 700 steps";
    const Json data = test::page_data(page);
    ASSERT_EQ(data["runs"].size(), 3u);
    const Json& run = data["runs"][2];
    EXPECT_EQ(run["name"], "<third>");
    EXPECT_EQ(run["group"], "nvfp4");
    EXPECT_EQ(run["warnings"], Json({"the disk is <full>"}));
    EXPECT_EQ(run["steps"], 700);
    EXPECT_EQ(run["tokens"], 700 * 2048);
    EXPECT_EQ(run["seconds"], 350);
    EXPECT_EQ(run["skipped"], 1);
    EXPECT_EQ(run["loss"], mean_loss(runs[2], 20));
    EXPECT_EQ(run["validation"], 2.21);
    for (const auto& [key, curve] : run["curves"].items()) EXPECT_GT(curve.size(), 6u) << key;
    EXPECT_EQ(run["curves"]["validation"].size(), 7u);
    EXPECT_EQ(run["curves"]["validation"][0], Json({99, 2.21}));
    EXPECT_EQ(run["curves"]["tokens_per_second"][0], Json({0, 2, 4096, 4096, 4096}));
    // The loss of step 39 is not a number: its point is the mean of the other two steps.
    const auto loss = [](int i) { return 2.11 + 3.0 / i + 0.05 * (i * 7 % 11); };
    const Json& point = run["curves"]["loss"][13];
    EXPECT_EQ(point[0], 39);
    EXPECT_EQ(point[1], 41);
    EXPECT_NEAR(point[2].get<double>(), (loss(41) + loss(42)) / 2, 1e-5);
    EXPECT_EQ(test::page_data(run_page({runs[0]}))["runs"].size(), 1u);
}

TEST(RunPage, ARunOfOneStepIsAPage) {
    test::TempDir dir;
    const auto run = read_run_history(made_up_run(dir.path(), "a", "", 1.0, 1));
    ASSERT_TRUE(run.ok());
    EXPECT_EQ(run->group, "a");
    const Json data = test::page_data(run_page({*run}));
    EXPECT_EQ(data["runs"][0]["curves"]["loss"], Json({{0, 4.35}}));
    EXPECT_TRUE(data["runs"][0]["validation"].is_null());
}

TEST(EventFileOracle, TheSlowReaderFindsEveryScalar) {
    EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
    const auto* set = std::getenv("NIBBLE_PYTHON");
    const fs::path local = fs::path(NIBBLE_SOURCE_DIR) / ".venv/bin/python";
    const std::string python = set ? set : fs::exists(local) ? local.string() : "";
    if (python.empty()) GTEST_SKIP() << "no Python (set NIBBLE_PYTHON, or make .venv)";
    test::TempDir dir;
    std::string expected;
    {
        auto file = EventFile::create(dir / "events", "1", 1.7e9);
        ASSERT_TRUE(file.ok()) << file.error().message();
        EXPECT_EQ(file->file().filename(), "events.out.tfevents.1");
        for (const int64_t step : {int64_t(1), int64_t(127), int64_t(128), int64_t(1) << 40}) {
            const std::array<EventScalar, 2> scalars{{{"train/loss", 0.5f * float(step % 100)}, {"x", -1.25f}}};
            ASSERT_TRUE(file->add(1.7e9 + double(step), step, scalars).ok());
            for (const EventScalar& s : scalars)
                expected += fmt::format("{{\"step\": {}, \"tag\": \"{}\", \"value\": {:.{}f}}}\n", step, s.tag, s.value,
                                        s.tag == "x" ? 2 : 1);
        }
    }
    const auto command = fmt::format("'{}' '{}/tests/oracles/event_file.py' '{}' > '{}'", python, NIBBLE_SOURCE_DIR,
                                     (dir / "events" / "events.out.tfevents.1").string(), (dir / "out").string());
    ASSERT_EQ(std::system(command.c_str()), 0);
    EXPECT_EQ(test::read_file(dir / "out"), expected);
}

}  // namespace
}  // namespace nibble
