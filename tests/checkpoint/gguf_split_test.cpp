// Split GGUF files, as llama-gguf-split makes them.
#include "checkpoint/convert.h"
#include "checkpoint/folders.h"
#include "io/gguf_writer.h"

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

std::string part_name(int64_t i, int64_t count) { return fmt::format("model-{:05}-of-{:05}.gguf", i + 1, count); }

// Writes the tensors [first, last) of `whole`, with or without its metadata, and the keys of a split.
void write_part(const GgufFile& whole, const fs::path& path, size_t first, size_t last, bool metadata, uint16_t number,
                uint16_t count) {
    GgufMetadata keys;
    if (metadata)
        for (const GgufKv& kv : whole.metadata().entries()) keys.add(kv.key, kv.value);
    keys.add("split.no", number);
    keys.add("split.count", count);
    keys.add("split.tensors.count", static_cast<int32_t>(whole.tensors().size()));
    std::vector<GgufTensorSpec> specs;
    for (size_t i = first; i < last; ++i)
        specs.push_back({whole.tensors()[i].name, whole.tensors()[i].type, whole.tensors()[i].shape});
    auto writer = value_of(GgufFileWriter::create(path, value_of(GgufLayout::make(keys, specs))));
    for (size_t i = first; i < last; ++i) check(writer.write(i - first, 0, whole.tensors()[i].data));
    check(writer.finish());
}

class GgufSplit : public ::testing::Test {
protected:
    void SetUp() override {
        ThreadPool pool(1);
        const auto source = value_of(Checkpoint::open(test_data("model")));
        value_of(convert(*source, {.to = Dialect::gguf, .out = dir_ / "whole.gguf"}, pool, {}));
        whole_.emplace(value_of(GgufFile::open(dir_ / "whole.gguf")));
        const size_t n = whole_->tensors().size();
        for (uint16_t i = 0; i < 3; ++i)
            write_part(*whole_, dir_ / part_name(i, 3), n * i / 3, n * (i + 1) / 3, i == 0, i, 3);
    }

    TempDir dir_;
    std::optional<GgufFile> whole_;
};

TEST_F(GgufSplit, HoldsTheTensorsOfAllParts) {
    const auto whole = value_of(Checkpoint::open(dir_ / "whole.gguf"));
    const auto parts = value_of(Checkpoint::open(dir_ / part_name(0, 3)));
    ASSERT_EQ(parts->tensors().size(), whole->tensors().size());
    EXPECT_EQ(parts->config(), whole->config());
    std::map<std::string, int> files;
    for (size_t i = 0; i < whole->tensors().size(); ++i) {
        const CheckpointTensor &a = whole->tensors()[i], &b = parts->tensors()[i];
        EXPECT_EQ(a.name, b.name);
        EXPECT_EQ(a.shape, b.shape);
        ++files[b.file];
        Matrix from_whole, from_parts;
        const MatrixView x = value_of(whole->read_plain(i, 0, a.rows(), from_whole));
        const MatrixView y = value_of(parts->read_plain(i, 0, b.rows(), from_parts));
        ASSERT_EQ(x.bytes(), y.bytes());
        EXPECT_EQ(std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())), 0) << a.name;
        parts->done_with(i, 0, b.rows());
    }
    EXPECT_EQ(files.size(), 3u);  // each tensor names the file that contains it
    EXPECT_TRUE(files.contains(part_name(2, 3)));
}

TEST_F(GgufSplit, OtherPartsNameTheFirst) {
    EXPECT_EQ(message_of(GgufFile::open(dir_ / part_name(1, 3))),
              fmt::format("{}: is part 2 of 3: give the first one, model-00001-of-00003.gguf",
                          (dir_ / part_name(1, 3)).string()));
}

TEST_F(GgufSplit, FaultsNameThePart) {
    fs::rename(dir_ / part_name(2, 3), dir_ / "elsewhere");
    EXPECT_NE(message_of(GgufFile::open(dir_ / part_name(0, 3))).find("model-00003-of-00003.gguf"), std::string::npos);
    // Errors: a part of another split, a duplicate tensor, a missing tensor, another name.
    write_part(*whole_, dir_ / part_name(2, 3), 0, 1, false, 1, 3);
    EXPECT_NE(message_of(GgufFile::open(dir_ / part_name(0, 3))).find("declares itself part 2 of 3"),
              std::string::npos);
    write_part(*whole_, dir_ / part_name(2, 3), 0, 1, false, 2, 3);
    EXPECT_NE(message_of(GgufFile::open(dir_ / part_name(0, 3))).find("declares "), std::string::npos);
    const size_t n = whole_->tensors().size();
    write_part(*whole_, dir_ / part_name(2, 3), 0, n - n * 2 / 3, false, 2, 3);
    EXPECT_NE(message_of(GgufFile::open(dir_ / part_name(0, 3))).find("appears in two parts"), std::string::npos);
    fs::rename(dir_ / part_name(0, 3), dir_ / "renamed.gguf");
    EXPECT_NE(message_of(GgufFile::open(dir_ / "renamed.gguf")).find("whose name ends in -00001-of-00003.gguf"),
              std::string::npos);
}

}  // namespace
}  // namespace nibble::test
