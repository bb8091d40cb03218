#include "base/large_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace nibble {
namespace {

bool all_zero(const std::byte* p, int64_t n) {
    return std::all_of(p, p + n, [](std::byte b) { return b == std::byte{0}; });
}

TEST(LargePages, AreAlignedAndZero) {
    for (const int64_t bytes : {int64_t{1}, large_page, large_page + 1}) {
        const auto p = large_pages(bytes);
        ASSERT_TRUE(p);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p.get()) % large_page, 0u);
        EXPECT_TRUE(all_zero(p.get(), bytes));
        std::fill_n(p.get(), bytes, std::byte{1});
    }
}

TEST(SharedPages, ArraysAreApartZeroAndOutliveTheirSource) {
    std::optional<SharedPages> pages(std::in_place);
    std::vector<std::shared_ptr<std::byte>> arrays;
    const std::vector<int64_t> sizes{1, 64, 65, 1000, 20 * large_page, 40 * large_page, 7};
    for (const int64_t n : sizes) {
        arrays.push_back(pages->take(n));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(arrays.back().get()) % 64, 0u);
        EXPECT_TRUE(all_zero(arrays.back().get(), n));
        std::fill_n(arrays.back().get(), n, static_cast<std::byte>(arrays.size()));
    }
    pages.reset();
    for (size_t i = 0; i < arrays.size(); ++i)
        EXPECT_EQ(std::count(arrays[i].get(), arrays[i].get() + sizes[i], static_cast<std::byte>(i + 1)), sizes[i]);
}

}  // namespace
}  // namespace nibble
