#include "io/model_files.h"

#include "io/craft.h"
#include "support/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::as_text;
using test::craft;
using test::TempDir;
using test::write_file;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* index_file = "model.safetensors.index.json";

// Returns a shard of one-byte tensors; the byte is the first of the name.
std::string shard(const std::vector<std::string>& names) {
    std::string header = "{", data;
    for (const std::string& name : names) {
        header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", data.empty() ? "" : ",",
                              name, data.size(), data.size() + 1);
        data += name[0];
    }
    return craft(header + "}", data);
}

std::string index_text(const std::vector<std::pair<std::string, std::string>>& map) {
    std::string text = R"({"metadata":{"total_size":3},"weight_map":{)";
    for (const char* comma = ""; const auto& [name, file] : map) {
        text += fmt::format(R"({}"{}":"{}")", comma, name, file);
        comma = ",";
    }
    return text + "}}";
}

std::string file_refusal(const fs::path& path) {
    const auto model = ModelFiles::open(path);
    EXPECT_FALSE(model.ok());
    return model.ok() ? "" : model.error().message();
}

std::string names(const ModelFiles& model) {
    std::string all;
    for (const ModelTensor& t : model.tensors()) all += fmt::format("{}:{} ", t.shard, t.record->name);
    return all;
}

TEST(ModelFiles, ReadsOneFileAndIgnoresOthersInTheFolder) {
    TempDir dir;
    write_file(dir / "model.safetensors", shard({"b", "a"}));
    write_file(dir / "consolidated.safetensors", shard({"a"}));
    for (const fs::path& path : {dir.path(), dir / "model.safetensors"}) {
        const auto model = ModelFiles::open(path);
        ASSERT_TRUE(model.ok()) << model.error().message();
        EXPECT_THAT(model->shard_names(), ElementsAre("model.safetensors"));
        EXPECT_EQ(names(*model), "0:b 0:a ");
        EXPECT_EQ(as_text(model->find("a")->record->data), "a");
        EXPECT_EQ(model->find("c"), nullptr);
        EXPECT_EQ(model->total_bytes(), 2);
    }
}

TEST(ModelFiles, ReadsShardsByIndexInTheOrderOfTheirNames) {
    TempDir dir;
    write_file(dir / "model-2.safetensors", shard({"c", "a"}));
    write_file(dir / "model-1.safetensors", shard({"b"}));
    write_file(dir / "unlisted.safetensors", shard({"a"}));
    write_file(dir / index_file,
               index_text({{"a", "model-2.safetensors"}, {"b", "model-1.safetensors"}, {"c", "model-2.safetensors"}}));
    const auto model = ModelFiles::open(dir.path());
    ASSERT_TRUE(model.ok()) << model.error().message();
    EXPECT_THAT(model->shard_names(), ElementsAre("model-1.safetensors", "model-2.safetensors"));
    EXPECT_EQ(names(*model), "0:b 1:c 1:a ");
    EXPECT_EQ(model->find("c")->shard, 1);
}

TEST(ModelFiles, ReadsEverySafetensorsFileWithoutModelFileAndIndex) {
    TempDir dir;
    write_file(dir / "y.safetensors", shard({"a"}));
    write_file(dir / "x.safetensors", shard({"b"}));
    write_file(dir / "notes.txt", "not weights");
    const auto model = ModelFiles::open(dir.path());
    ASSERT_TRUE(model.ok()) << model.error().message();
    EXPECT_EQ(names(*model), "0:b 1:a ");
}

TEST(ModelFiles, FollowsLinksOfADownloadCache) {
    TempDir dir;
    fs::create_directories(dir / "blobs");
    fs::create_directories(dir / "snapshot");
    write_file(dir / "blobs/0123", shard({"a"}));
    write_file(dir / "blobs/4567", index_text({{"a", "model-1.safetensors"}}));
    fs::create_symlink("../blobs/0123", dir / "snapshot/model-1.safetensors");
    fs::create_symlink("../blobs/4567", dir / "snapshot" / index_file);
    fs::create_directory_symlink("snapshot", dir / "link");
    for (const char* folder : {"snapshot", "link"}) {
        const auto model = ModelFiles::open(dir / folder);
        ASSERT_TRUE(model.ok()) << model.error().message();
        EXPECT_EQ(names(*model), "0:a ");
    }
    fs::remove(dir / "blobs/0123");
    EXPECT_THAT(file_refusal(dir / "snapshot"), HasSubstr("shard 'model-1.safetensors' is missing"));
}

TEST(ModelFiles, PrefersTheModelIndexAndAcceptsAVariantsIndex) {
    TempDir dir;
    write_file(dir / "w.safetensors", shard({"a"}));
    write_file(dir / "model.fp16.safetensors.index.json", index_text({{"a", "w.safetensors"}}));
    EXPECT_TRUE(ModelFiles::open(dir.path()).ok());
    write_file(dir / "consolidated.safetensors.index.json", index_text({{"a", "absent.safetensors"}}));
    EXPECT_THAT(file_refusal(dir.path()), HasSubstr("several indexes"));
    write_file(dir / index_file, index_text({{"a", "w.safetensors"}}));
    EXPECT_TRUE(ModelFiles::open(dir.path()).ok());
}

TEST(ModelFiles, RefusesAMissingShardByName) {
    TempDir dir;
    write_file(dir / "1.safetensors", shard({"a"}));
    write_file(dir / index_file, index_text({{"a", "1.safetensors"}, {"b", "2.safetensors"}}));
    EXPECT_THAT(file_refusal(dir.path()), HasSubstr("shard '2.safetensors' is missing"));
}

TEST(ModelFiles, RefusesAnIndexThatDisagreesWithItsShards) {
    TempDir dir;
    write_file(dir / "1.safetensors", shard({"a", "b"}));
    write_file(dir / "2.safetensors", shard({"c"}));
    const auto with_index = [&](const std::vector<std::pair<std::string, std::string>>& map) {
        write_file(dir / index_file, index_text(map));
        return file_refusal(dir.path());
    };
    EXPECT_THAT(
        with_index({{"a", "1.safetensors"}, {"b", "1.safetensors"}, {"c", "2.safetensors"}, {"d", "2.safetensors"}}),
        HasSubstr("tensor 'd' is in the index but not in its file '2.safetensors'"));
    EXPECT_THAT(with_index({{"a", "1.safetensors"}, {"c", "2.safetensors"}}),
                HasSubstr("tensor 'b' is in '1.safetensors' but not in the index"));
    EXPECT_THAT(with_index({{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "2.safetensors"}}),
                HasSubstr("tensor 'b' is in '1.safetensors', the index says '2.safetensors'"));
}

TEST(ModelFiles, RefusesATensorInTwoFiles) {
    TempDir dir;
    write_file(dir / "1.safetensors", shard({"a", "b"}));
    write_file(dir / "2.safetensors", shard({"b"}));
    EXPECT_THAT(file_refusal(dir.path()), HasSubstr("tensor 'b' is in both '1.safetensors' and '2.safetensors'"));
    write_file(dir / index_file, index_text({{"a", "1.safetensors"}, {"b", "2.safetensors"}}));
    EXPECT_THAT(file_refusal(dir.path()), HasSubstr("tensor 'b' is in both"));
}

TEST(ModelFiles, RefusesAnIndexThatPointsOutOfTheFolder) {
    TempDir dir;
    fs::create_directories(dir / "model");
    write_file(dir / "out.safetensors", shard({"a"}));
    write_file(dir / "model" / index_file, index_text({{"a", "../out.safetensors"}}));
    EXPECT_THAT(file_refusal(dir / "model"), HasSubstr("'../out.safetensors' is not a plain path inside the folder"));
}

TEST(ModelFiles, RefusesASingleFileTogetherWithAnIndexOfOtherFiles) {
    TempDir dir;
    write_file(dir / "model.safetensors", shard({"a"}));
    write_file(dir / "model-1.safetensors", shard({"a"}));
    write_file(dir / index_file, index_text({{"a", "model-1.safetensors"}}));
    EXPECT_THAT(file_refusal(dir.path()), HasSubstr("remove the one that is stale"));
    write_file(dir / index_file, index_text({{"a", "model.safetensors"}}));
    EXPECT_TRUE(ModelFiles::open(dir.path()).ok());
}

TEST(ModelFiles, RefusesFoldersWithoutWeights) {
    TempDir dir;
    write_file(dir / "pytorch_model.bin", "");
    EXPECT_THAT(file_refusal(dir.path()), HasSubstr("pytorch_model.bin"));
    EXPECT_THAT(file_refusal(dir / "absent"), HasSubstr("no such file or folder"));
    EXPECT_FALSE(file_refusal(dir / "pytorch_model.bin").empty());
    write_file(dir / index_file, "{\"weight_map\":");
    EXPECT_THAT(file_refusal(dir.path()), HasSubstr("index.json: invalid JSON"));
    write_file(dir / index_file, R"({"weight_map":{}})");
    EXPECT_THAT(file_refusal(dir.path()), HasSubstr("names no files"));
}

TEST(ModelFiles, KeepsViewsValidWhenMoved) {
    TempDir dir;
    write_file(dir / "model.safetensors", shard({"a"}));
    auto opened = ModelFiles::open(dir.path());
    ASSERT_TRUE(opened.ok());
    const ModelFiles model = *std::move(opened);
    EXPECT_EQ(as_text(model.find("a")->record->data), "a");
    EXPECT_EQ(model.tensors()[0].record->name, "a");
}

}  // namespace
}  // namespace nibble
