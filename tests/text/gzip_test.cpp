#include "text/gzip.h"

#include "support/gzip.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble {
namespace {

using test::gzipped;

TEST(Gunzip, UnpacksOneMemberOrSeveral) {
    std::string text;
    for (int i = 0; i < 300'000; ++i) text += std::to_string(i) + " ";
    const auto one = gunzip(gzipped(text), text.size() + 1);
    ASSERT_TRUE(one.ok()) << one.error().message();
    EXPECT_TRUE(one->text == text);
    EXPECT_FALSE(one->cut);
    const auto two = gunzip(gzipped("hello ") + gzipped("world"), 100);
    ASSERT_TRUE(two.ok());
    EXPECT_EQ(two->text, "hello world");
    EXPECT_EQ(gunzip(gzipped(""), 100)->text, "");
}

TEST(Gunzip, StopsAtTheLimit) {
    const std::string bomb = gzipped(std::string(50'000'000, 'a'));
    EXPECT_LT(bomb.size(), 100'000u);
    const auto out = gunzip(bomb, 1'000'000);
    ASSERT_TRUE(out.ok());
    EXPECT_EQ(out->text.size(), 1'000'000u);
    EXPECT_TRUE(out->cut);
}

TEST(Gunzip, RefusesDamageAndAnEarlyEnd) {
    const std::string packed = gzipped("hello to the world, and to everyone in it");
    EXPECT_FALSE(gunzip("", 100).ok());
    EXPECT_FALSE(gunzip("hello", 100).ok());
    for (size_t size = 1; size < packed.size(); ++size) EXPECT_FALSE(gunzip(packed.substr(0, size), 100).ok()) << size;
    std::string damaged = packed;
    damaged[packed.size() / 2] ^= 0x55;
    EXPECT_FALSE(gunzip(damaged, 100).ok());
    EXPECT_FALSE(gunzip(packed + "rest", 100).ok());
}

}  // namespace
}  // namespace nibble
