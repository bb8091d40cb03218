#include "support/files.h"
#include "base/checked.h"
#include "base/dtype.h"
#include "base/mapped_file.h"

#include <gtest/gtest.h>

using namespace nibble;

TEST(MappedFile, ShowsTheBytesOfAFile) {
    test::TempDir dir;
    test::write_file(dir / "a", "hello");
    auto file = MappedFile::open(dir / "a");
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()), "hello");
    MappedFile moved = std::move(*file);
    EXPECT_EQ(moved.bytes().size(), 5u);
}

TEST(MappedFile, AnEmptyFileIsAnEmptySpan) {
    test::TempDir dir;
    test::write_file(dir / "empty", "");
    auto file = MappedFile::open(dir / "empty");
    ASSERT_TRUE(file.ok());
    EXPECT_TRUE(file->bytes().empty());
}

TEST(MappedFile, MissingFilesAndFoldersAreErrorsThatNameThePath) {
    test::TempDir dir;
    EXPECT_EQ(MappedFile::open("/nowhere/x").error().message(), "/nowhere/x: cannot open: No such file or directory");
    EXPECT_NE(MappedFile::open(dir.path()).error().message().find("not a regular file"), std::string::npos);
}

TEST(ReadTextFile, RefusesFilesOverTheLimit) {
    test::TempDir dir;
    test::write_file(dir / "t", "12345");
    EXPECT_EQ(*read_text_file(dir / "t"), "12345");
    EXPECT_FALSE(read_text_file(dir / "t", 4).ok());
}

TEST(Checked, OverflowIsEmptyNotWrapped) {
    const int64_t big[] = {int64_t{1} << 40, int64_t{1} << 30};
    EXPECT_FALSE(checked_elements(big).has_value());
    const int64_t negative[] = {2, -1};
    EXPECT_FALSE(checked_elements(negative).has_value());
    EXPECT_EQ(checked_elements(std::span<const int64_t>{}), 1);
}

TEST(DTypeNames, RoundTripInBothSpellings) {
    for (int i = 0; i <= static_cast<int>(DType::f64); ++i) {
        const auto d = static_cast<DType>(i);
        EXPECT_EQ(dtype_from_name(dtype_name(d)), d);
        EXPECT_EQ(dtype_from_torch_name(dtype_torch_name(d)), d);
    }
    EXPECT_EQ(dtype_from_torch_name("torch.bfloat16"), DType::bf16);
    EXPECT_FALSE(dtype_from_name("BF17").has_value());
}
