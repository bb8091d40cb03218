#include "io/safetensors.h"

#include "io/craft.h"
#include "support/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

namespace nibble {
namespace {

using test::as_bytes;
using test::as_text;
using test::craft;
using testing::HasSubstr;

// Returns the error of a file with this header and data; fails the test if the file is accepted.
std::string refusal(std::string_view header, std::string_view data = {}) {
    const std::string file = craft(header, data);
    const auto result = SafetensorsFile::parse(as_bytes(file));
    EXPECT_FALSE(result.ok()) << "accepted: " << header;
    return result.ok() ? "" : result.error().message();
}

TEST(Safetensors, ReadsNamesTypesShapesAndViewsInOrderOfOffset) {
    const std::string file = craft(R"({"__metadata__":{"format":"pt","note":""},)"
                                   R"("late":{"dtype":"BF16","shape":[2,1],"data_offsets":[4,8]},)"
                                   R"("early":{"data_offsets":[0,4],"shape":[],"dtype":"F32"}}  )",
                                   "abcdEFGH");
    const auto parsed = SafetensorsFile::parse(as_bytes(file));
    ASSERT_TRUE(parsed.ok()) << parsed.error().message();
    ASSERT_EQ(parsed->tensors().size(), 2u);
    const TensorRecord& early = parsed->tensors()[0];
    EXPECT_EQ(early.name, "early");
    EXPECT_EQ(early.dtype, DType::f32);
    EXPECT_TRUE(early.shape.empty());
    EXPECT_EQ(as_text(early.data), "abcd");
    EXPECT_EQ(static_cast<const void*>(early.data.data()), file.data() + file.size() - 8) << "a view, not a copy";
    const TensorRecord* late = parsed->find("late");
    ASSERT_EQ(late, &parsed->tensors()[1]);
    EXPECT_EQ(late->shape, (std::vector<int64_t>{2, 1}));
    EXPECT_EQ(as_text(late->data), "EFGH");
    EXPECT_EQ(parsed->find("absent"), nullptr);
    EXPECT_EQ(parsed->find("__metadata__"), nullptr);
    EXPECT_EQ(parsed->data_bytes(), 8);
    EXPECT_EQ(parsed->metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"note", ""}}));
}

TEST(Safetensors, AcceptsEveryDtype) {
    for (int d = 0; d <= static_cast<int>(DType::f64); ++d) {
        const auto dtype = static_cast<DType>(d);
        const size_t bytes = 3 * dtype_bytes(dtype);
        const std::string file = craft(
            fmt::format(R"({{"t":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})", dtype_name(dtype), bytes),
            std::string(bytes, 'x'));
        const auto parsed = SafetensorsFile::parse(as_bytes(file));
        ASSERT_TRUE(parsed.ok()) << parsed.error().message();
        EXPECT_EQ(parsed->tensors()[0].dtype, dtype);
    }
}

TEST(Safetensors, AcceptsTensorsWithoutElementsAnywhereBetweenOthers) {
    const std::string file = craft(
        R"({"z":{"dtype":"U8","shape":[0,9223372036854775807,5],"data_offsets":[2,2]},)"
        R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"F64","shape":[3,0],"data_offsets":[0,0]},)"
        R"("b":{"dtype":"U8","shape":[1,1,1],"data_offsets":[2,3]},"x":{"dtype":"I8","shape":[0],"data_offsets":[3,3]}})",
        "123");
    const auto parsed = SafetensorsFile::parse(as_bytes(file));
    ASSERT_TRUE(parsed.ok()) << parsed.error().message();
    std::string order;
    for (const TensorRecord& t : parsed->tensors()) order += t.name;
    EXPECT_EQ(order, "yazbx");
    EXPECT_TRUE(parsed->find("z")->data.empty());
}

TEST(Safetensors, AcceptsAFileWithoutTensors) {
    for (const char* header : {"{}", "{}      ", "{\n}\t\r\n", R"({"__metadata__":{}})"}) {
        const std::string file = craft(header);
        const auto parsed = SafetensorsFile::parse(as_bytes(file));
        ASSERT_TRUE(parsed.ok()) << parsed.error().message();
        EXPECT_TRUE(parsed->tensors().empty());
    }
}

TEST(Safetensors, KeepsViewsValidWhenMoved) {
    const std::string file = craft(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
    auto parsed = SafetensorsFile::parse(as_bytes(file));
    ASSERT_TRUE(parsed.ok());
    const SafetensorsFile moved = *std::move(parsed);
    ASSERT_NE(moved.find("t"), nullptr);
    EXPECT_EQ(as_text(moved.find("t")->data), "x");
}

TEST(Safetensors, RefusesEveryTruncationAndEveryExtension) {
    const std::string file = craft(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                   R"("b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}})",
                                   "1234567");
    ASSERT_TRUE(SafetensorsFile::parse(as_bytes(file)).ok());
    for (size_t n = 0; n < file.size(); ++n)
        EXPECT_FALSE(SafetensorsFile::parse(as_bytes(file.substr(0, n))).ok()) << n << " bytes";
    EXPECT_FALSE(SafetensorsFile::parse(as_bytes(file + "8")).ok());
}

TEST(Safetensors, SurvivesEverySingleByteChange) {
    const std::string good = craft(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                   R"("b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}})",
                                   "1234567");
    for (size_t at = 0; at < good.size(); ++at) {
        for (int value = 0; value < 256; ++value) {
            std::string file = good;
            file[at] = static_cast<char>(value);
            const auto parsed = SafetensorsFile::parse(as_bytes(file));
            if (!parsed.ok()) {
                EXPECT_FALSE(parsed.error().message().empty());
                continue;
            }
            for (const TensorRecord& t : parsed->tensors()) {
                ASSERT_GE(static_cast<const void*>(t.data.data()), file.data());
                ASSERT_LE(static_cast<const void*>(t.data.data() + t.data.size()), file.data() + file.size());
            }
        }
    }
}

TEST(Safetensors, RefusesWrongHeaderLengths) {
    for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{100'000'000}, uint64_t{100'000'001},
                                  uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
        std::string file = craft("{}");
        std::memcpy(file.data(), &length, sizeof length);
        EXPECT_FALSE(SafetensorsFile::parse(as_bytes(file)).ok()) << length;
    }
}

TEST(Safetensors, RefusesOffsetsThatDoNotTileTheData) {
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                        R"("b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})",
                        "12345"),
                HasSubstr("'b' at [2, 5) overlaps tensor 'a' at [0, 3)"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                        R"("b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
                        "123"),
                HasSubstr("overlaps"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                        R"("b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
                        "123"),
                HasSubstr("overlaps"))
        << "an empty tensor inside another";
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})",
                        "12345"),
                HasSubstr("bytes [1, 2) of the data, before tensor 'b', belong to no tensor"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "12"), HasSubstr("bytes [0, 1)"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "12"), HasSubstr("at the end"));
    EXPECT_THAT(refusal("{}", "1"), HasSubstr("at the end"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "1"), HasSubstr("cut short"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[9,9]}})", "1"), HasSubstr("cut short"));
    EXPECT_THAT(
        refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[18446744073709551614,18446744073709551615]}})"),
        HasSubstr("needs 2 bytes"));
    EXPECT_THAT(
        refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}})"),
        HasSubstr("cut short"));
}

TEST(Safetensors, RefusesShapesThatDisagreeWithTheBytes) {
    EXPECT_THAT(refusal(R"({"w":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,6]}})", "123456"),
                HasSubstr("tensor 'w': BF16 [2, 2] needs 8 bytes, data_offsets are [0, 6]"));
    EXPECT_THAT(refusal(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "1"), HasSubstr("[1, 0]"));
    EXPECT_THAT(refusal(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]}})", "1"),
                HasSubstr("needs 1 bytes"))
        << "0 - (2^64 - 1) wraps to 1";
    for (const char* shape : {"[9223372036854775807,2]", "[4294967296,4294967296]", "[9223372036854775807,9,0]"})
        EXPECT_THAT(refusal(fmt::format(R"({{"w":{{"dtype":"U8","shape":{},"data_offsets":[0,0]}}}})", shape)),
                    HasSubstr("overflows"));
    EXPECT_THAT(refusal(R"({"w":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})"),
                HasSubstr("overflows"));
    EXPECT_THAT(refusal(R"({"w":{"dtype":"U8","shape":[9223372036854775808,0],"data_offsets":[0,0]}})"),
                HasSubstr("beyond 63 bits"));
}

TEST(Safetensors, RefusesAnUnknownDtypeByName) {
    EXPECT_THAT(refusal(R"({"w":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", "1"),
                HasSubstr("tensor 'w': unknown dtype 'F4'"));
}

TEST(Safetensors, RefusesEntriesThatAreNotDtypeShapeAndOffsets) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1})", "unknown key 'x'"},
        {R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"dtype":"U8"})", "duplicate key 'dtype'"},
        {R"({"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]})", "duplicate key 'shape'"},
        {R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"data_offsets":[0,1]})", "duplicate key 'data_offsets'"},
        {R"({"shape":[1],"data_offsets":[0,1]})", "has no dtype"},
        {R"({"dtype":"U8","data_offsets":[0,1]})", "has no shape"},
        {R"({"dtype":"U8","shape":[1]})", "has no data_offsets"},
        {R"({})", "has no dtype"},
        {R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})", "dtype must be a string, found a number"},
        {R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", "shape must be an array, found a number"},
        {R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", "whole numbers, found a negative number"},
        {R"({"dtype":"U8","shape":[-0],"data_offsets":[0,1]})", "whole numbers, found"},
        {R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})", "whole numbers, found '1.0'"},
        {R"({"dtype":"U8","shape":[1e0],"data_offsets":[0,1]})", "whole numbers, found '1e0'"},
        {R"({"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]})", "whole numbers, found"},
        {R"({"dtype":"U8","shape":[null],"data_offsets":[0,1]})", "found null"},
        {R"({"dtype":"U8","shape":[true],"data_offsets":[0,1]})", "found true"},
        {R"({"dtype":"U8","shape":["1"],"data_offsets":[0,1]})", "found a string"},
        {R"({"dtype":"U8","shape":[[1]],"data_offsets":[0,1]})", "found an array"},
        {R"({"dtype":"U8","shape":{},"data_offsets":[0,1]})", "found an object"},
        {R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", "needs two numbers, has 1"},
        {R"({"dtype":"U8","shape":[1],"data_offsets":[]})", "needs two numbers, has 0"},
        {R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,2]})", "more than two"},
        {R"({"dtype":"U8","shape":[1],"data_offsets":[0,1.5]})", "whole numbers, found '1.5'"},
        {R"({"dtype":"U8","shape":[1],"data_offsets":"01"})", "must be an array, found a string"},
        {R"(["U8",[1],[0,1]])", "must be an object, found an array"},
        {R"(null)", "must be an object, found null"},
    };
    for (const auto& [entry, reason] : cases) {
        const std::string message = refusal(fmt::format(R"({{"w":{}}})", entry), "1");
        EXPECT_THAT(message, HasSubstr("tensor 'w': ")) << entry;
        EXPECT_THAT(message, HasSubstr(reason)) << entry;
    }
}

TEST(Safetensors, RefusesMetadataThatIsNotStrings) {
    EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})"), HasSubstr("'a' must be a string, found a number"));
    EXPECT_THAT(refusal(R"({"__metadata__":{"a":{}}})"), HasSubstr("'a' must be a string, found an object"));
    EXPECT_THAT(refusal(R"({"__metadata__":null})"), HasSubstr("must be an object, found null"));
    EXPECT_THAT(refusal(R"({"__metadata__":{"a":"","a":""}})"), HasSubstr("duplicate key 'a'"));
    EXPECT_THAT(refusal(R"({"__metadata__":{},"__metadata__":{}})"), HasSubstr("duplicate key '__metadata__'"));
}

TEST(Safetensors, RefusesDuplicateNames) {
    const char* one = R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
    const char* two = R"("w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})";
    const char* escaped = R"("\u0077":{"dtype":"U8","shape":[1],"data_offsets":[1,2]})";
    EXPECT_THAT(refusal(fmt::format("{{{},{}}}", one, two), "12"), HasSubstr("duplicate tensor name 'w'"));
    EXPECT_THAT(refusal(fmt::format("{{{},{}}}", one, one), "1"), HasSubstr("duplicate tensor name 'w'"));
    EXPECT_THAT(refusal(fmt::format("{{{},{}}}", one, escaped), "12"), HasSubstr("duplicate tensor name 'w'"));
}

TEST(Safetensors, RefusesHeadersThatAreNotOneJsonObject) {
    using namespace std::string_literals;
    for (const std::string& header :
         {""s, " {}"s, "[]"s, "null"s, "{}{}"s, "{},"s, "{}\0"s, "{}\0\0 "s, "\xEF\xBB\xBF{}"s, "{\"a\":}"s, "{a:1}"s,
          "{"s, R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},})"s, R"({"a":)"s, "{/**/}"s})
        EXPECT_FALSE(refusal(header).empty());
    EXPECT_THAT(refusal(std::string(1 << 20, '[')), HasSubstr("does not begin with '{'"));
    std::string deep = R"({"a":)";
    for (int i = 0; i < 100'000; ++i) deep += R"({"a":)";
    EXPECT_THAT(refusal(deep), HasSubstr("unknown key 'a'")) << "no recursion to exhaust";
}

TEST(Safetensors, RefusesNamesThatAreNotUtf8) {
    for (const char* name : {"\xFF", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\\ud800", "a\nb"})
        EXPECT_THAT(refusal(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}})", name)),
                    HasSubstr("invalid JSON"));
}

TEST(Safetensors, ErrorMessagesStayOneShortLineForEveryName) {
    const std::string name = "x\\n\\u001b[2J\\u0000" + std::string(5000, 'y');
    const std::string message =
        refusal(fmt::format(R"({{"{}":{{"dtype":"F4","shape":[0],"data_offsets":[0,0]}}}})", name));
    EXPECT_THAT(message, HasSubstr(R"(tensor 'x\n\u001b[2J\u0000yyy)"));
    EXPECT_LT(message.size(), 400u);
    for (const char c : message + refusal("{\"\xFF\n\":1}")) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << int{c};
}

TEST(Safetensors, OpenNamesTheFileInErrors) {
    test::TempDir dir;
    test::write_file(dir / "bad.safetensors", "12345");
    test::write_file(dir / "empty.safetensors", "");
    EXPECT_THAT(SafetensorsFile::open(dir / "bad.safetensors").error().message(),
                HasSubstr("bad.safetensors: not a saf"));
    EXPECT_THAT(SafetensorsFile::open(dir / "empty.safetensors").error().message(), HasSubstr("0 bytes"));
    EXPECT_THAT(SafetensorsFile::open(dir / "absent").error().message(),
                HasSubstr("absent: cannot open: No such file"));
    EXPECT_THAT(SafetensorsFile::open(dir.path()).error().message(), HasSubstr("not a regular file"));
}

TEST(Safetensors, OpensAHundredThousandTensorsInUnderASecond) {
    constexpr int count = 100'000;
    std::string header = R"({"__metadata__":{"format":"pt"})";
    for (int i = 0; i < count; ++i)
        header += fmt::format(R"(,"model.layers.{}.mlp.experts.{}.down_proj.weight":{{"dtype":"U8","shape":[1,2],)"
                              R"("data_offsets":[{},{}]}})",
                              i / 1000, i % 1000, 2 * i, 2 * i + 2);
    header += '}';
    test::TempDir dir;
    test::write_file(dir / "m.safetensors", craft(header, std::string(2 * count, 'x')));
    const std::clock_t start = std::clock();  // time of this process, independent of other work on the machine
    const auto file = SafetensorsFile::open(dir / "m.safetensors");
    const double took = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_EQ(file->tensors().size(), static_cast<size_t>(count));
    EXPECT_NE(file->find("model.layers.99.mlp.experts.999.down_proj.weight"), nullptr);
    RecordProperty("seconds", std::to_string(took));
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(took, 1.0);
#endif
}

}  // namespace
}  // namespace nibble
