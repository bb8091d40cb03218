#include "io/safetensors_writer.h"

#include "base/thread_pool.h"
#include "io/craft.h"
#include "io/safetensors.h"
#include "support/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>
#include <random>

namespace nibble {
namespace {

using test::as_bytes;
using test::as_text;
using testing::HasSubstr;

SafetensorsLayout layout_of(std::vector<TensorSpec> tensors,
                            SafetensorsLayout::Metadata metadata = {{"format", "pt"}}) {
    auto layout = SafetensorsLayout::make(std::move(tensors), metadata);
    if (!layout.ok()) throw std::runtime_error(layout.error().message());
    return *std::move(layout);
}

std::string layout_error(std::vector<TensorSpec> tensors, SafetensorsLayout::Metadata metadata = {}) {
    const auto layout = SafetensorsLayout::make(std::move(tensors), metadata);
    EXPECT_FALSE(layout.ok());
    return layout.ok() ? "" : layout.error().message();
}

// Returns bytes that count up from the tensor's index, so that a misplaced byte is detected.
std::string content(size_t tensor, int64_t bytes) {
    std::string text(static_cast<size_t>(bytes), '\0');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(tensor * 31 + i);
    return text;
}

// Returns scalars, empty tensors and odd sizes, with every dtype.
std::vector<TensorSpec> varied_tensors() {
    const std::vector<std::vector<int64_t>> shapes{{}, {0}, {1}, {3, 0, 2}, {7}, {3, 5}, {1, 1, 1, 1, 13}};
    std::vector<TensorSpec> tensors;
    for (int d = 0; d <= static_cast<int>(DType::f64); ++d)
        for (const auto& shape : shapes)
            tensors.push_back({fmt::format("t{}", (tensors.size() * 37) % 1009), static_cast<DType>(d), shape});
    return tensors;
}

TEST(SafetensorsLayout, HeaderEqualsThatOfTheReferenceLibrary) {
    // Recorded from safetensors 0.8.0 (tests/oracles compares whole files with it).
    const auto json = [](const SafetensorsLayout& layout) { return layout.header().substr(8); };
    EXPECT_EQ(json(layout_of({}, {})), "{}      ");
    EXPECT_EQ(json(layout_of({{"x", DType::f32, {1}}})),
              R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   )");
    EXPECT_EQ(
        json(layout_of({{"q\"\\\n\x01\x7f/\xc3\xa9\xf0\x9f\x98\x80\b\f\t\r", DType::f32, {}},
                        {"e", DType::f32, {0, 3}},
                        {"Z", DType::f32, {0}}},
                       {{"\xc3\xa9", "\x1f"}})),
        "{\"__metadata__\":{\"\xc3\xa9\":\"\\u001f\"},\"Z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
        "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]},"
        "\"q\\\"\\\\\\n\\u0001\x7f/\xc3\xa9\xf0\x9f\x98\x80\\b\\f\\t\\r\":{\"dtype\":\"F32\",\"shape\":[],"
        "\"data_offsets\":[0,4]}}    ");
}

TEST(SafetensorsLayout, PutsTensorsInTheReferenceOrderAndKeepsTheCallersIndices) {
    const SafetensorsLayout layout = layout_of({{"b", DType::boolean, {1}},
                                                {"a", DType::u8, {3}},
                                                {"z", DType::bf16, {1}},
                                                {"Z", DType::bf16, {1}},
                                                {"s", DType::f32, {}},
                                                {"e", DType::f8_e4m3, {2}},
                                                {"k", DType::i64, {1}}});
    const auto data = static_cast<int64_t>(layout.header().size());
    const std::vector<int64_t> from_data{21, 18, 14, 12, 8, 16, 0};  // i64, f32, Z, z, e4m3, u8, bool
    for (size_t i = 0; i < from_data.size(); ++i) EXPECT_EQ(layout.offset(i), data + from_data[i]) << i;
    EXPECT_EQ(layout.bytes(1), 3);
    EXPECT_EQ(layout.file_bytes(), data + 22);
    EXPECT_EQ(layout.tensors()[0].name, "b");
}

TEST(SafetensorsLayout, DataStartsAlignedForEveryHeaderLength) {
    for (int n = 0; n < 16; ++n) EXPECT_EQ(layout_of({{std::string(n, 'n'), DType::f64, {1}}}).offset(0) % 8, 0) << n;
}

TEST(SafetensorsLayout, ReaderAgreesWithAnyLayout) {
    std::mt19937 random(7);
    const std::vector<std::string> letters{"a",  "Z",    ".",    "0", "\"",       "\\",
                                           "\n", "\x01", "\x7f", "/", "\xc3\xa9", "\xf0\x9f\x98\x80"};
    const auto word = [&] {
        std::string text;
        for (unsigned n = random() % 6; n > 0; --n) text += letters[random() % letters.size()];
        return text;
    };
    for (int round = 0; round < 500; ++round) {
        std::vector<TensorSpec> tensors;
        for (unsigned n = random() % 20; n > 0; --n) {
            TensorSpec spec{fmt::format("{}{}", word(), n), static_cast<DType>(random() % 16), {}};
            for (unsigned d = random() % 5; d > 0; --d) spec.shape.push_back(random() % 4);
            tensors.push_back(std::move(spec));
        }
        SafetensorsLayout::Metadata metadata;
        for (unsigned n = random() % 4; n > 0; --n) metadata[word()] = word();
        const SafetensorsLayout layout = layout_of(tensors, metadata);
        std::string file = layout.header();
        file.resize(layout.file_bytes());
        const auto read = SafetensorsFile::parse(as_bytes(file));
        ASSERT_TRUE(read.ok()) << read.error().message() << "\n" << layout.header();
        EXPECT_EQ(read->metadata(), metadata);
        ASSERT_EQ(read->tensors().size(), tensors.size());
        for (size_t i = 0; i < tensors.size(); ++i) {
            const TensorRecord* t = read->find(tensors[i].name);
            ASSERT_NE(t, nullptr) << tensors[i].name;
            EXPECT_EQ(t->dtype, tensors[i].dtype);
            EXPECT_EQ(t->shape, tensors[i].shape);
            EXPECT_EQ(reinterpret_cast<const char*>(t->data.data()) - file.data(), layout.offset(i));
            EXPECT_EQ(static_cast<int64_t>(t->data.size()), layout.bytes(i));
        }
    }
}

TEST(SafetensorsLayout, RefusesInvalidLayouts) {
    EXPECT_THAT(layout_error({{"a", DType::u8, {1}}, {"b", DType::u8, {1}}, {"a", DType::f32, {2}}}),
                HasSubstr("duplicate tensor name 'a'"));
    EXPECT_THAT(layout_error({{"__metadata__", DType::u8, {1}}}), HasSubstr("__metadata__"));
    EXPECT_THAT(layout_error({{"\xff", DType::u8, {1}}}), HasSubstr("tensor name: '\\ufffd' is not UTF-8"));
    EXPECT_THAT(layout_error({}, {{"k", "\xff"}}), HasSubstr("metadata value"));
    EXPECT_THAT(layout_error({{"a", DType::u8, {-1}}}), HasSubstr("negative dimension"));
    EXPECT_THAT(layout_error({{"a", DType::f64, {int64_t{1} << 60}}}), HasSubstr("63 bits"));
    EXPECT_THAT(layout_error({{"a", DType::u8, {INT64_MAX}}, {"b", DType::u8, {1}}}), HasSubstr("63 bits"));
    EXPECT_THAT(layout_error({{"a", DType::u8, {INT64_MAX - 20}}}), HasSubstr("63 bits"));
    EXPECT_THAT(layout_error({{std::string(100'000'000, 'n'), DType::u8, {}}}), HasSubstr("over the format's limit"));
}

TEST(SafetensorsWriter, ReaderGetsBackEveryDtypeAndOddShape) {
    test::TempDir dir;
    const auto path = dir / "w.safetensors";
    const auto tensors = varied_tensors();
    auto writer = SafetensorsFileWriter::create(path, layout_of(tensors, {{"format", "pt"}, {"by", "nibble \"1\""}}));
    ASSERT_TRUE(writer.ok()) << writer.error().message();
    for (size_t i = 0; i < tensors.size(); ++i)
        ASSERT_TRUE(writer->write(i, 0, as_bytes(content(i, writer->layout().bytes(i)))).ok());
    ASSERT_TRUE(writer->finish().ok());

    const auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message();
    ASSERT_EQ(file->tensors().size(), tensors.size());
    EXPECT_EQ(file->metadata().at("by"), "nibble \"1\"");
    for (size_t i = 0; i < tensors.size(); ++i) {
        const TensorRecord* record = file->find(tensors[i].name);
        ASSERT_NE(record, nullptr) << tensors[i].name;
        EXPECT_EQ(record->dtype, tensors[i].dtype);
        EXPECT_EQ(record->shape, tensors[i].shape);
        EXPECT_EQ(as_text(record->data), content(i, writer->layout().bytes(i)));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(record->data.data()) % dtype_bytes(record->dtype), 0u) << "aligned";
    }
}

TEST(SafetensorsWriter, PiecesInAnyOrderFromAnyThreadGiveTheSameFile) {
    test::TempDir dir;
    std::vector<TensorSpec> tensors;
    for (int i = 0; i < 40; ++i) tensors.push_back({fmt::format("t{}", i), static_cast<DType>(i % 16), {i, 7}});
    struct Piece {
        size_t tensor;
        int64_t offset, size;
    };
    std::vector<Piece> pieces;
    const SafetensorsLayout layout = layout_of(tensors);
    for (size_t i = 0; i < tensors.size(); ++i)
        for (int64_t at = 0; at < layout.bytes(i); at += 13)
            pieces.push_back({i, at, std::min<int64_t>(13, layout.bytes(i) - at)});

    std::string first;
    for (unsigned seed = 0; seed < 4; ++seed) {
        std::shuffle(pieces.begin(), pieces.end(), std::mt19937(seed));
        const auto path = dir / fmt::format("{}.safetensors", seed);
        auto writer = SafetensorsFileWriter::create(path, layout);
        ASSERT_TRUE(writer.ok());
        ThreadPool pool(4);
        std::atomic<int> failures{0};
        pool.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t p) {
            const auto [tensor, offset, size] = pieces[p];
            const std::string all = content(tensor, layout.bytes(tensor));
            if (!writer->write(tensor, offset, as_bytes(std::string_view(all).substr(offset, size))).ok()) ++failures;
        });
        EXPECT_EQ(failures, 0);
        ASSERT_TRUE(writer->finish().ok());
        if (seed == 0) first = test::read_file(path);
        EXPECT_EQ(test::read_file(path), first);
        EXPECT_TRUE(SafetensorsFile::open(path).ok());
    }
}

TEST(SafetensorsWriter, RefusesWritesOutsideATensor) {
    test::TempDir dir;
    const auto path = dir / "w.safetensors";
    auto writer = SafetensorsFileWriter::create(path, layout_of({{"a", DType::u8, {4}}, {"b", DType::u8, {4}}}));
    ASSERT_TRUE(writer.ok());
    const std::string before = test::read_file(path);
    EXPECT_THAT(writer->write(0, 1, as_bytes("1234")).error().message(),
                HasSubstr("w.safetensors: tensor 'a': 4 bytes at 1 do not fit its 4 bytes"));
    EXPECT_FALSE(writer->write(0, -1, as_bytes("1")).ok());
    EXPECT_FALSE(writer->write(0, 5, {}).ok());
    EXPECT_FALSE(writer->write(0, INT64_MAX, as_bytes("1")).ok());
    EXPECT_THAT(writer->write(2, 0, as_bytes("1")).error().message(), HasSubstr("no tensor number 2"));
    std::byte buffer[5];
    EXPECT_FALSE(writer->read_back(0, 0, buffer).ok());
    EXPECT_EQ(test::read_file(path), before);
    EXPECT_TRUE(writer->write(0, 4, {}).ok()) << "nothing, at the very end";
}

TEST(SafetensorsWriter, ResumesItsOwnFileAndReadsItBack) {
    test::TempDir dir;
    const auto path = dir / "w.safetensors";
    const SafetensorsLayout layout = layout_of({{"a", DType::u8, {4}}, {"b", DType::u8, {4}}});
    {
        auto writer = SafetensorsFileWriter::create(path, layout);
        ASSERT_TRUE(writer.ok());
        ASSERT_TRUE(writer->write(0, 0, as_bytes("1234")).ok());
        ASSERT_TRUE(writer->sync().ok());
    }  // never finished, as after a kill
    auto writer = SafetensorsFileWriter::reopen(path, layout);
    ASSERT_TRUE(writer.ok()) << writer.error().message();
    std::string back(3, '\0');
    ASSERT_TRUE(writer->read_back(0, 1, std::as_writable_bytes(std::span(back))).ok());
    EXPECT_EQ(back, "234");
    ASSERT_TRUE(writer->write(1, 0, as_bytes("5678")).ok());
    ASSERT_TRUE(writer->finish().ok());
    const auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(as_text(file->find("a")->data), "1234");
    EXPECT_EQ(as_text(file->find("b")->data), "5678");
}

TEST(SafetensorsWriter, DoesNotResumeIntoAnotherFile) {
    test::TempDir dir;
    const auto path = dir / "w.safetensors";
    const SafetensorsLayout layout = layout_of({{"a", DType::u8, {4}}});
    EXPECT_THAT(SafetensorsFileWriter::reopen(path, layout).error().message(), HasSubstr("No such file"));
    ASSERT_TRUE(SafetensorsFileWriter::create(path, layout_of({{"b", DType::u8, {4}}})).ok());
    EXPECT_THAT(SafetensorsFileWriter::reopen(path, layout).error().message(), HasSubstr("other tensors"));
    ASSERT_TRUE(SafetensorsFileWriter::create(path, layout_of({{"a", DType::u8, {5}}})).ok());
    EXPECT_THAT(SafetensorsFileWriter::reopen(path, layout).error().message(), HasSubstr("cannot resume: has"));
    test::write_file(path, std::string(layout.file_bytes(), '\0'));  // killed between allocating the space and writing
                                                                     // the header
    EXPECT_THAT(SafetensorsFileWriter::reopen(path, layout).error().message(), HasSubstr("other tensors"));
}

TEST(SafetensorsWriter, ReplacesALongerOldFileCompletely) {
    test::TempDir dir;
    const auto path = dir / "w.safetensors";
    test::write_file(path, std::string(10'000, 'x'));
    auto writer = SafetensorsFileWriter::create(path, layout_of({{"a", DType::u8, {4}}}));
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->finish().ok());
    EXPECT_EQ(as_text(SafetensorsFile::open(path)->find("a")->data), std::string_view("\0\0\0\0", 4));
}

TEST(SafetensorsWriter, NamesThePathWhenTheFolderIsMissing) {
    test::TempDir dir;
    EXPECT_THAT(SafetensorsFileWriter::create(dir / "no/w.safetensors", layout_of({})).error().message(),
                HasSubstr("no/w.safetensors: cannot create: No such file"));
}

// Lowers the process's file size limit in a scope, which simulates a full disk without a mount.
class FileSizeLimit {
public:
    explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        ::getrlimit(RLIMIT_FSIZE, &old_);
        const rlimit lower{bytes, old_.rlim_max};
        set_ = ::setrlimit(RLIMIT_FSIZE, &lower) == 0;
    }
    ~FileSizeLimit() {
        ::setrlimit(RLIMIT_FSIZE, &old_);
        std::signal(SIGXFSZ, handler_);
    }
    bool set() const { return set_; }

private:
    void (*handler_)(int);
    rlimit old_{};
    bool set_ = false;
};

TEST(SafetensorsWriter, AFileSizeLimitIsAnErrorAtCreateAndAtWrite) {
    test::TempDir dir;
    const SafetensorsLayout layout = layout_of({{"big", DType::u8, {1 << 20}}});
    auto writer = SafetensorsFileWriter::create(dir / "before.safetensors", layout);
    ASSERT_TRUE(writer.ok());
    const FileSizeLimit limit(4096);
    ASSERT_TRUE(limit.set());
    EXPECT_THAT(SafetensorsFileWriter::create(dir / "after.safetensors", layout).error().message(),
                HasSubstr("after.safetensors: cannot reserve"));
    // The kernel first writes less, up to the limit, then returns an error; both must end in the error. Large writes
    // use a map of space that is already allocated, so the limit does not stop them.
    EXPECT_THAT(writer->write(0, 0, as_bytes(std::string(1 << 15, 'x'))).error().message(),
                HasSubstr("before.safetensors: cannot write"));
    EXPECT_TRUE(writer->write(0, 0, as_bytes(std::string(1 << 20, 'x'))).ok());
}

TEST(SafetensorsWriter, AFullDeviceIsAnError) {
    auto full = FileDescriptor::open("/dev/full", O_WRONLY);
    if (!full.ok()) GTEST_SKIP() << "no /dev/full here";
    EXPECT_THAT(full->write_at(as_bytes("12345"), 0).error().message(),
                HasSubstr("/dev/full: cannot write 5 bytes at 0: No space left on device"));
}

TEST(SafetensorsWriter, AFullDiskIsAnErrorAtCreate) {
    test::TempDir dir;
    if (::mount("none", dir.path().c_str(), "tmpfs", 0, "size=64k") != 0)
        GTEST_SKIP() << "cannot mount a small tmpfs here";
    const auto result =
        SafetensorsFileWriter::create(dir / "w.safetensors", layout_of({{"big", DType::u8, {1 << 20}}}));
    ::umount2(dir.path().c_str(), MNT_DETACH);
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.error().message(), HasSubstr("w.safetensors: cannot reserve"));
    EXPECT_THAT(result.error().message(), HasSubstr("No space left on device"));
}

}  // namespace
}  // namespace nibble
