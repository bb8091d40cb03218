// Jobs refuse a checkpoint that lacks weights which its config.json requires, before any work, unless `partial` is set.
#include "jobs/bed.h"
#include "nibble/calibrate.h"
#include "nibble/convert.h"
#include "nibble/verify.h"

#include "base/json.h"

#include <gmock/gmock.h>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

// The model with another number of layers in its config.json.
std::string model_with_layers(const Bed& bed, int more) {
    const fs::path folder = bed.dir / ("layers" + std::to_string(more));
    fs::copy(bed.model, folder, fs::copy_options::recursive);
    auto config = read_json_file(folder / "config.json");
    EXPECT_TRUE(config.ok());
    (*config)["num_hidden_layers"] = (*config)["num_hidden_layers"].get<int>() + more;
    write_file(folder / "config.json", config->dump());
    return folder.string();
}

template <class T>
std::string error_in(const Result<T>& result) {
    return result.ok() ? "" : result.error().message();
}

TEST(MissingWeights, EveryJobNamesThemBeforeItWorks) {
    const Bed bed;
    Heard heard;
    const JobHooks hooks = heard.hooks();
    const std::string model = model_with_layers(bed, 1);
    const auto expect_named = [&](const std::string& message) {
        EXPECT_THAT(message,
                    HasSubstr(model + ": 9 of 29 weights that config.json requires are missing: 'model.layers.2."));
        EXPECT_THAT(message, HasSubstr(" and 6 more"));
        EXPECT_THAT(message, HasSubstr("--partial"));
        EXPECT_FALSE(fs::exists(bed.at("out")));
        EXPECT_TRUE(heard.phases.empty());
    };
    for (const bool dry_run : {false, true}) {
        QuantizeOptions options = bed.weights("out");
        options.source = model;
        options.dry_run = dry_run;
        expect_named(error_in(quantize(options, hooks)));
    }
    QuantizeOptions calibrated = bed.calibrated("scales.json");
    calibrated.source = model;
    expect_named(error_in(calibrate(calibrated, hooks)));
    for (const char* format : {"bf16", "compressed-tensors"})
        expect_named(error_in(convert_checkpoint({.source = model, .out = bed.at("out"), .format = format}, hooks)));

    const auto verified = verify_checkpoints({.paths = {model, bed.model}}, hooks);
    ASSERT_TRUE(verified.ok());
    EXPECT_THAT(verified->checkpoints[0].findings, Contains(HasSubstr("9 of 29 weights")));
    EXPECT_TRUE(verified->checkpoints[1].passed());
}

TEST(MissingWeights, PartialAcceptsAndReportsThem) {
    const Bed bed;
    const std::string model = model_with_layers(bed, 1);
    Heard heard;
    QuantizeOptions options = bed.weights("out");
    options.source = model;
    options.partial = true;
    const auto made = quantize(options, heard.hooks());
    ASSERT_TRUE(made.ok()) << made.error().message();
    EXPECT_THAT(heard.notes, Contains(HasSubstr("9 of 29 weights")));
    const auto converted = convert_checkpoint(
        {.source = bed.at("out"), .out = bed.at("plain"), .format = "bf16", .partial = true}, heard.hooks());
    ASSERT_TRUE(converted.ok()) << converted.error().message();
    for (const bool partial : {false, true}) {
        const auto verified = verify_checkpoints({.paths = {bed.at("out")}, .partial = partial}, heard.hooks());
        ASSERT_TRUE(verified.ok());
        EXPECT_EQ(verified->passed(), partial);
    }
}

// Tensors beyond the description are allowed: a config.json with fewer layers than the file.
TEST(MissingWeights, MoreTensorsThanTheConfigNeedsAreNone) {
    const Bed bed;
    const std::string model = model_with_layers(bed, -1);
    Heard heard;
    const auto verified = verify_checkpoints({.paths = {model}}, heard.hooks());
    ASSERT_TRUE(verified.ok());
    EXPECT_TRUE(verified->passed());
}

}  // namespace
}  // namespace nibble::test
