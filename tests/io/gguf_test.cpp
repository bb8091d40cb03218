#include "io/gguf.h"

#include "io/gguf_writer.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <thread>

namespace nibble {
namespace {

using test::TempDir;

// Builds files byte by byte, so that tests can damage any field.
struct RawGguf {
    std::string text;

    template <class T>
    RawGguf& put(T value) {
        text.append(reinterpret_cast<const char*>(&value), sizeof(T));
        return *this;
    }
    RawGguf& string(std::string_view s) {
        put<uint64_t>(s.size());
        text += s;
        return *this;
    }
    RawGguf& preamble(int64_t tensors, int64_t kvs, uint32_t version = 3) {
        text += "GGUF";
        return put<uint32_t>(version).put(tensors).put(kvs);
    }
    RawGguf& tensor(std::string_view name, std::vector<int64_t> ne, uint32_t type, uint64_t offset) {
        string(name).put<uint32_t>(ne.size());
        for (int64_t n : ne) put(n);
        return put(type).put(offset);
    }
    RawGguf& pad(size_t alignment = 32) {
        text.resize((text.size() + alignment - 1) / alignment * alignment);
        return *this;
    }
    Bytes bytes() const { return std::as_bytes(std::span(text)); }
};

// Returns the reference file: one NVFP4 matrix [2, 64] and its F32 scale {1}.
RawGguf two_tensors(uint32_t version = 3, uint64_t second_offset = 96) {
    RawGguf raw;
    raw.preamble(2, 0, version).tensor("w", {64, 2}, 40, 0).tensor("w.scale", {1}, 0, second_offset).pad();
    raw.text += std::string(72, '\x11');
    raw.pad().put(0.5f).pad();
    return raw;
}

std::string error_of(const RawGguf& raw) {
    const auto file = GgufFile::parse(raw.bytes());
    return file.ok() ? "" : file.error().message();
}

#define EXPECT_ERROR(raw, part) EXPECT_NE(error_of(raw).find(part), std::string::npos) << error_of(raw)

TEST(Gguf, AHandMadeFileOfVersion2And3LoadsWithReversedDimensions) {
    for (const uint32_t version : {2u, 3u}) {
        const RawGguf raw = two_tensors(version);
        const auto file = GgufFile::parse(raw.bytes());
        ASSERT_TRUE(file.ok()) << file.error().message();
        ASSERT_EQ(file->tensors().size(), 2u);
        const GgufTensor& w = file->tensors()[0];
        EXPECT_EQ(w.shape, (std::vector<int64_t>{2, 64}));
        EXPECT_EQ(w.type, GgmlType::nvfp4);
        EXPECT_EQ(w.data.size(), 72u);
        EXPECT_EQ(w.data[71], std::byte{0x11});
        EXPECT_EQ(file->find_tensor("w.scale")->data.size(), 4u);
        EXPECT_EQ(file->find_tensor("x"), nullptr);
    }
}

TEST(Gguf, OtherVersionsByteOrdersAndMagicsAreRefused) {
    EXPECT_ERROR(two_tensors(1), "version 1");
    EXPECT_ERROR(two_tensors(4), "version 4");
    EXPECT_ERROR(two_tensors(3u << 24), "big-endian");
    RawGguf raw = two_tensors();
    raw.text[0] = 'g';
    EXPECT_ERROR(raw, "not a GGUF file");
}

TEST(Gguf, OffsetsMustBeTheRunningSumOfPaddedSizes) {
    EXPECT_ERROR(two_tensors(3, 128), "offset 128, expected 96");
    EXPECT_ERROR(two_tensors(3, 72), "offset 72, expected 96");
}

TEST(Gguf, EveryTruncationIsAnErrorExceptOfTheLastPadding) {
    const RawGguf raw = two_tensors();
    const size_t last_byte = raw.text.size() - 28;  // 4 bytes of data in a slot of 32
    for (size_t size = 0; size < raw.text.size(); ++size) {
        const auto file = GgufFile::parse(raw.bytes().first(size));
        EXPECT_EQ(file.ok(), size >= last_byte) << size;
    }
}

TEST(Gguf, CountsBeyondTheFileAreRefusedBeforeAnythingIsAllocated) {
    for (const int64_t huge : {int64_t{1} << 40, int64_t{-1}, INT64_MAX, INT64_MIN}) {
        EXPECT_ERROR(RawGguf().preamble(huge, 0), "tensors");
        EXPECT_ERROR(RawGguf().preamble(0, huge), "metadata keys");
    }
    RawGguf array;
    array.preamble(0, 1).string("a").put<uint32_t>(9).put<uint32_t>(8).put<uint64_t>(uint64_t{1} << 30);
    EXPECT_ERROR(array, "claims 1073741824 elements");
    RawGguf text;
    text.preamble(0, 1).string("a").put<uint32_t>(8).put<uint64_t>(UINT64_MAX);
    EXPECT_ERROR(text, "limit");
}

TEST(Gguf, BadMetadataIsRefused) {
    const auto kv = [](std::string_view key) {
        RawGguf raw;
        raw.preamble(0, 1).string(key);
        return raw;
    };
    EXPECT_ERROR(kv("").put<uint32_t>(4).put<uint32_t>(1), "empty");
    EXPECT_ERROR(kv("a").put<uint32_t>(13).put<uint64_t>(1), "unknown value type 13");
    EXPECT_ERROR(kv("a").put<uint32_t>(7).put<uint8_t>(2).put<uint64_t>(0), "bool");
    EXPECT_ERROR(kv("a").put<uint32_t>(9).put<uint32_t>(9).put<uint64_t>(0), "arrays of arrays");
    EXPECT_ERROR(kv("a").put<uint32_t>(9).put<uint32_t>(13).put<uint64_t>(0), "unknown array element type 13");
    EXPECT_ERROR(kv("a").put<uint32_t>(9).put<uint32_t>(7).put<uint64_t>(1).put<uint8_t>(9), "bool");
    EXPECT_ERROR(kv("general.alignment").put<uint32_t>(4).put<uint32_t>(24), "power of two");
    EXPECT_ERROR(kv("general.alignment").put<uint32_t>(10).put<uint64_t>(32), "u32");
    RawGguf twice;
    twice.preamble(0, 2);
    for (int i = 0; i < 2; ++i) twice.string("a").put<uint32_t>(4).put<uint32_t>(1);
    EXPECT_ERROR(twice, "'a' appears twice");
}

TEST(Gguf, BadTensorsAreRefused) {
    const auto one = [](std::string_view name, std::vector<int64_t> ne, uint32_t type) {
        RawGguf raw;
        raw.preamble(1, 0).tensor(name, std::move(ne), type, 0).pad();
        raw.text += std::string(4096, '\0');
        return raw;
    };
    EXPECT_EQ(error_of(one(std::string(63, 'x'), {64}, 40)), "");
    EXPECT_ERROR(one(std::string(64, 'x'), {64}, 40), "64 bytes");
    EXPECT_ERROR(one("", {64}, 40), "0 bytes");
    EXPECT_ERROR(one("x", {}, 0), "0 dimensions");
    EXPECT_ERROR(one("x", {1, 1, 1, 1, 1}, 0), "5 dimensions");
    EXPECT_ERROR(one("x", {48}, 40), "not whole NVFP4 blocks of 64");
    EXPECT_ERROR(one("x", {0}, 0), "dimension 0 is 0");
    EXPECT_ERROR(one("x", {4, -1}, 0), "dimension 1 is -1");
    EXPECT_ERROR(one("x", {32}, 31), "unknown tensor type id 31");
    EXPECT_ERROR(one("x", {32}, 0xFFFFFFFF), "unknown tensor type");
    EXPECT_ERROR(one("x", {INT64_MAX, INT64_MAX}, 0), "elements");
    EXPECT_ERROR(one("x", {INT64_MAX / 2, 2}, 0), "bytes");
    EXPECT_ERROR(one("x", {int64_t{1} << 60}, 0), "the file has");
    RawGguf twice;
    twice.preamble(2, 0).tensor("x", {8}, 0, 0).tensor("x", {8}, 0, 32).pad();
    twice.text += std::string(64, '\0');
    EXPECT_ERROR(twice, "'x' appears twice");
}

GgufMetadata sample_metadata(std::vector<std::string_view>& tokens, std::vector<float>& scores) {
    tokens = {"a", "", "\xC4\xA0t"};
    scores = {1.0f, -2.5f, 0.0f};
    GgufMetadata metadata;
    metadata.add("general.architecture", std::string("llama"));
    metadata.add("a.u8", uint8_t{200});
    metadata.add("a.i8", int8_t{-3});
    metadata.add("a.u16", uint16_t{60000});
    metadata.add("a.i16", int16_t{-300});
    metadata.add("a.u32", uint32_t{4000000000u});
    metadata.add("a.i32", int32_t{-5});
    metadata.add("a.f32", 1e-5f);
    metadata.add("a.bool", true);
    metadata.add("a.u64", uint64_t{1} << 63);
    metadata.add("a.i64", INT64_MIN);
    metadata.add("a.f64", 0.1);
    metadata.add("tokens", GgufArray::of(tokens));
    metadata.add("scores", GgufArray::of(std::span<const float>(scores)));
    metadata.add("empty", GgufArray::of(std::span<const int32_t>()));
    return metadata;
}

TEST(GgufWriter, WritesInAnyOrderByManyThreadsReadBackEqual) {
    TempDir dir;
    std::vector<std::string_view> tokens;
    std::vector<float> scores;
    const GgufMetadata metadata = sample_metadata(tokens, scores);
    auto layout = GgufLayout::make(metadata, {{"w", GgmlType::q8_0, {3, 64}},
                                              {"scale", GgmlType::f32, {1}},
                                              {"experts", GgmlType::nvfp4, {2, 3, 64}},
                                              {"bias", GgmlType::f32, {1, 1, 5}}});
    ASSERT_TRUE(layout.ok()) << layout.error().message();
    std::vector<std::vector<std::byte>> data;
    for (size_t i = 0; i < 4; ++i) {
        data.emplace_back(layout->bytes(i));
        for (size_t j = 0; j < data[i].size(); ++j) data[i][j] = static_cast<std::byte>(i * 50 + j);
        EXPECT_EQ(layout->offset(i) % 32, 0);
    }
    auto writer = GgufFileWriter::create(dir / "x.gguf", *layout);
    ASSERT_TRUE(writer.ok()) << writer.error().message();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {  // thread t writes every fourth byte, last tensor first
            for (int i = 3; i >= 0; --i)
                for (size_t j = t; j < data[i].size(); j += 4)
                    EXPECT_TRUE(writer->write(i, j, Bytes(data[i]).subspan(j, 1)).ok());
        });
    for (auto& thread : threads) thread.join();
    ASSERT_TRUE(writer->finish().ok());

    EXPECT_EQ(std::filesystem::file_size(dir / "x.gguf"), static_cast<uintmax_t>(layout->file_bytes()));
    EXPECT_EQ(layout->file_bytes() % 32, 0) << "the last tensor is padded too";
    const auto file = GgufFile::open(dir / "x.gguf");
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_EQ(file->version(), 3u);
    EXPECT_EQ(file->tensors()[2].shape, (std::vector<int64_t>{2, 3, 64}));
    EXPECT_EQ(file->tensors()[3].shape, (std::vector<int64_t>{5})) << "leading ones are dropped";
    for (size_t i = 0; i < 4; ++i)
        EXPECT_TRUE(std::ranges::equal(file->tensors()[i].data, data[i])) << file->tensors()[i].name;

    const GgufMetadata& m = file->metadata();
    ASSERT_EQ(m.entries().size(), metadata.entries().size());
    for (size_t i = 0; i < m.entries().size(); ++i) EXPECT_EQ(m.entries()[i].key, metadata.entries()[i].key);
    EXPECT_EQ(*m.integer("a.u8"), 200);
    EXPECT_EQ(*m.integer("a.i8"), -3);
    EXPECT_EQ(*m.integer("a.u16"), 60000);
    EXPECT_EQ(*m.integer("a.i16"), -300);
    EXPECT_EQ(*m.integer("a.u32"), 4000000000);
    EXPECT_EQ(*m.integer("a.i32"), -5);
    EXPECT_EQ(*m.integer("a.i64"), INT64_MIN);
    EXPECT_EQ(*m.number("a.f32"), static_cast<double>(1e-5f));
    EXPECT_EQ(*m.number("a.f64"), 0.1);
    EXPECT_EQ(*m.boolean("a.bool"), true);
    EXPECT_EQ(*m.string("general.architecture"), "llama");
    EXPECT_EQ(**m.strings("tokens"), tokens);
    EXPECT_EQ((*m.array("scores", GgufValueType::f32))->at<float>(1), -2.5f);
    EXPECT_EQ(m.integers("empty")->size(), 0u);
    EXPECT_EQ(*m.integers("a.i16"), (std::vector<int64_t>{-300}));
}

TEST(GgufMetadata, GettersNameTheKeyAndBothTypes) {
    GgufMetadata m;
    m.add("x", 1.0f);
    m.add("big", uint64_t{1} << 63);
    EXPECT_FALSE(m.add("x", 2.0f));
    EXPECT_EQ(m.integer("x").error().message(), "metadata key 'x': expected an integer of at most 63 bits, found f32");
    EXPECT_EQ(m.integer("y").error().message(), "metadata has no key 'y'");
    const std::string hostile = "a\nb" + std::string(5000, 'x');  // found by fuzz_gguf
    m.add(hostile, GgufArray::of(std::span<const uint32_t>()));
    for (const std::string& message : {m.strings(hostile).error().message(), m.string(hostile).error().message(),
                                       m.string("\n").error().message()}) {
        EXPECT_EQ(message.find('\n'), message.npos);
        EXPECT_LT(message.size(), 300u);
    }
    EXPECT_FALSE(m.integer("big").ok());
    EXPECT_FALSE(m.boolean("x").ok());
    EXPECT_FALSE(m.strings("x").ok());
    EXPECT_FALSE(m.integer_or("x", 3).ok()) << "present with another type is an error, not the fallback";
    EXPECT_EQ(*m.integer_or("y", 3), 3);
    EXPECT_EQ(*m.string_or("y", "z"), "z");
}

TEST(GgufWriter, UnreadableLayoutsAreRefused) {
    const auto refuse = [](GgufTensorSpec spec) { return !GgufLayout::make({}, {std::move(spec)}).ok(); };
    EXPECT_TRUE(refuse({"", GgmlType::f32, {1}}));
    EXPECT_TRUE(refuse({std::string(64, 'n'), GgmlType::f32, {1}}));
    EXPECT_TRUE(refuse({"x", GgmlType::f32, {}}));
    EXPECT_TRUE(refuse({"x", GgmlType::f32, {1, 1, 1, 1, 1}}));
    EXPECT_TRUE(refuse({"x", GgmlType::f32, {0}}));
    EXPECT_TRUE(refuse({"x", GgmlType::nvfp4, {4, 48}}));
    EXPECT_TRUE(refuse({"x", GgmlType::f32, {INT64_MAX, 2}}));
    EXPECT_FALSE(GgufLayout::make({}, {{"x", GgmlType::f32, {1}}, {"x", GgmlType::f32, {1}}}).ok());
    GgufMetadata bad;
    bad.add("general.alignment", uint32_t{33});
    EXPECT_FALSE(GgufLayout::make(bad, {}).ok());
}

TEST(GgufWriter, AnAlignmentKeyMovesTheData) {
    GgufMetadata metadata;
    metadata.add("general.alignment", uint32_t{256});
    const auto layout = GgufLayout::make(metadata, {{"a", GgmlType::f32, {1}}, {"b", GgmlType::f32, {1}}});
    ASSERT_TRUE(layout.ok());
    EXPECT_EQ(layout->offset(0) % 256, 0);
    EXPECT_EQ(layout->offset(1), layout->offset(0) + 256);
    TempDir dir;
    auto writer = GgufFileWriter::create(dir / "a", *layout);
    ASSERT_TRUE(writer->finish().ok());
    const auto file = GgufFile::open(dir / "a");
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_EQ(file->alignment(), 256u);
}

TEST(GgufWriter, ReopenAcceptsOnlyTheSameLayoutAndWritesStayInsideTheirTensor) {
    TempDir dir;
    const auto layout = GgufLayout::make({}, {{"a", GgmlType::f32, {4}}, {"b", GgmlType::f32, {4}}});
    const auto other = GgufLayout::make({}, {{"a", GgmlType::f32, {4}}, {"c", GgmlType::f32, {4}}});
    const auto longer = GgufLayout::make({}, {{"a", GgmlType::f32, {4}}, {"b", GgmlType::f32, {40}}});
    const std::vector<std::byte> data(16, std::byte{7});
    {
        auto writer = GgufFileWriter::create(dir / "x", *layout);
        ASSERT_TRUE(writer.ok());
        EXPECT_TRUE(writer->write(0, 0, data).ok());
        EXPECT_FALSE(writer->write(0, 1, data).ok());
        EXPECT_FALSE(writer->write(0, -1, Bytes(data).first(1)).ok());
        EXPECT_FALSE(writer->write(0, INT64_MAX, data).ok());
        EXPECT_FALSE(writer->write(2, 0, data).ok());
    }
    EXPECT_FALSE(GgufFileWriter::reopen(dir / "x", *other).ok());
    EXPECT_FALSE(GgufFileWriter::reopen(dir / "x", *longer).ok());
    EXPECT_FALSE(GgufFileWriter::reopen(dir / "absent", *layout).ok());
    auto again = GgufFileWriter::reopen(dir / "x", *layout);
    ASSERT_TRUE(again.ok()) << again.error().message();
    std::vector<std::byte> back(16);
    ASSERT_TRUE(again->read_back(0, 0, back).ok());
    EXPECT_EQ(back, data);
    EXPECT_TRUE(again->finish().ok());
}

TEST(Gguf, ErrorsOfAFileStartWithItsPath) {
    TempDir dir;
    test::write_file(dir / "bad.gguf", "GGUF");
    const auto file = GgufFile::open(dir / "bad.gguf");
    ASSERT_FALSE(file.ok());
    EXPECT_TRUE(file.error().message().starts_with((dir / "bad.gguf").string()));
}

TEST(Gguf, TheGoldenFileHasEveryTensorAtItsOffset) {
    const std::filesystem::path root = test::test_data("golden/gguf");
    const auto file = GgufFile::open(root / "llama-mixed.gguf");
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_EQ(file->tensors().size(), 31u);
    EXPECT_EQ(*file->metadata().integer("llama.block_count"), 3);
    EXPECT_EQ(file->find_tensor("blk.2.ffn_down.weight")->type, GgmlType::nvfp4);
    EXPECT_EQ(file->find_tensor("blk.2.ffn_down.weight")->shape, (std::vector<int64_t>{256, 64}));
}

}  // namespace
}  // namespace nibble
