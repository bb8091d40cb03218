#include "data/loader.h"
#include "data/batch_source.h"
#include "data/permutation.h"
#include "data/split_writer.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace nibble {
namespace {

// Creates a set in which token number i has id i, with the given documents and masks.
std::shared_ptr<const TokenSet> counting_set(const std::filesystem::path& folder, const std::vector<int64_t>& documents,
                                             int64_t shard_tokens, int64_t learned_from = 0) {
    DataSplitWriter writer(folder, "train", 2, shard_tokens);
    TokenId next = 0;
    for (const int64_t size : documents) {
        std::vector<TokenId> ids;
        std::vector<bool> learned;
        for (int64_t i = 0; i < size; ++i) {
            ids.push_back(next++);
            learned.push_back(i >= learned_from);
        }
        EXPECT_TRUE(writer.add(ids, learned, 0).ok());
    }
    DataManifest manifest{.vocab = 60000, .validation_by = "none"};
    auto split = writer.finish();
    EXPECT_TRUE(split.ok());
    manifest.train = *std::move(split);
    auto set = TokenSet::open(folder, manifest, false);
    EXPECT_TRUE(set.ok()) << set.error().message();
    return std::make_shared<TokenSet>(*std::move(set));
}

TrainBatch taken(DataLoader& loader, int64_t rows) {
    auto batch = loader.next(rows);
    EXPECT_TRUE(batch.ok()) << batch.error().message();
    const Status good = check(*batch, 60000);
    EXPECT_TRUE(good.ok()) << good.error().message();
    return *std::move(batch);
}

TEST(RowPermutation, HasEveryValueOnce) {
    for (const uint64_t n : {1, 2, 3, 4, 5, 7, 63, 64, 65, 1000, 4097}) {
        const Permutation order(n, {3, 9});
        std::set<uint64_t> seen;
        for (uint64_t i = 0; i < n; ++i) seen.insert(order.at(i));
        EXPECT_EQ(seen.size(), n);
        EXPECT_EQ(*seen.rbegin(), n - 1);
    }
    const Permutation a(1000, {3, 9}), b(1000, {3, 10});
    int same = 0, in_place = 0;
    for (uint64_t i = 0; i < 1000; ++i) {
        same += a.at(i) == b.at(i);
        in_place += a.at(i) == i;
    }
    EXPECT_LT(same, 10);
    EXPECT_LT(in_place, 10);
}

TEST(Loader, AnEpochIsEveryWindowOnceInAnotherOrder) {
    test::TempDir dir;
    const auto set = counting_set(dir.path(), {403}, 1000);  // 25 windows of 16, and 2 spare tokens
    auto loader = DataLoader::create(set, {.seq = 16, .seed = 4});
    ASSERT_TRUE(loader.ok());
    ASSERT_EQ(loader->windows(), 25);
    std::set<int64_t> shifts;
    std::set<std::vector<int32_t>> orders;
    for (int epoch = 0; epoch < 6; ++epoch) {
        const TrainBatch batch = taken(*loader, 25);
        std::vector<int32_t> firsts;
        for (int64_t r = 0; r < 25; ++r) {
            firsts.push_back(batch.tokens[size_t(r * 16)]);
            for (int64_t t = 0; t < 16; ++t) {
                EXPECT_EQ(batch.tokens[size_t(r * 16 + t)], firsts.back() + t);
                EXPECT_EQ(batch.labels[size_t(r * 16 + t)], firsts.back() + t + 1);
            }
        }
        orders.insert(firsts);
        std::ranges::sort(firsts);
        shifts.insert(firsts[0]);
        for (int64_t r = 0; r < 25; ++r) EXPECT_EQ(firsts[size_t(r)], firsts[0] + 16 * r);
    }
    EXPECT_EQ(orders.size(), 6u);
    EXPECT_GT(shifts.size(), 1u) << "what does not fill a window is left out at either end";
    EXPECT_LE(*shifts.rbegin(), 2);
    EXPECT_DOUBLE_EQ(loader->epochs(), 6);
}

TEST(Loader, RowsFollowFromThePlaceAlone) {
    test::TempDir dir;
    const auto set = counting_set(dir.path(), {50, 300, 7, 1, 200, 90}, 120);
    auto whole = DataLoader::create(set, {.seq = 10, .seed = 8});
    ASSERT_TRUE(whole.ok());
    const int64_t rows = 96;  // more than an epoch
    ASSERT_LT(whole->windows(), rows);
    const TrainBatch all = taken(*whole, rows);
    auto small = DataLoader::create(set, {.seq = 10, .seed = 8});
    for (int64_t at = 0; at < rows; at += 12) {
        EXPECT_EQ(small->row(), at);
        // Another loader that resumes from this position, and three ranks.
        auto resumed = DataLoader::create(set, {.seq = 10, .seed = 8});
        ASSERT_TRUE(resumed->set_place(small->place()).ok());
        const TrainBatch batch = taken(*small, 12), again = taken(*resumed, 12);
        const auto same = [&](const TrainBatch& part, int64_t first) {
            return std::equal(part.tokens.begin(), part.tokens.end(), all.tokens.begin() + first * 10) &&
                   std::equal(part.labels.begin(), part.labels.end(), all.labels.begin() + first * 10);
        };
        EXPECT_TRUE(same(batch, at) && same(again, at));
        EXPECT_EQ(batch.documents, again.documents);
        for (int rank = 0; rank < 3; ++rank) {
            auto part = DataLoader::create(set, {.seq = 10, .seed = 8, .rank = rank, .ranks = 3});
            part->set_row(at);
            const TrainBatch mine = taken(*part, 12);
            EXPECT_EQ(mine.rows, 4);
            EXPECT_TRUE(same(mine, at + rank * 4)) << rank;
            EXPECT_EQ(part->row(), at + 12);
        }
    }
    auto odd = DataLoader::create(set, {.seq = 10, .rank = 1, .ranks = 3});
    EXPECT_FALSE(odd->next(8).ok());
    EXPECT_FALSE(odd->set_place({{"row", -1}}).ok() || odd->set_place(Json::object()).ok());
    EXPECT_EQ(odd->row(), 0);
    EXPECT_FALSE(DataLoader::create(set, {.seq = 648}).ok());
    EXPECT_FALSE(DataLoader::create(set, {.seq = 8, .rank = 3, .ranks = 3}).ok());
}

// A position is accepted as returned, and as read back from a file.
TEST(BatchSources, GoBackToTheirPlace) {
    std::vector<int32_t> text(200);
    std::iota(text.begin(), text.end(), 0);
    std::vector<std::unique_ptr<BatchSource>> sources;
    sources.push_back(synthetic_source(100, 9, 3));
    for (const bool shuffle : {false, true}) sources.push_back(*window_source(text, 9, 3, shuffle));
    for (const auto& source : sources) {
        ASSERT_TRUE(source->next(3).ok());
        const Json place = source->place();
        const auto first = source->next(2);
        ASSERT_TRUE(source->set_place(place).ok());
        EXPECT_EQ(source->next(2)->tokens, first->tokens);
        ASSERT_TRUE(source->set_place(Json::parse(place.dump())).ok());
        EXPECT_EQ(source->next(2)->tokens, first->tokens);
        EXPECT_FALSE(source->set_place({{"row", -1}}).ok() || source->set_place(Json::object()).ok());
    }
}

// Documents of 5, 3, 1 and 20 tokens in windows of 8: checks documents and labels of each row.
TEST(Loader, DocumentsCutAttentionAndLabels) {
    test::TempDir dir;
    const auto set = counting_set(dir.path(), {5, 3, 1, 20}, 6, 1);  // shards end after 5, 8+1, ... tokens
    auto loader = DataLoader::create(set, {.seq = 8, .shuffle = false});
    ASSERT_TRUE(loader.ok());
    const TrainBatch batch = taken(*loader, 3);
    const std::set<int64_t> begins{0, 5, 8, 9, 15, 21, 27};  // 20 tokens in shards of 6 become four documents
    std::set<int64_t> expected{0, 8, 16};
    for (const int64_t begin : begins)
        if (begin < 24) expected.insert(begin);
    EXPECT_EQ(std::set<int64_t>(batch.documents.begin(), batch.documents.end()), expected);
    for (int64_t i = 0; i < 24; ++i) {
        EXPECT_EQ(batch.tokens[size_t(i)], i);
        const bool crosses = begins.contains(i + 1), learned = i + 1 < 9 ? !crosses : true;
        // The first token of a document is not learned here; in the long one only its very first.
        EXPECT_EQ(batch.labels[size_t(i)], !crosses && learned ? i + 1 : -1) << i;
    }
    auto uncut = DataLoader::create(set, {.seq = 8, .shuffle = false, .cut_documents = false});
    const TrainBatch flat = taken(*uncut, 3);
    EXPECT_EQ(flat.documents, (std::vector<int64_t>{0, 8, 16}));
    EXPECT_EQ(flat.labels[14], 15) << "continues across the boundary of a shard";
    EXPECT_EQ(flat.labels[4], -1) << "masked";
}

}  // namespace
}  // namespace nibble
