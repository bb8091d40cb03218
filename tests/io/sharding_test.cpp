#include "io/sharding.h"

#include "io/shard_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<ShardItem> items_of(const std::vector<int64_t>& sizes) {
    std::vector<ShardItem> items;
    for (const int64_t bytes : sizes) items.push_back({fmt::format("t{:03d}", items.size()), bytes});
    return items;
}

ShardPlan plan_of(const std::vector<int64_t>& sizes, int64_t limit) {
    auto plan = plan_shards(items_of(sizes), limit);
    if (!plan.ok()) throw std::runtime_error(plan.error().message());
    return *std::move(plan);
}

TEST(Sharding, FollowsTheWorkedExampleOfTheReference) {
    // The example of split_state_dict_into_shards_factory: [6], [6+2], [6+2+2] under 10.
    const ShardPlan plan = plan_of({6, 6, 2, 6, 2, 2}, 10);
    EXPECT_THAT(plan.file_of, ElementsAre(0, 1, 1, 2, 2, 2));
    EXPECT_THAT(plan.files, ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"));
    EXPECT_EQ(plan.total_bytes, 24);
}

TEST(Sharding, AShardMayBeExactlyFull) {
    EXPECT_THAT(plan_of({5, 5, 1}, 10).file_of, ElementsAre(0, 0, 1));
    EXPECT_THAT(plan_of({10, 10}, 10).file_of, ElementsAre(0, 1));
}

TEST(Sharding, ATensorOverTheLimitGetsItsOwnFileWithoutClosingTheCurrentOne) {
    EXPECT_THAT(plan_of({3, 11, 3}, 10).file_of, ElementsAre(1, 0, 1));
    EXPECT_THAT(plan_of({11, 12}, 10).file_of, ElementsAre(0, 1));
}

TEST(Sharding, OneFileHasThePlainNameAndNeedsNoIndex) {
    for (const auto& sizes : {std::vector<int64_t>{1, 2}, {0}, {99}}) {
        const ShardPlan plan = plan_of(sizes, 10);
        EXPECT_THAT(plan.files, ElementsAre("model.safetensors"));
        EXPECT_FALSE(plan.needs_index());
    }
    EXPECT_TRUE(plan_of({}, 10).files.empty());
}

TEST(Sharding, RefusesInvalidSizes) {
    EXPECT_FALSE(plan_shards(items_of({1}), 0).ok());
    EXPECT_FALSE(plan_shards(items_of({1}), -1).ok());
    EXPECT_THAT(plan_shards(items_of({-1}), 5).error().message(), HasSubstr("'t000'"));
    EXPECT_FALSE(plan_shards(items_of({INT64_MAX, 1}), 5).ok());
    EXPECT_TRUE(plan_shards(items_of({INT64_MAX}), INT64_MAX).ok());
}

TEST(Sharding, FillsFilesUpToTheLimit) {
    std::mt19937 random(1);
    for (int round = 0; round < 200; ++round) {
        std::vector<int64_t> sizes(random() % 40);
        for (auto& s : sizes) s = random() % 15;
        const ShardPlan plan = plan_of(sizes, 10);
        std::vector<int64_t> used(plan.files.size());
        std::vector<int> count(plan.files.size());
        for (size_t i = 0; i < sizes.size(); ++i) {
            used[plan.file_of[i]] += sizes[i];
            ++count[plan.file_of[i]];
        }
        for (size_t f = 0; f < used.size(); ++f) {
            EXPECT_GT(count[f], 0);
            EXPECT_TRUE(used[f] <= 10 || count[f] == 1);
        }
        // A file is only started because its first tensor did not fit into the one before.
        int open = -1;
        int64_t fill = 0;
        for (size_t i = 0; i < sizes.size(); ++i) {
            if (sizes[i] > 10) continue;
            if (plan.file_of[i] != open) {
                if (open >= 0) {
                    EXPECT_GT(fill + sizes[i], 10);
                }
                open = plan.file_of[i];
                fill = 0;
            }
            fill += sizes[i];
        }
    }
}

TEST(ShardIndex, EqualsThatOfTransformers) {
    const std::vector<ShardItem> items{{"z", 6}, {"A", 6}, {"a\xc3\xa9", 2}};
    const auto plan = plan_shards(items, 10);
    ASSERT_TRUE(plan.ok());
    const auto text = shard_index_json(items, *plan);
    ASSERT_TRUE(text.ok());
    EXPECT_EQ(*text,
              "{\n"
              "  \"metadata\": {\n"
              "    \"total_size\": 14\n"
              "  },\n"
              "  \"weight_map\": {\n"
              "    \"A\": \"model-00002-of-00002.safetensors\",\n"
              "    \"a\\u00e9\": \"model-00002-of-00002.safetensors\",\n"
              "    \"z\": \"model-00001-of-00002.safetensors\"\n"
              "  }\n"
              "}\n");
    const auto read = parse_shard_index(*text);
    ASSERT_TRUE(read.ok()) << read.error().message();
    EXPECT_EQ(read->shards, plan->files);
    EXPECT_EQ(read->total_size, 14);
    for (size_t i = 0; i < items.size(); ++i) EXPECT_EQ(read->shard_of.at(items[i].name), plan->file_of[i]);
}

TEST(ShardIndex, IsNotWrittenWithANameTwiceOrNotUtf8) {
    const std::vector<ShardItem> twice{{"a", 1}, {"a", 1}}, bad{{"\xff", 1}};
    EXPECT_THAT(shard_index_json(twice, *plan_shards(twice)).error().message(), HasSubstr("duplicate tensor name 'a'"));
    EXPECT_THAT(shard_index_json(bad, *plan_shards(bad)).error().message(), HasSubstr("UTF-8"));
}

TEST(ShardIndex, SkipsMembersItDoesNotKnow) {
    const auto index = parse_shard_index(
        R"({"format":[1,{"weight_map":{"x":1}}],"metadata":{"total_size":12.5,"more":{"total_size":9,"deep":[null]}},)"
        R"("weight_map":{"b":"2.safetensors","a":"sub/1.safetensors"},"after":-1})");
    ASSERT_TRUE(index.ok()) << index.error().message();
    EXPECT_THAT(index->shards, ElementsAre("2.safetensors", "sub/1.safetensors"));
    EXPECT_EQ(index->shard_of.at("b"), 0);
    EXPECT_EQ(index->total_size, std::nullopt);
}

TEST(ShardIndex, RefusesPathsThatLeaveTheFolderOrAreNotPlain) {
    for (const char* path : {"../m.safetensors", "a/../../m.safetensors", "/etc/m.safetensors", "", ".", "..",
                             "./m.safetensors", "a//m.safetensors", "a/", "m.safetensors\\u0000x"}) {
        const auto index = parse_shard_index(fmt::format(R"({{"weight_map":{{"t":"{}"}}}})", path));
        ASSERT_FALSE(index.ok()) << path;
        EXPECT_THAT(index.error().message(), HasSubstr("tensor 't'"));
        EXPECT_THAT(index.error().message(), HasSubstr("not a plain path"));
    }
}

TEST(ShardIndex, RefusesOtherDocuments) {
    for (const char* text :
         {"", "{}", "[]", "1", "null", "{", R"({"weight_map":[]})", R"({"weight_map":null})", R"({"weight_map":"m"})",
          R"({"weight_map":{"t":1}})", R"({"weight_map":{"t":{"weight_map":{}}}})", R"({"weight_map":{"t":["m"]}})",
          R"({"weight_map":{"t":null}})", R"({"weight_map":{},"weight_map":{}})",
          R"({"metadata":{"weight_map":{"a":"b"}}})", R"([{"weight_map":{"a":"b"}}])",
          R"({"weight_map":{"t":"1","t":"1"}})", R"({"weight_map":{"t":"1","t":"2"}})"})
        EXPECT_FALSE(parse_shard_index(text).ok()) << text;
    const std::string good = R"({"weight_map":{"t":"1"}})";
    EXPECT_TRUE(parse_shard_index(good + "\n").ok());
    EXPECT_FALSE(parse_shard_index("\xEF\xBB\xBF" + good).ok()) << "byte order mark, as Python's json refuses it";
    EXPECT_FALSE(parse_shard_index(good + std::string(1, '\0') + "x").ok()) << "text after a zero byte";
    std::string deep = R"({"a":)";
    for (int i = 0; i < 100'000; ++i) deep += '[';
    EXPECT_THAT(parse_shard_index(deep).error().message(), HasSubstr("nested deeper"));
}

}  // namespace
}  // namespace nibble
