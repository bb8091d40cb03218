// Parts of mapped files that are held in memory.
#include "base/map_faults.h"
#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace nibble {
namespace {

TEST(HeldPages, StayValidAfterTheFileChanges) {
    const std::filesystem::path path = testing::TempDir() + "held-" + std::to_string(::getpid());
    std::string text;
    for (int i = 0; i < 5000; ++i) text += "line " + std::to_string(i) + "\n";
    std::ofstream(path) << text;
    auto map = MappedFile::open(path);
    ASSERT_TRUE(map.ok());
    const Bytes all = map->bytes(), part = all.subspan(9001, 20'000);
    const auto read = [](Bytes bytes) {
        return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    ASSERT_TRUE(hold_pages(part).ok());
    EXPECT_EQ(read(all), text);
    map->done_with(part);
    EXPECT_EQ(read(part), text.substr(9001, 20'000));
    std::fstream(path, std::ios::in | std::ios::out) << std::string(text.size(), '#');
    EXPECT_EQ(read(part), text.substr(9001, 20'000));
    EXPECT_EQ(read(all.last(100)), std::string(100, '#')) << "the rest is the file's";
    std::filesystem::resize_file(path, 0);
    EXPECT_EQ(read(part), text.substr(9001, 20'000));
    EXPECT_TRUE(check_maps().ok());
    std::filesystem::remove(path);
    EXPECT_EQ(read(part), text.substr(9001, 20'000));
    const std::string elsewhere = "not in a map";
    EXPECT_TRUE(hold_pages(std::as_bytes(std::span(elsewhere))).ok());
    EXPECT_EQ(elsewhere, "not in a map");
}

}  // namespace
}  // namespace nibble
