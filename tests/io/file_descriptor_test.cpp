#include "io/file_descriptor.h"

#include "base/thread_pool.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <fcntl.h>

#include <algorithm>
#include <fstream>

namespace nibble::test {
namespace {

std::vector<std::byte> pattern(int64_t n) {
    std::vector<std::byte> bytes(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) bytes[static_cast<size_t>(i)] = static_cast<std::byte>(i * 7919 >> 5);
    return bytes;
}

// Writes pieces of many sizes, below and above the limit for maps, at odd offsets, from several threads; adjacent
// pieces share pages.
void write_in_pieces(const FileDescriptor& file, const std::vector<std::byte>& bytes) {
    std::vector<int64_t> ends{0};
    for (int64_t k = 0; ends.back() < static_cast<int64_t>(bytes.size()); ++k)
        ends.push_back(std::min<int64_t>(ends.back() + 1 + k * k % 190'001, static_cast<int64_t>(bytes.size())));
    ThreadPool pool(4);
    pool.parallel_for(static_cast<int64_t>(ends.size()) - 1, [&](int64_t i) {
        const auto begin = static_cast<size_t>(ends[static_cast<size_t>(i)]),
                   end = static_cast<size_t>(ends[static_cast<size_t>(i) + 1]);
        const Status wrote = file.write_at(Bytes(bytes).subspan(begin, end - begin), static_cast<int64_t>(begin));
        EXPECT_TRUE(wrote.ok()) << wrote.error().message();
    });
}

TEST(FileDescriptor, WritesEveryByteWithAndWithoutReservedSpace) {
    const TempDir dir;
    const auto bytes = pattern(20'000'003);
    for (const bool reserved : {false, true}) {
        const auto path = dir / (reserved ? "reserved" : "grown");
        auto file = FileDescriptor::open(path, O_RDWR | O_CREAT | O_TRUNC);
        ASSERT_TRUE(file.ok());
        if (reserved) {
            ASSERT_TRUE(file->reserve(static_cast<int64_t>(bytes.size())).ok());
        }
        write_in_pieces(*file, bytes);
        std::vector<std::byte> back(bytes.size());
        ASSERT_TRUE(file->read_at(back, 0).ok());
        EXPECT_TRUE(back == bytes);
        ASSERT_TRUE(file->sync().ok());
        ASSERT_TRUE(file->close().ok());
        auto again = FileDescriptor::open(path, O_RDONLY);
        ASSERT_TRUE(again.ok());
        EXPECT_EQ(*again->size(), static_cast<int64_t>(bytes.size()));
        std::ranges::fill(back, std::byte{0});
        ASSERT_TRUE(again->read_at(back, 0).ok());
        EXPECT_TRUE(back == bytes);
    }
}

TEST(FileDescriptor, WritesBeyondReservedSpaceGrowTheFileAlsoAfterAMove) {
    const TempDir dir;
    auto opened = FileDescriptor::open(dir / "f", O_RDWR | O_CREAT | O_TRUNC);
    ASSERT_TRUE(opened.ok());
    ASSERT_TRUE(opened->reserve(100'000).ok());
    FileDescriptor file = *std::move(opened);
    const auto bytes = pattern(300'000);
    ASSERT_TRUE(file.write_at(Bytes(bytes).subspan(0, 90'000), 0).ok());
    ASSERT_TRUE(file.write_at(Bytes(bytes).subspan(90'000), 90'000).ok());
    std::vector<std::byte> back(bytes.size());
    ASSERT_TRUE(file.read_at(back, 0).ok());
    EXPECT_TRUE(back == bytes);
}

// Writing through a map must not increase the memory of the process.
TEST(FileDescriptor, WrittenPagesAreReleased) {
    const auto resident = [] {
        std::ifstream in("/proc/self/status");
        for (std::string line; std::getline(in, line);)
            if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
        return 0LL;
    };
    const TempDir dir;
    auto file = FileDescriptor::open(dir / "f", O_RDWR | O_CREAT | O_TRUNC);
    ASSERT_TRUE(file.ok());
    const auto bytes = pattern(1 << 20);
    ASSERT_TRUE(file->reserve(64 << 20).ok());
    const auto before = resident();
    for (int64_t i = 0; i < 64; ++i) ASSERT_TRUE(file->write_at(bytes, i << 20).ok());
    EXPECT_LT(resident() - before, 8 << 10);
}

}  // namespace
}  // namespace nibble::test
