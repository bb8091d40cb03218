#include "eval/reference_file.h"

#include "eval/token_scores.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace nibble {
namespace {

// Log-probabilities with the spread of a language model's: about 20 nats.
std::vector<float> random_rows(size_t rows, size_t vocab, uint32_t seed, double spread = 3) {
    std::mt19937 rng(seed);
    std::normal_distribution<double> normal(0, spread);
    std::vector<float> out;
    for (size_t r = 0; r < rows; ++r) {
        std::vector<double> row(vocab);
        double z = 0;
        for (double& v : row) z += std::exp(v = normal(rng));
        for (const double v : row) out.push_back(float(v - std::log(z)));
    }
    return out;
}

ReferenceShape shape_of(int64_t vocab) { return {vocab, {2, 1, 3}, {{"model", "abc"}, {"text", "t.txt"}}}; }

TEST(ReferenceFile, AValueIsAtMostHalfAStepAway) {
    const auto row = random_rows(1, 5000, 1);
    std::vector<std::byte> bytes(8 + 2 * row.size());
    encode_row(row, bytes);
    std::vector<float> back(row.size());
    decode_row(bytes, back);
    const auto [low, high] = std::ranges::minmax(row);
    const double step = (double(high) - low) / 65535;
    for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(back[i], row[i], 0.5 * step + 2e-6);
    EXPECT_EQ(*std::ranges::max_element(back), high);
    const std::vector<float> flat(10, -2.5f);
    std::vector<float> same(10);
    std::vector<std::byte> small(28);
    encode_row(flat, small);
    decode_row(small, same);
    EXPECT_EQ(same, flat);
}

// The error of the divergence that the header states.
TEST(ReferenceFile, ADivergenceHardlyMoves) {
    constexpr size_t vocab = 4096, rows = 200;
    const auto p = random_rows(rows, vocab, 1);
    std::mt19937 rng(9);
    std::normal_distribution<float> noise(0, 0.3f);
    std::vector<std::byte> bytes(8 + 2 * vocab);
    std::vector<float> back(vocab);
    double sum = 0, sum_back = 0, largest = 0;
    for (size_t r = 0; r < rows; ++r) {
        const std::span<const float> row(&p[r * vocab], vocab);
        std::vector<float> q(vocab);
        double z = 0;
        for (size_t i = 0; i < vocab; ++i) z += std::exp(double(q[i] = row[i] + noise(rng)));
        for (float& v : q) v -= float(std::log(z));
        encode_row(row, bytes);
        decode_row(bytes, back);
        const double exact = kl_divergence(row, q), coded = kl_divergence(back, q);
        sum += exact;
        sum_back += coded;
        largest = std::max(largest, std::abs(coded - exact));
    }
    EXPECT_GT(sum / rows, 0.02);
    EXPECT_LT(largest, 1e-4);
    EXPECT_LT(std::abs(sum_back - sum) / rows, 5e-6);
}

TEST(ReferenceFile, IsFilledInOrderAndReopened) {
    const test::TempDir dir;
    const auto path = dir / "reference";
    const ReferenceShape shape = shape_of(50);
    const auto rows = random_rows(6, 50, 2);
    {
        auto file = ReferenceFile::open(path, shape);
        ASSERT_TRUE(file.ok()) << file.error().message();
        EXPECT_EQ(file->windows(), 0);
        ASSERT_TRUE(file->append(std::span(rows).first(100)).ok());
        ASSERT_TRUE(file->append(std::span(rows).subspan(100, 50)).ok());
        EXPECT_FALSE(file->complete());
    }
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);  // the writer died within a window
    auto file = ReferenceFile::open(path, shape);
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file->windows(), 1);
    ASSERT_TRUE(file->append(std::span(rows).subspan(100, 50)).ok());
    ASSERT_TRUE(file->append(std::span(rows).subspan(150, 150)).ok());
    EXPECT_TRUE(file->complete());
    std::vector<float> back(150);
    ASSERT_TRUE(file->read(2, back).ok());
    for (size_t i = 0; i < back.size(); ++i) EXPECT_NEAR(back[i], rows[150 + i], 1e-3);
}

TEST(ReferenceFile, AnotherReferenceIsRefusedAndNamed) {
    const test::TempDir dir;
    const auto path = dir / "reference";
    ASSERT_TRUE(ReferenceFile::open(path, shape_of(50)).ok());
    ReferenceShape other = shape_of(50);
    other.identity[0].second = "xyz";
    const auto file = ReferenceFile::open(path, other);
    ASSERT_FALSE(file.ok());
    EXPECT_NE(file.error().message().find("model was \"abc\", is \"xyz\""), std::string::npos)
        << file.error().message();
    test::write_file(path, "something else entirely");
    EXPECT_FALSE(ReferenceFile::open(path, shape_of(50)).ok());
    std::vector<float> bad(100, NAN);
    auto fresh = ReferenceFile::open(dir / "fresh", shape_of(50));
    ASSERT_TRUE(fresh.ok());
    EXPECT_FALSE(fresh->append(bad).ok());
}

}  // namespace
}  // namespace nibble
