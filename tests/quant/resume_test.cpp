#include "io/journal.h"
#include "quant/fakes.h"

#include <gtest/gtest.h>

#include <fstream>

namespace nibble::test {
namespace {

const WeightSpec four_over_six{Format::nvfp4, true, 256, {Search::Kind::multipliers, 1.0f, 1.5f, 0.5f}};

struct Fixture {
    FakeCheckpoint source;
    Plan plan;
    JobOptions options;
    std::unique_ptr<FakeExport> out;
    std::atomic<bool> stop{false};
    std::vector<std::string> warnings;

    Fixture() {
        add_small_model(source, 2, false);
        plan = small_plan(source, four_over_six);
        options = options_for(plan);
        fresh();
    }
    void fresh() { out = std::make_unique<FakeExport>(export_tensors(source, plan, options.scales)); }

    Result<QuantReport> run(int threads = 2) {
        ThreadPool pool(threads);
        JobHooks hooks;
        hooks.stop_requested = &stop;
        hooks.warn = [&](std::string_view text) { warnings.emplace_back(text); };
        return run_quantize(source, plan, options, *out, pool, hooks);
    }
    std::filesystem::path journal() const { return out->work_dir() / Journal::file_name; }
};

std::string numbers(const QuantReport& report) {
    Json json = to_json(report);
    json.erase("timing");
    json.erase("source");  // it is a temporary folder
    return json.dump();
}

struct Expected {
    std::vector<Stored> stored;
    std::string report;
};

Expected expected() {
    Fixture f;
    auto report = f.run(1);
    return {f.out->stored, report.ok() ? numbers(*report) : report.error().message()};
}

TEST(Resume, AStopAtAnyWriteThenAResumeGivesTheSameBytesAndReport) {
    const Expected want = expected();
    for (int threads : {1, 3})
        for (int64_t at = 0;; at += threads == 1 ? 1 : 7) {
            Fixture f;
            f.out->on_write = [&](int64_t n) { f.stop = n >= at; };
            auto first = f.run(threads);
            if (first.ok()) break;
            EXPECT_TRUE(first.error().message().starts_with("stopped on request: ")) << first.error().message();
            EXPECT_NE(first.error().message().find("--resume"), std::string::npos);
            f.stop = false;
            f.out->on_write = nullptr;
            auto second = f.run(threads);
            ASSERT_TRUE(second.ok()) << second.error().message();
            EXPECT_TRUE(f.out->stored == want.stored) << at;
            EXPECT_TRUE(numbers(*second) == want.report) << at;
            EXPECT_TRUE(f.warnings.empty());
        }
}

TEST(Resume, FinishedTensorsAreNotWrittenAgain) {
    Fixture f;
    f.out->on_write = [&](int64_t n) { f.stop = n >= 12; };
    ASSERT_FALSE(f.run(1).ok());
    f.stop = false;
    f.out->on_write = nullptr;
    auto report = f.run(1);
    ASSERT_TRUE(report.ok());
    EXPECT_GT(report->timing.resumed_tensors, 3);
    int twice = 0;
    for (const Stored& s : f.out->stored)
        for (int n : s.row_writes) twice += n > 1;
    EXPECT_LE(twice, 768);  // rows of gate and up, the only unit in progress
    auto third = f.run(2);
    ASSERT_TRUE(third.ok());
    EXPECT_EQ(third->timing.resumed_tensors, static_cast<int64_t>(f.plan.entries.size()));
    EXPECT_EQ(third->timing.bytes_written, 0);
}

TEST(Resume, AFullDiskLeavesAStateThatCanBeContinued) {
    const Expected want = expected();
    for (int threads : {1, 3})
        for (int64_t at = 0;; at += 3) {
            Fixture f;
            f.out->fail_at = at;
            auto first = f.run(threads);
            if (first.ok()) break;
            EXPECT_NE(first.error().message().find("No space left on device"), std::string::npos);
            EXPECT_NE(first.error().message().find("--resume"), std::string::npos);
            f.out->fail_at = -1;
            auto second = f.run(threads);
            ASSERT_TRUE(second.ok()) << second.error().message();
            EXPECT_TRUE(f.out->stored == want.stored) << at;
            EXPECT_TRUE(numbers(*second) == want.report);
        }
}

TEST(Resume, AJournalCutAtAnyByteIsContinued) {
    const Expected want = expected();
    Fixture done;
    ASSERT_TRUE(done.run(1).ok());
    const std::string whole = read_file(done.journal());
    std::vector<size_t> cuts{0, 1, whole.find('\n'), whole.find('\n') + 1, whole.size() - 1};
    for (size_t cut = 7; cut < whole.size(); cut += whole.size() / 23) cuts.push_back(cut);
    for (size_t cut : cuts) {
        done.warnings.clear();
        write_file(done.journal(), whole.substr(0, cut));
        auto report = done.run(2);
        ASSERT_TRUE(report.ok()) << cut << ": " << report.error().message();
        EXPECT_TRUE(done.out->stored == want.stored) << cut;
        EXPECT_TRUE(numbers(*report) == want.report) << cut;
        EXPECT_TRUE(done.run(2)->timing.resumed_tensors == static_cast<int64_t>(done.plan.entries.size())) << cut;
    }
}

TEST(Resume, ATailOfZerosFromAPowerFailureIsRemoved) {
    Fixture f;
    ASSERT_TRUE(f.run(1).ok());
    const std::string whole = read_file(f.journal());
    write_file(f.journal(), whole + std::string(5000, '\0'));
    ASSERT_TRUE(f.run(1).ok());
    EXPECT_EQ(read_file(f.journal()), whole);
}

TEST(Resume, DamageInTheMiddleOfTheJournalIsAnError) {
    Fixture f;
    ASSERT_TRUE(f.run(1).ok());
    std::string text = read_file(f.journal());
    text[text.find('\n') + 3] = '\0';
    write_file(f.journal(), text);
    const auto report = f.run(1);
    ASSERT_FALSE(report.ok());
    EXPECT_NE(report.error().message().find("line 2 is damaged"), std::string::npos) << report.error().message();
    EXPECT_NE(report.error().message().find("to start over, remove"), std::string::npos);
}

TEST(Resume, TensorsWhoseStoredBytesChangedAreQuantizedAgain) {
    const Expected want = expected();
    Fixture f;
    ASSERT_TRUE(f.run(1).ok());
    f.out->stored[2].codes[5] ^= 1;
    f.out->stored[0].plain[5] ^= 1;
    f.out->stored[8].tensor_scale *= 2;
    const auto report = f.run(3);
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(f.out->stored == want.stored);
    EXPECT_TRUE(numbers(*report) == want.report);
    EXPECT_EQ(f.warnings.size(), 3u);
}

TEST(Resume, AnotherJobIsRefusedAndTheDifferenceNamed) {
    const auto refuse = [](const std::string& what, auto change) {
        Fixture f;
        ASSERT_TRUE(f.run(1).ok());
        change(f);
        const auto report = f.run(1);
        ASSERT_FALSE(report.ok()) << what;
        EXPECT_NE(report.error().message().find("another job: " + what), std::string::npos) << report.error().message();
        EXPECT_NE(report.error().message().find("to start over, remove " + f.out->work_dir().string()),
                  std::string::npos);
    };
    refuse("recipe and plan", [](Fixture& f) {
        f.plan.entries[2].spec.normalization = 448;
        f.plan = small_plan(f.source, {Format::nvfp4});
    });
    refuse("setting format (was \"fake\", is \"other\")", [](Fixture& f) { f.options.settings["format"] = "other"; });
    refuse("version of nibble", [](Fixture& f) { f.options.versions["nibble"] = "2"; });
    refuse("setting extra (was absent, is 1)", [](Fixture& f) { f.options.settings["extra"] = 1; });
    refuse("setting format (was \"fake\", is absent)", [](Fixture& f) { f.options.settings.erase("format"); });
    refuse("source config", [](Fixture& f) { f.source.config_["hidden_size"] = 1; });
    refuse("source file weights (was 7 bytes", [](Fixture& f) { write_file(f.source.file(), "weights!"); });
    refuse("activation scales", [](Fixture& f) { f.options.scales.input[0] = 1.0f; });
}

TEST(Resume, ReasonsOfTheRulesMayBeWordedDifferently) {
    Fixture f;
    ASSERT_TRUE(f.run(1).ok());
    f.plan.entries[2].reason = "other words";
    const auto report = f.run(1);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->tensors[2].reason, "other words");
    EXPECT_EQ(report->timing.bytes_written, 0);
}

}  // namespace
}  // namespace nibble::test
