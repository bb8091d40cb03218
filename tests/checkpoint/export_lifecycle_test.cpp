// The states of an output folder: created, interrupted, resumed, rejected, published.
#include "folders.h"
#include "io/journal.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <set>
#include <thread>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* name = "model.layers.0.mlp.up_proj.weight";

ExportSpec small_spec(const fs::path& out) {
    ExportSpec spec{
        .dialect = Dialect::modelopt, .out = out, .config = Json{{"model_type", "llama"}}, .manifest = "{}\n"};
    spec.tensors = {{.name = name,
                     .shape = {300, 32},
                     .format = Format::nvfp4,
                     .activation = ActivationFormat::nvfp4,
                     .input_scale = true},
                    {.name = "model.norm.weight", .shape = {16}}};
    spec.side_files = {{"tokenizer.json", {}, "tokens"}, {"sub/extra.jinja", {}, "x"}};
    return spec;
}

QuantMatrix small_matrix() {
    QuantMatrix m(Format::nvfp4, 300, 32);
    for (size_t i = 0; i < m.codes.size(); ++i) m.codes[i] = static_cast<uint8_t>(i * 7);
    for (size_t i = 0; i < m.block_scales.size(); ++i) m.block_scales[i] = static_cast<uint8_t>(i % 0x7F);
    m.tensor_scale = 0.375f;
    return m;
}

void fill(Export& out) {
    const QuantMatrix m = small_matrix();
    const Matrix norm(DType::bf16, 16, 1);
    check(out.write_quant(0, 128, m.view().panel(128, 172)));  // any order
    check(out.write_plain(1, 0, norm.view()));
    check(out.write_quant(0, 0, m.view().panel(0, 128)));
    check(out.write_scalars(0, m.tensor_scale, 0.5f));
}

// Records a finished unit as a job does.
void note_a_unit(const fs::path& work) {
    auto journal = value_of(Journal::open(work, {{"job", "test"}}));
    check(journal->append(0, Json::object()));
}

TEST(ExportLifecycle, TheFinalNameAppearsAtFinishAndJobFilesDisappear) {
    TempDir dir;
    auto out = value_of(open_export(small_spec(dir / "out"), ExportMode::create));
    EXPECT_EQ(out->work_dir(), dir / "out.partial");
    write_file(out->work_dir() / ".nibble-journal.jsonl", "notes");
    fill(*out);
    EXPECT_FALSE(fs::exists(dir / "out"));
    check(out->finish());
    EXPECT_FALSE(fs::exists(dir / "out.partial"));
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(dir / "out"))
        if (entry.is_regular_file()) files.insert(fs::relative(entry.path(), dir / "out").string());
    EXPECT_EQ(files, (std::set<std::string>{"config.json", "hf_quant_config.json", "model.safetensors", "nibble.json",
                                            "sub/extra.jinja", "tokenizer.json"}));
    const auto in = value_of(Checkpoint::open(dir / "out"));
    QuantMatrix scratch;
    const QuantView view = value_of(in->read_quant(index_of(*in, name), 0, 300, scratch));
    const QuantMatrix m = small_matrix();
    EXPECT_TRUE(std::equal(m.codes.begin(), m.codes.end(), view.codes));
    EXPECT_TRUE(std::equal(m.block_scales.begin(), m.block_scales.end(), view.block_scales));
    EXPECT_EQ(view.tensor_scale, m.tensor_scale);
    EXPECT_EQ(in->tensors()[index_of(*in, name)].input_scale, 0.5f);
}

TEST(ExportLifecycle, AnInterruptedJobIsResumedWithTheBytesItHad) {
    TempDir dir;
    uint64_t sum = 0;
    {
        auto out = value_of(open_export(small_spec(dir / "out"), ExportMode::create));
        fill(*out);
        sum = value_of(out->checksum(0, 0));
        for (size_t i = 0; i < small_spec(dir / "out").tensors.size(); ++i)
            EXPECT_EQ(out->written_checksum(i, 0), value_of(out->checksum(i, 0))) << i;
    }
    note_a_unit(dir / "out.partial");
    EXPECT_NE(message_of(open_export(small_spec(dir / "out"), ExportMode::create)).find("interrupted"),
              std::string::npos);
    auto out = value_of(open_export(small_spec(dir / "out"), ExportMode::resume));
    EXPECT_EQ(value_of(out->checksum(0, 0)), sum);
    const QuantMatrix zeros(Format::nvfp4, 1, 32);
    check(out->write_quant(0, 7, zeros.view()));
    EXPECT_NE(value_of(out->checksum(0, 0)), sum);
    check(out->finish());
}

TEST(ExportLifecycle, ResumeWithoutAFolderStartsANewJob) {
    TempDir dir;
    auto out = value_of(open_export(small_spec(dir / "out"), ExportMode::resume));
    EXPECT_TRUE(fs::exists(dir / "out.partial/model.safetensors"));
    out.reset();
    auto again = value_of(open_export(small_spec(dir / "out"), ExportMode::resume));  // no unit is finished
    check(again->finish());
    EXPECT_TRUE(fs::exists(dir / "out/model.safetensors"));
}

TEST(ExportLifecycle, ResumeRefusesAnotherListOfTensors) {
    TempDir dir;
    value_of(open_export(small_spec(dir / "out"), ExportMode::create));
    note_a_unit(dir / "out.partial");
    auto other = small_spec(dir / "out");
    other.tensors[1].name = "model.other.weight";
    EXPECT_NE(message_of(open_export(other, ExportMode::resume)).find("cannot resume"), std::string::npos);
    EXPECT_TRUE(fs::exists(dir / "out.partial/model.safetensors")) << "a refusal must not throw work away";
}

TEST(ExportLifecycle, ResumeWithAnotherShardSizeIsRefusedAsAnotherJob) {
    TempDir dir;
    value_of(open_export(small_spec(dir / "out"), ExportMode::create));
    note_a_unit(dir / "out.partial");
    auto other = small_spec(dir / "out");
    other.max_shard_bytes = 1000;
    const std::string message = message_of(open_export(other, ExportMode::resume));
    EXPECT_NE(message.find("another job"), std::string::npos) << message;
    EXPECT_NE(message.find("--max-shard-size"), std::string::npos) << message;
    EXPECT_TRUE(open_export(small_spec(dir / "out"), ExportMode::resume).ok());
}

TEST(ExportLifecycle, ASecondWriterIsRefusedAndTheFirstOneNamed) {
    TempDir dir;
    auto out = value_of(open_export(small_spec(dir / "out"), ExportMode::create));
    for (ExportMode mode : {ExportMode::create, ExportMode::resume}) {
        const std::string message = message_of(open_export(small_spec(dir / "out"), mode));
        EXPECT_NE(message.find(fmt::format("another process ({})", ::getpid())), std::string::npos) << message;
    }
    out.reset();
    EXPECT_TRUE(open_export(small_spec(dir / "out"), ExportMode::resume).ok());
}

// The state after a kill: partly written files, and the lock file, which only a running process removes.
struct Killed {
    TempDir dir;
    fs::path partial = dir / "out.partial";

    Killed() {
        fs::create_directory(partial);
        write_file(dir / "out.partial.lock", "12345\n");
    }
    std::set<std::string> names() const {
        std::set<std::string> out;
        for (const auto& entry : fs::directory_iterator(dir.path())) out.insert(entry.path().filename().string());
        return out;
    }
};

TEST(ExportLifecycle, IncompleteFilesOfAKilledProcessAreWrittenAgainWithAndWithoutResume) {
    for (const ExportMode mode : {ExportMode::create, ExportMode::resume})
        for (const std::string torn : {"", "cut short", "no file", "nothing"}) {
            Killed killed;
            if (torn == "" || torn == "cut short") write_file(killed.partial / "model.safetensors", torn);
            if (torn != "nothing") write_file(killed.partial / Journal::file_name, "{\"nibble_journal\": 3}\n");
            auto out = value_of(open_export(small_spec(killed.dir / "out"), mode));
            fill(*out);
            check(out->finish());
            EXPECT_EQ(killed.names(), std::set<std::string>{"out"});
        }
}

TEST(ExportLifecycle, AFolderOfAnotherProgramIsNotEmptied) {
    TempDir dir;
    fs::create_directory(dir / "out.partial");
    write_file(dir / "out.partial/mine.txt", "precious");
    EXPECT_NE(
        message_of(open_export(small_spec(dir / "out"), ExportMode::create)).find("not unfinished work of nibble"),
        std::string::npos);
    EXPECT_FALSE(open_export(small_spec(dir / "out"), ExportMode::resume).ok());
    EXPECT_EQ(read_file(dir / "out.partial/mine.txt"), "precious");
}

TEST(ExportLifecycle, AKillDuringPublicationLeavesResumableWorkOrACompleteOutput) {
    {  // killed before the folder was renamed: the journal is already next to it
        Killed killed;
        fs::remove_all(killed.partial);
        {
            auto out = value_of(open_export(small_spec(killed.dir / "out"), ExportMode::create));
            fill(*out);
        }
        note_a_unit(killed.partial);
        fs::rename(killed.partial / Journal::file_name, killed.dir / "out.partial.journal");
        EXPECT_NE(message_of(open_export(small_spec(killed.dir / "out"), ExportMode::create)).find("resume it"),
                  std::string::npos);
        auto out = value_of(open_export(small_spec(killed.dir / "out"), ExportMode::resume));
        EXPECT_TRUE(Journal::holds_units(killed.partial / Journal::file_name));
        check(out->finish());
        EXPECT_EQ(killed.names(), std::set<std::string>{"out"});
        for (const auto& entry : fs::recursive_directory_iterator(killed.dir / "out"))
            EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
    }
    {  // killed after the folder was renamed: the remaining files belong to no output
        Killed killed;
        fs::remove_all(killed.partial);
        write_file(killed.dir / "out.partial.journal", "old\nold\n");
        auto out = value_of(open_export(small_spec(killed.dir / "out"), ExportMode::create));
        fill(*out);
        check(out->finish());
        EXPECT_EQ(killed.names(), std::set<std::string>{"out"});
    }
}

TEST(ExportLifecycle, ExactlyOneOfSeveralSimultaneousJobsFinishes) {
    // Uses processes, because a lock belongs to a process. The job that fails must report that another job is
    // running, or that the output exists.
    for (int round = 0; round < 20; ++round) {
        TempDir dir;
        if (round % 2) {
            fs::create_directory(dir / "out.partial");
            write_file(dir / "out.partial.lock", "12345\n");
        }
        std::vector<pid_t> children;
        for (int i = 0; i < 6; ++i) {
            const pid_t child = ::fork();
            if (child == 0) {
                auto out = open_export(small_spec(dir / "out"), ExportMode::create);
                if (!out.ok()) {
                    const std::string& why = out.error().message();
                    ::_exit(why.find("another process") != why.npos || why.find("exists already") != why.npos ? 1 : 2);
                }
                fill(**out);
                ::_exit((*out)->finish().ok() ? 0 : 3);
            }
            children.push_back(child);
        }
        std::vector<int> ends(4);
        for (const pid_t child : children) {
            int status = 0;
            ASSERT_EQ(::waitpid(child, &status, 0), child);
            ASSERT_TRUE(WIFEXITED(status)) << status;
            ++ends[size_t(WEXITSTATUS(status))];
        }
        EXPECT_EQ(ends, (std::vector<int>{1, 5, 0, 0})) << "round " << round;
        EXPECT_TRUE(Checkpoint::open(dir / "out").ok());
        EXPECT_FALSE(fs::exists(dir / "out.partial.lock"));
        EXPECT_FALSE(fs::exists(dir / "out.partial"));
    }
}

TEST(ExportLifecycle, AnExistingOutputIsKept) {
    TempDir dir;
    fs::create_directory(dir / "out");
    write_file(dir / "out/mine.txt", "precious");
    EXPECT_NE(message_of(open_export(small_spec(dir / "out"), ExportMode::create)).find("exists already"),
              std::string::npos);
    EXPECT_EQ(read_file(dir / "out/mine.txt"), "precious");
    EXPECT_FALSE(fs::exists(dir / "out.partial"));
    fs::remove(dir / "out/mine.txt");
    EXPECT_TRUE(open_export(small_spec(dir / "out/"), ExportMode::create).ok()) << "an empty folder is fine";
}

TEST(ExportLifecycle, AnOutputThatAppearsDuringTheJobIsNotOverwritten) {
    TempDir dir;
    auto out = value_of(open_export(small_spec(dir / "out"), ExportMode::create));
    fill(*out);
    write_file(dir / "out", "a file of another program");
    EXPECT_FALSE(out->finish().ok());
    EXPECT_EQ(read_file(dir / "out"), "a file of another program");
}

TEST(ExportLifecycle, AFullDiskIsAnErrorBeforeAnythingIsWritten) {
    TempDir dir;
    auto spec = small_spec(dir / "out");
    spec.tensors[1].shape = {int64_t{1} << 55};
    const std::string message = message_of(open_export(spec, ExportMode::create));
    EXPECT_NE(message.find("needs 72.1 PB"), std::string::npos) << message;
    EXPECT_NE(message.find("are free"), std::string::npos) << message;
    EXPECT_TRUE(fs::is_empty(dir.path()));
}

// A job that fills the disk with its weights would fail at its reports.
TEST(ExportLifecycle, EveryFileCountsForTheFreeSpace) {
    constexpr int64_t most = int64_t{1} << 56;
    for (const Dialect dialect : {Dialect::modelopt, Dialect::compressed_tensors}) {
        TempDir dir;
        auto spec = small_spec(dir / "out");
        spec.dialect = dialect;
        spec.report_bytes = most;
        const std::string message = message_of(open_export(spec, ExportMode::create));
        EXPECT_NE(message.find("needs 72.1 PB"), std::string::npos) << message;
        EXPECT_TRUE(fs::is_empty(dir.path()));
    }
}

TEST(ExportLifecycle, AParentThatCannotBeWrittenIsNamed) {
    TempDir dir;
    write_file(dir / "file", "");
    EXPECT_NE(message_of(open_export(small_spec(dir / "file/out"), ExportMode::create)).find("file"),
              std::string::npos);
    if (::geteuid() == 0) return;  // root can write everywhere
    fs::create_directory(dir / "locked");
    ::chmod((dir / "locked").c_str(), 0555);
    EXPECT_NE(message_of(open_export(small_spec(dir / "locked/out"), ExportMode::create)).find("locked"),
              std::string::npos);
    ::chmod((dir / "locked").c_str(), 0755);
}

TEST(ExportLifecycle, FinishFailsIfRowsOrScalarsAreMissing) {
    TempDir dir;
    const QuantMatrix m = small_matrix();
    const Matrix norm(DType::bf16, 16, 1);
    auto out = value_of(open_export(small_spec(dir / "out"), ExportMode::create));
    check(out->write_plain(1, 0, norm.view()));
    check(out->write_quant(0, 0, m.view().panel(0, 299)));
    EXPECT_NE(message_of(out->finish()).find("299 of 300"), std::string::npos);
    check(out->write_quant(0, 299, m.view().panel(299, 1)));
    EXPECT_NE(message_of(out->finish()).find("scalar"), std::string::npos);
    check(out->write_scalars(0, 1.0f, 1.0f));
    EXPECT_TRUE(out->finish().ok());
}

TEST(ExportLifecycle, ViewsThatDoNotFitTheirTensorAreRefused) {
    TempDir dir;
    auto out = value_of(open_export(small_spec(dir / "out"), ExportMode::create));
    const QuantMatrix m = small_matrix(), other(Format::mxfp4, 300, 32);
    const Matrix wide(DType::bf16, 16, 2), floats(DType::f32, 16, 1);
    EXPECT_FALSE(out->write_quant(0, 1, m.view()).ok());
    EXPECT_FALSE(out->write_quant(0, 0, other.view()).ok());
    EXPECT_FALSE(out->write_quant(1, 0, m.view()).ok());
    EXPECT_FALSE(out->write_plain(0, 0, floats.view()).ok());
    EXPECT_FALSE(out->write_plain(1, 0, floats.view()).ok());
    EXPECT_FALSE(out->write_plain(1, 0, wide.view()).ok());
    EXPECT_FALSE(out->write_plain(1, -1, Matrix(DType::bf16, 1, 1).view()).ok());
    EXPECT_FALSE(out->write_scalars(0, 0.0f, 1.0f).ok());
    EXPECT_FALSE(out->write_scalars(0, 1.0f, std::nullopt).ok());
    EXPECT_FALSE(out->checksum(2, 0).ok());
}

TEST(ExportLifecycle, FormatsThatADialectCannotStoreAreErrorsBeforeAnythingIsWritten) {
    struct Case {
        const char* what;
        std::function<void(ExportSpec&)> change;
        const char* named;
    };
    const Case cases[] = {
        {"weights-only FP8 in Model Optimizer",
         [](ExportSpec& s) {
             s.tensors[0].format = Format::fp8;
             s.tensors[0].activation = ActivationFormat::none;
             s.tensors[0].input_scale = false;
         },
         "fp8"},
        {"blocks of 32 in compressed-tensors",
         [](ExportSpec& s) {
             s.dialect = Dialect::compressed_tensors;
             s.tensors[0].format = Format::nvfp4_bs32;
         },
         "nvfp4_bs32"},
        {"an NVFP4 KV cache in compressed-tensors",
         [](ExportSpec& s) {
             s.dialect = Dialect::compressed_tensors;
             s.kv = KvFormat::nvfp4_cast;
         },
         "nvfp4_cast"},
        {"quantized tensors in a plain folder", [](ExportSpec& s) { s.dialect = Dialect::plain; }, "plain"},
        {"DeepSeek's dialect, which is only read", [](ExportSpec& s) { s.dialect = Dialect::fp8; }, "fp8"},
        {"an input scale that was not declared", [](ExportSpec& s) { s.tensors[0].input_scale = false; },
         "input_scale"},
        {"KV scales that are missing", [](ExportSpec& s) { s.kv = KvFormat::fp8; }, "k_scale"},
        {"a name twice", [](ExportSpec& s) { s.tensors.push_back(s.tensors[1]); }, "duplicate"},
        {"a side file outside", [](ExportSpec& s) { s.side_files[0].name = "../evil"; }, "evil"},
        {"a side file over a document", [](ExportSpec& s) { s.side_files[0].name = "config.json"; }, "config.json"},
        {"a width without whole blocks",
         [](ExportSpec& s) {
             s.tensors[0].shape = {4, 24};
         },
         "blocks"},
        {"a scale declared as a plain tensor", [](ExportSpec& s) { s.tensors[1].name = "a.weight_scale"; },
         "weight_scale"},
    };
    for (const Case& c : cases) {
        SCOPED_TRACE(c.what);
        TempDir dir;
        auto spec = small_spec(dir / "out");
        c.change(spec);
        const std::string message = message_of(open_export(spec, ExportMode::create));
        EXPECT_NE(message.find(c.named), std::string::npos) << message;
        EXPECT_TRUE(fs::is_empty(dir.path()));
    }
}

TEST(ExportLifecycle, ShardsHaveAnIndexAndPanelsMayComeFromManyThreads) {
    TempDir dir;
    auto spec = small_spec(dir / "out");
    spec.tensors.clear();
    std::vector<Matrix> matrices;
    for (int i = 0; i < 6; ++i) {
        spec.tensors.push_back({.name = fmt::format("model.layers.{}.mlp.up_proj.weight", i), .shape = {64, 16}});
        matrices.emplace_back(DType::bf16, 64, 16);
        std::ranges::fill(matrices.back().data, std::byte(i + 1));
    }
    spec.dialect = Dialect::plain;
    spec.max_shard_bytes = 5000;
    auto out = value_of(open_export(spec, ExportMode::create));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (size_t i = 0; i < matrices.size(); ++i)
                for (int64_t row = t; row < 64; row += 4)
                    check(out->write_plain(i, row, matrices[i].view().panel(row, 1)));
        });
    for (std::thread& t : threads) t.join();
    check(out->finish());
    EXPECT_TRUE(fs::exists(dir / "out/model-00001-of-00003.safetensors"));
    EXPECT_TRUE(fs::exists(dir / "out/model.safetensors.index.json"));
    const auto in = value_of(Checkpoint::open(dir / "out"));
    EXPECT_EQ(in->dialect(), Dialect::plain);
    for (int i = 0; i < 6; ++i) {
        Matrix scratch;
        const auto view = value_of(in->read_plain(index_of(*in, spec.tensors[size_t(i)].name), 0, 64, scratch));
        EXPECT_TRUE(std::equal(view.data, view.data + view.bytes(), matrices[size_t(i)].data.data()));
    }
}

}  // namespace
}  // namespace nibble::test
