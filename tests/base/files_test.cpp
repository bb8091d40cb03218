#include "support/files.h"
#include "base/checked.h"
#include "base/dtype.h"
#include "base/map_faults.h"
#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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

TEST(MappedFile, AFileThatShrinksIsNamedAndDoesNotEndTheProcess) {
    test::TempDir dir;
    test::write_file(dir / "whole", std::string(100'000, 'x'));
    test::write_file(dir / "shrinks", std::string(100'000, 'x'));
    // In a separate process, because the result is remembered until the process ends.
    const auto run = [&] {
        const auto whole = MappedFile::open(dir / "whole");
        auto file = MappedFile::open(dir / "shrinks");
        if (!file.ok() || !check_maps().ok()) ::_exit(1);
        if (::truncate((dir / "shrinks").c_str(), 10) != 0) ::_exit(2);
        int sum = 0;
        for (const std::byte b : file->bytes().subspan(50'000)) sum += static_cast<int>(b);
        if (sum != 0) ::_exit(3);
        const std::string want = (dir / "shrinks").string() + ": became shorter while it was read";
        if (check_maps().ok() || check_maps().error().message() != want) ::_exit(4);
        if (file->bytes()[5] != std::byte{'x'} || whole->bytes()[99'999] != std::byte{'x'}) ::_exit(5);
        file = MappedFile::open(dir / "whole");  // the map is closed, the result remains
        if (check_maps().ok() || check_maps().error().message() != want) ::_exit(6);
        ::_exit(0);
    };
    EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST(ReadTextFile, ReadsFilesWithoutASizeAndRefusesFifosAndMemory) {
    test::TempDir dir;
    EXPECT_FALSE(read_text_file("/proc/self/stat")->empty());
    EXPECT_FALSE(read_text_file("/proc/self/stat", 3).ok());
    EXPECT_NE(read_text_file("/proc/self/mem").error().message().find("cannot read"), std::string::npos);
    ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
    EXPECT_NE(read_text_file(dir / "fifo").error().message().find("not a regular file"), std::string::npos);
    EXPECT_NE(read_text_file("/dev/zero").error().message().find("not a regular file"), std::string::npos);
}
