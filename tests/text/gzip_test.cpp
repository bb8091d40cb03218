#include "text/gzip.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <string>

namespace nibble {
namespace {

std::string gzipped(const std::string& text) {
    z_stream stream{};
    EXPECT_EQ(::deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    std::string packed(::deflateBound(&stream, text.size()), '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_out = static_cast<uInt>(packed.size());
    EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed.resize(stream.total_out);
    ::deflateEnd(&stream);
    return packed;
}

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

TEST(Gunzip, StopsAtTheLimitWhateverThereIs) {
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
