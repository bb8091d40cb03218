// Tests checkpoints: training continues from any of them with the same bits.
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "run/checkpoints.h"
#include "run/log.h"
#include "support/files.h"
#include "train/small_trainer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <limits>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Returns masters and both optimizer states as bytes.
std::string all_state(Trainer& trainer) {
    std::string out;
    const auto add = [&](Bytes bytes) { out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); };
    for (size_t id = 0; id < trainer.parameters().count(); ++id) {
        add(std::as_bytes(trainer.parameters().master(id)));
        add(bytes_of(trainer.optimizer().m(id)));
        add(bytes_of(trainer.optimizer().v(id)));
    }
    return out + std::to_string(trainer.optimizer().steps());
}

class RunStateTest : public testing::Test {
protected:
    void make_step(Trainer& trainer, uint32_t number) {
        const TrainBatch batch = test::random_batch(2, 12, 48, number);
        const auto step = trainer.step({&batch, 1}, 1e-2);
        ASSERT_TRUE(step.ok()) << step.error().message();
    }

    ThreadPool pool{2};
    test::TempDir dir;
};

TEST_F(RunStateTest, ResumedTrainingGivesTheSameBits) {
    const auto whole = test::small_trainer(pool, {}), first = test::small_trainer(pool, {});
    for (uint32_t i = 0; i < 3; ++i) make_step(*whole, i);
    const std::string at_three = all_state(*whole);
    RunPlace place{.step = 3, .source = {{"row", 6}}, .identity = "{\"seed\": 1}"};
    ASSERT_TRUE(write_state(dir / "a.safetensors", *copy_state(*whole, place)).ok());
    EXPECT_FALSE(fs::exists(dir / "a.safetensors.partial"));
    for (uint32_t i = 3; i < 6; ++i) make_step(*whole, i);
    EXPECT_NE(all_state(*whole), at_three);

    const auto read = read_state(dir / "a.safetensors", {place.identity}, *first);
    ASSERT_TRUE(read.ok()) << read.error().message();
    EXPECT_EQ(read->step, 3);
    EXPECT_EQ(read->source["row"], 6);
    EXPECT_TRUE(all_state(*first) == at_three);
    for (uint32_t i = 3; i < 6; ++i) make_step(*first, i);
    EXPECT_TRUE(all_state(*first) == all_state(*whole));
}

// Recipes with a state between steps: histories of scales, directions of inputs.
TEST_F(RunStateTest, EveryRecipeResumesWithTheSameBits) {
    Json wide = test::small_llama();
    wide["hidden_size"] = 64;
    wide["intermediate_size"] = 96;
    wide["num_hidden_layers"] = 2;
    for (const char* name :
         {"bf16", "fp8", "fp8_delayed", "fp8_block", "mxfp8", "nvfp4", "nvfp4_w4a4", "nibble_nvfp4"}) {
        TrainerOptions options{.precision = *train_precision_from_name(name)};
        options.precision.amax_history = 3;
        options.precision.rank = 4;
        const auto whole = test::small_trainer(pool, options, wide), resumed = test::small_trainer(pool, options, wide);
        const auto step = [&](Trainer& trainer, int64_t number) {
            trainer.begin(number, 6);
            make_step(trainer, uint32_t(number));
        };
        for (int64_t i = 0; i < 3; ++i) step(*whole, i);
        const auto file = dir / fmt::format("{}.safetensors", name);
        ASSERT_TRUE(write_state(file, *copy_state(*whole, {.step = 3})).ok());
        const auto read = read_state(file, {""}, *resumed);
        ASSERT_TRUE(read.ok()) << read.error().message();
        EXPECT_EQ(resumed->products().state(), whole->products().state()) << name;
        for (int64_t i = 3; i < 6; ++i) {
            step(*whole, i);
            step(*resumed, i);
        }
        EXPECT_TRUE(all_state(*resumed) == all_state(*whole)) << name;
        EXPECT_EQ(resumed->products().state(), whole->products().state()) << name;
    }
}

// States of every layout are stored unchanged: kinds, dtypes, and nothing else.
TEST_F(RunStateTest, EveryOptimizerResumesWithTheSameBits) {
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon})
        for (const bool bf16 : {false, true}) {
            TrainerOptions options;
            options.optimizer.kind = kind;
            options.optimizer.bf16_states = bf16;
            options.optimizer.skip_above = 1.01;  // skips about half the steps
            options.optimizer.skip_window = 2;
            const auto whole = test::small_trainer(pool, options), resumed = test::small_trainer(pool, options);
            for (uint32_t i = 0; i < 3; ++i) make_step(*whole, i);
            const fs::path file = dir / fmt::format("{}{}.safetensors", int(kind), bf16);
            ASSERT_TRUE(write_state(file, *copy_state(*whole, {.step = 3})).ok());
            const auto stored = SafetensorsFile::open(file);
            ASSERT_TRUE(stored.ok());
            const auto* m = stored->find("m.model.layers.0.mlp.down_proj.weight");
            ASSERT_TRUE(m);
            EXPECT_EQ(m->dtype, bf16 ? DType::bf16 : DType::f32);
            EXPECT_EQ(!stored->find("v.model.layers.0.mlp.down_proj.weight"), kind == OptimizerKind::muon);
            EXPECT_TRUE(stored->find("v.model.embed_tokens.weight"));
            const auto read = read_state(file, {""}, *resumed);
            ASSERT_TRUE(read.ok()) << read.error().message();
            for (uint32_t i = 3; i < 6; ++i) {
                make_step(*whole, i);
                make_step(*resumed, i);
            }
            EXPECT_TRUE(all_state(*resumed) == all_state(*whole));
            EXPECT_EQ(resumed->state()->norms, whole->state()->norms);
            EXPECT_EQ(whole->state()->norms.size(), 2u);
            options.optimizer.bf16_states = !bf16;
            EXPECT_FALSE(read_state(file, {""}, *test::small_trainer(pool, options)).ok());
        }
}

TEST_F(RunStateTest, ADamagedOrForeignFileChangesNothing) {
    const auto trainer = test::small_trainer(pool, {});
    make_step(*trainer, 1);
    const fs::path file = dir / "a.safetensors";
    ASSERT_TRUE(write_state(file, *copy_state(*trainer, {.step = 1, .identity = "x"})).ok());
    const std::string good = test::read_file(file);
    make_step(*trainer, 2);
    const std::string before = all_state(*trainer);
    const auto refused = [&](std::string_view why, const std::string& identity = "x") {
        const auto read = read_state(file, {identity}, *trainer);
        ASSERT_FALSE(read.ok()) << why;
        EXPECT_TRUE(read.error().message().starts_with(file.string())) << read.error().message();
        EXPECT_NE(read.error().message().find(why), std::string::npos) << read.error().message();
        EXPECT_TRUE(all_state(*trainer) == before);
    };
    refused("another run: x in the checkpoint, y now", "y");
    std::string damaged = good;
    damaged[good.size() - 5] ^= 4;
    test::write_file(file, damaged);
    refused("is damaged");
    test::write_file(file, std::string_view(good).substr(0, good.size() - 100));
    refused("remove it to resume from an older one");
    test::write_file(file, std::string_view(good).substr(0, 4));
    refused("remove it to resume from an older one");
    // A valid file with a value that is not finite: the state of a failed run.
    RunState state = *copy_state(*trainer, {.step = 1, .identity = "x"});
    std::get<0>(state.v[2])[3] = std::numeric_limits<float>::quiet_NaN();
    ASSERT_TRUE(write_state(file, state).ok());
    refused(fmt::format("tensor 'v.{}': number 3 is nan", state.names[2]));
    state = *copy_state(*trainer, {.step = 1, .identity = "x"});
    state.shapes[1] = {std::ssize(state.masters[1])};
    const bool was_vector = trainer->parameters().tensors()[1].shape.size() == 1;
    ASSERT_TRUE(write_state(file, state).ok());
    if (!was_vector) refused("is not F32 in this run's shape");
    state.names.pop_back();
    ASSERT_TRUE(write_state(file, state).ok());
    refused("parameters");
    state = *copy_state(*trainer, {.step = 1, .identity = R"({"a": {"steps": 6, "x": 1}, "b": 2})"});
    ASSERT_TRUE(write_state(file, state).ok());
    refused(
        "another run: a/steps: 6 in the checkpoint, 7 now; b: 2 in the checkpoint, not set now; c: not set in the "
        "checkpoint, true now",
        R"({"a": {"steps": 7, "x": 1}, "c": true})");
    // A model's file is not a checkpoint of a run.
    test::write_file(file, test::read_file(test::test_data("chat") / "model.safetensors"));
    refused("is not a checkpoint of a training run");
}

// Changes the length of the header, every byte of the header (names, shapes, step counters, the hash itself, padding)
// and bytes of the data, one at a time. Every change is refused.
TEST_F(RunStateTest, AChangeOfAnyByteIsRefused) {
    const auto trainer = test::small_trainer(pool, {});
    make_step(*trainer, 1);
    const fs::path file = dir / "a.safetensors";
    const std::string identity = R"({"config": {"seed": 1}})";
    const RunPlace place{.step = 9, .source = {{"row", 18}}, .identity = identity};
    ASSERT_TRUE(write_state(file, *copy_state(*trainer, place)).ok());
    const std::string good = test::read_file(file);
    ASSERT_TRUE(read_state(file, {identity}, *trainer).ok());
    uint64_t header = 0;
    std::memcpy(&header, good.data(), sizeof header);
    header += sizeof header;
    ASSERT_LT(header, good.size());
    ASSERT_NE(good.find("\\\"step\\\":9"), std::string::npos);
    std::vector<size_t> places;
    for (size_t at = 0; at < header; ++at) places.push_back(at);
    for (size_t at = header; at < good.size(); at += good.size() / 200) places.push_back(at);
    places.push_back(good.size() - 1);
    const int fd = ::open(file.c_str(), O_WRONLY);
    ASSERT_GE(fd, 0);
    for (const size_t at : places) {
        // Changes the lowest bit, the case of letters, digits, versions, and kinds of white space.
        for (const int bits : {0x01, 0x20, 0x03, 0x29, 0x80}) {
            const char changed = static_cast<char>(good[at] ^ bits);
            ASSERT_EQ(::pwrite(fd, &changed, 1, static_cast<off_t>(at)), 1);
            const auto read = read_state(file, {identity}, *trainer);
            ASSERT_FALSE(read.ok()) << "byte " << at << " of " << good.size() << " xor " << bits;
            EXPECT_TRUE(read.error().message().starts_with(file.string())) << read.error().message();
            const auto forked = read_fork(file, *trainer);
            EXPECT_FALSE(forked.ok()) << "fork: byte " << at << " xor " << bits;
        }
        ASSERT_EQ(::pwrite(fd, &good[at], 1, static_cast<off_t>(at)), 1);
    }
    ::close(fd);
    EXPECT_TRUE(read_state(file, {identity}, *trainer).ok());
}

// Checkpoints of earlier versions: version 1 has no hash of the header, and every identity has `steps`.
TEST_F(RunStateTest, CheckpointsOfVersionOneAreRead) {
    const auto trainer = test::small_trainer(pool, {});
    make_step(*trainer, 1);
    const fs::path file = dir / "a.safetensors";
    const std::string there = R"({"config": {"seed": 1, "steps": 6}, "data": ""})";
    ASSERT_TRUE(write_state(file, *copy_state(*trainer, {.step = 1, .identity = there})).ok());
    const auto stored = SafetensorsFile::open(file);
    ASSERT_TRUE(stored.ok());
    std::string about = stored->metadata().at("nibble_run");
    const size_t version = about.find("\"version\":2");
    ASSERT_NE(version, std::string::npos);
    about.replace(version, 11, "\"version\":1");
    const auto write_as = [&](const std::string& name, const SafetensorsLayout::Metadata& metadata) {
        std::vector<TensorSpec> specs;
        for (const TensorRecord& t : stored->tensors()) specs.push_back({t.name, t.dtype, t.shape});
        auto writer = SafetensorsFileWriter::create(dir / name, *SafetensorsLayout::make(specs, metadata));
        ASSERT_TRUE(writer.ok());
        for (size_t i = 0; i < specs.size(); ++i) ASSERT_TRUE(writer->write(i, 0, stored->tensors()[i].data).ok());
        ASSERT_TRUE(writer->finish().ok());
    };
    write_as("old", {{"nibble_run", about}});
    EXPECT_TRUE(read_state(dir / "old", {there}, *trainer).ok());
    const RunIdentity without_steps{.text = R"({"data":"","config":{"seed":1}})", .restate = [](const Json& stored) {
                                        Json today = stored;
                                        today["config"].erase("steps");
                                        return Result(today);
                                    }};
    EXPECT_TRUE(read_state(dir / "old", without_steps, *trainer).ok());
    const auto other = read_state(dir / "old", {R"({"config":{"seed":1,"steps":8},"data":""})"}, *trainer, "do this");
    ASSERT_FALSE(other.ok());
    EXPECT_NE(other.error().message().find("config/steps: 6 in the checkpoint, 8 now; do this"), std::string::npos)
        << other.error().message();
    write_as("mixed", {{"nibble_run", about}, {"nibble_header_hash", stored->metadata().at("nibble_header_hash")}});
    EXPECT_FALSE(read_state(dir / "mixed", {there}, *trainer).ok());
    write_as("without", {{"nibble_run", stored->metadata().at("nibble_run")}});
    EXPECT_FALSE(read_state(dir / "without", {there}, *trainer).ok());
}

TEST_F(RunStateTest, CheckpointsAreKeptByNumberAndInterval) {
    const auto trainer = test::small_trainer(pool, {});
    const auto steps = [&] {
        std::string out;
        const auto found = list_checkpoints(dir / "c");
        EXPECT_TRUE(found.ok());
        for (const RunCheckpoint& c : *found) out += fmt::format("{} ", c.step);
        return out;
    };
    EXPECT_EQ(steps(), "");
    fs::create_directories(dir / "c");
    test::write_file(dir / "c" / "step_00000007.safetensors.partial", "half");
    test::write_file(dir / "c" / "step_x.safetensors", "not ours");
    const auto checkpoints = RunCheckpoints::open(dir / "c", {.keep = 2, .keep_every = 4});
    ASSERT_TRUE(checkpoints.ok());
    EXPECT_FALSE(fs::exists(dir / "c" / "step_00000007.safetensors.partial"));
    for (int64_t step = 1; step <= 7; ++step) {
        make_step(*trainer, uint32_t(step));
        (*checkpoints)->save(*trainer, {.step = step, .identity = "x"});
        if (step != 5) continue;
        EXPECT_TRUE((*checkpoints)->wait().ok());
        EXPECT_EQ(steps(), "4 5 ");
    }
    EXPECT_TRUE((*checkpoints)->wait().ok());
    EXPECT_EQ(steps(), "4 6 7 ");
    EXPECT_TRUE(fs::exists(dir / "c" / "step_x.safetensors"));
    EXPECT_FALSE(RunCheckpoints::open(dir / "c", {.keep = -1}).ok());
}

// The stored state is the one at the time of save(), whatever training does during the write.
TEST_F(RunStateTest, WritesTheStateAtTheMomentOfSaving) {
    const auto trainer = test::small_trainer(pool, {}), other = test::small_trainer(pool, {});
    const auto checkpoints = RunCheckpoints::open(dir / "c", {.keep = 9});
    ASSERT_TRUE(checkpoints.ok());
    std::vector<std::string> states;
    for (int64_t step = 1; step <= 5; ++step) {
        make_step(*trainer, uint32_t(step));
        states.push_back(all_state(*trainer));
        (*checkpoints)->save(*trainer, {.step = step, .identity = "x"});
    }
    ASSERT_TRUE((*checkpoints)->wait().ok());
    const auto found = list_checkpoints(dir / "c");
    ASSERT_EQ(found->size(), 5u);
    for (const RunCheckpoint& c : *found) {
        const auto read = read_state(c.file, {"x"}, *other);
        ASSERT_TRUE(read.ok()) << read.error().message();
        EXPECT_TRUE(all_state(*other) == states[size_t(c.step - 1)]);
    }
}

// A blocked file name stands for a full disk. The failure is reported, and earlier checkpoints are unchanged.
TEST_F(RunStateTest, AFailedSaveIsReportedAndLosesNothing) {
    const auto trainer = test::small_trainer(pool, {});
    const auto checkpoints = RunCheckpoints::open(dir / "c", {.keep = 1});
    ASSERT_TRUE(checkpoints.ok());
    (*checkpoints)->save(*trainer, {.step = 1, .identity = "x"});
    ASSERT_TRUE((*checkpoints)->wait().ok());
    fs::create_directories(dir / "c" / "step_00000002.safetensors.partial");  // a folder, so the file cannot be created
    (*checkpoints)->save(*trainer, {.step = 2, .identity = "x"});
    const Status failed = (*checkpoints)->wait();
    ASSERT_FALSE(failed.ok());
    EXPECT_NE(failed.error().message().find("step_00000002"), std::string::npos);
    EXPECT_TRUE((*checkpoints)->wait().ok()) << "the error is returned once";
    EXPECT_TRUE(fs::exists(dir / "c" / "step_00000001.safetensors"));
    (*checkpoints)->save(*trainer, {.step = 3, .identity = "x"});
    EXPECT_TRUE((*checkpoints)->wait().ok());
    EXPECT_FALSE(fs::exists(dir / "c" / "step_00000001.safetensors"));
}

TEST(RunLogFile, ContinuesAfterTheStepOfTheCheckpoint) {
    test::TempDir dir;
    const fs::path file = dir / "train.jsonl";
    {
        auto log = RunLog::create(file, {{"run", 1}});
        ASSERT_TRUE(log.ok()) << log.error().message();
        for (int step = 1; step <= 4; ++step) EXPECT_TRUE(log->add({{"step", step}, {"loss", 0.5 * step}}).ok());
        EXPECT_TRUE(log->add({{"note", "of no step"}}).ok());
    }
    test::write_file(file, test::read_file(file) + "{\"step\": 5, \"lo");  // killed within a line
    {
        auto log = RunLog::resume(file, {{"run", 2}}, 3);
        ASSERT_TRUE(log.ok()) << log.error().message();
        EXPECT_TRUE(log->add({{"step", 4}, {"loss", 7}}).ok());
    }
    const auto lines = read_run_log(file);
    ASSERT_TRUE(lines.ok()) << lines.error().message();
    ASSERT_EQ(lines->size(), 6u);
    EXPECT_EQ((*lines)[0]["run"], 2);
    EXPECT_EQ((*lines)[3]["step"], 3);
    EXPECT_EQ((*lines)[4]["note"], "of no step");
    EXPECT_EQ((*lines)[5]["loss"], 7);
    auto fresh = RunLog::resume(dir / "b.jsonl", {{"run", 3}}, 9);
    ASSERT_TRUE(fresh.ok());
    EXPECT_EQ(read_run_log(dir / "b.jsonl")->size(), 1u);
    test::write_file(dir / "c.jsonl", "{}\nnot json\n{}\n");
    const auto damaged = read_run_log(dir / "c.jsonl");
    ASSERT_FALSE(damaged.ok());
    EXPECT_NE(damaged.error().message().find("line 2"), std::string::npos);
}

}  // namespace
}  // namespace nibble
