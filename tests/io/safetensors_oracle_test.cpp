// Files of the reference library can be read, and nibble's files equal them byte for byte:
// tests/oracles/safetensors_oracle.py.
#include "base/json.h"
#include "io/craft.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Returns $NIBBLE_PYTHON, or the local virtual environment; empty: there is none.
std::string python() {
    if (const char* set = std::getenv("NIBBLE_PYTHON")) return set;
    const fs::path local = fs::path(NIBBLE_SOURCE_DIR) / ".venv/bin/python";
    return fs::exists(local) ? local.string() : "";
}

int run(const std::string& command) { return std::system(command.c_str()); }

Json describe(DType dtype, const std::vector<int64_t>& shape, Bytes data) {
    return {{"dtype", dtype_name(dtype)}, {"shape", shape}, {"sha256", test::sha256(data)}};
}

void write_ours(const fs::path& folder) {
    std::vector<TensorSpec> tensors;
    for (int d = 0; d <= static_cast<int>(DType::f64); ++d)
        for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {0}, {1}, {4, 0, 2}, {3, 5}, {1, 2, 3, 4}})
            tensors.push_back(
                {fmt::format("model.\xc3\xa9\"\x01.{}", (tensors.size() * 37) % 101), static_cast<DType>(d), shape});
    auto layout = SafetensorsLayout::make(tensors);
    ASSERT_TRUE(layout.ok()) << layout.error().message();
    auto writer = SafetensorsFileWriter::create(folder / "ours.safetensors", *layout);
    ASSERT_TRUE(writer.ok()) << writer.error().message();
    Json listing = Json::object();
    for (size_t i = 0; i < tensors.size(); ++i) {
        std::string data(layout->bytes(i), '\0');
        for (size_t j = 0; j < data.size(); ++j) data[j] = static_cast<char>(i * 31 + j);
        ASSERT_TRUE(writer->write(i, 0, test::as_bytes(data)).ok());
        listing[tensors[i].name] = describe(tensors[i].dtype, tensors[i].shape, test::as_bytes(data));
    }
    ASSERT_TRUE(writer->finish().ok());
    test::write_file(folder / "ours.json", listing.dump());
}

TEST(SafetensorsOracle, ReferenceLibraryAndNibbleReadAndWriteTheSameFiles) {
    const std::string interpreter = python();
    if (interpreter.empty())
        GTEST_SKIP() << "no Python (set NIBBLE_PYTHON, or make .venv with safetensors, numpy, ml-dtypes)";
    if (run(fmt::format("'{}' -c 'import safetensors, numpy, ml_dtypes' 2>/dev/null", interpreter)) != 0)
        GTEST_SKIP() << interpreter << " lacks safetensors, numpy or ml-dtypes";
    test::TempDir dir;
    ASSERT_NO_FATAL_FAILURE(write_ours(dir.path()));
    ASSERT_EQ(run(fmt::format("'{}' '{}/tests/oracles/safetensors_oracle.py' check '{}'", interpreter,
                              NIBBLE_SOURCE_DIR, dir.path().string())),
              0)
        << "the oracle's message is above";

    const auto theirs = SafetensorsFile::open(dir / "theirs.safetensors");
    ASSERT_TRUE(theirs.ok()) << theirs.error().message();
    const auto listing = read_json_file(dir / "theirs.json");
    ASSERT_TRUE(listing.ok()) << listing.error().message();
    EXPECT_EQ(theirs->tensors().size(), listing->size());
    for (const TensorRecord& t : theirs->tensors()) {
        ASSERT_TRUE(listing->contains(t.name)) << t.name;
        EXPECT_EQ(describe(t.dtype, t.shape, t.data), (*listing)[t.name]) << t.name;
    }
    EXPECT_EQ(theirs->metadata(), (std::map<std::string, std::string>{{"format", "np"}, {"k", "v\n"}}));
}

TEST(SafetensorsOracle, EveryGoldenFileWouldBeWrittenTheSame) {
    const std::filesystem::path root = test::test_data("golden");
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
        if (entry.path().extension() != ".safetensors") continue;
        const auto file = SafetensorsFile::open(entry.path());
        ASSERT_TRUE(file.ok()) << file.error().message();
        std::vector<TensorSpec> specs;
        for (const TensorRecord& t : file->tensors()) specs.push_back({t.name, t.dtype, t.shape});
        const auto layout = SafetensorsLayout::make(specs, file->metadata());
        ASSERT_TRUE(layout.ok()) << layout.error().message();
        const std::string_view written = test::as_text(file->map()->bytes());
        EXPECT_EQ(written.substr(0, layout->header().size()), layout->header()) << entry.path();
        EXPECT_EQ(static_cast<int64_t>(written.size()), layout->file_bytes());
        for (size_t i = 0; i < specs.size(); ++i)
            EXPECT_EQ(written.data() + layout->offset(i), test::as_text(file->tensors()[i].data).data())
                << specs[i].name;
        ++files;
    }
    EXPECT_GT(files, 0) << "no *.safetensors under " << root;
}

}  // namespace
}  // namespace nibble
