// Lists of excluded modules as in published checkpoints, read by the rules of loaders: which unquantized modules do
// they name?
#include "checkpoint/checkpoint.h"
#include "checkpoint/exclude_modules.h"
#include "checkpoint/export.h"
#include "checkpoint/folders.h"

#include <gtest/gtest.h>

#include <set>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

const std::string attention = "model.layers.0.self_attn.", second = "model.layers.1.mlp.",
                  deltas = "model.layers.2.linear_attn.";

// Unquantized modules, and one NVFP4 layer.
const Strings plain_modules{attention + "q_proj",
                            attention + "k_proj",
                            attention + "v_proj",
                            attention + "o_proj",
                            second + "experts.0.up_proj",
                            second + "experts.1.up_proj",
                            second + "gate",
                            deltas + "in_proj_a",
                            deltas + "in_proj_b",
                            deltas + "out_proj",
                            "lm_head"};

void write_model(const fs::path& folder, Dialect dialect) {
    ExportSpec spec{.dialect = dialect, .out = folder, .config = Json{{"tie_word_embeddings", false}}};
    for (const char* p : {"gate", "up", "down"})
        spec.tensors.push_back(
            {.name = fmt::format("model.layers.0.mlp.{}_proj.weight", p), .shape = {32, 64}, .format = Format::nvfp4});
    for (const std::string& m : plain_modules) spec.tensors.push_back({.name = m + ".weight", .shape = {32, 64}});
    auto out = value_of(open_export(spec, ExportMode::create));
    for (size_t i = 0; i < spec.tensors.size(); ++i) {
        if (spec.tensors[i].format == Format::none) {
            check(out->write_plain(i, 0, Matrix(DType::bf16, 32, 64).view()));
            continue;
        }
        QuantMatrix m(Format::nvfp4, 32, 64);
        std::ranges::fill(m.block_scales, uint8_t{0x38});
        check(out->write_quant(i, 0, m.view()));
        check(out->write_scalars(i, 1.0f, std::nullopt));
    }
    check(out->finish());
}

void set_list(const fs::path& file, const char* section, const char* key, const Strings& entries) {
    if (!fs::exists(file)) return;
    Json json = value_of(read_json_file(file));
    json[section][key] = entries;
    write_file(file, json.dump());
}

std::set<std::string> listed(const fs::path& folder) {
    const auto in = value_of(Checkpoint::open(folder));
    std::set<std::string> names;
    for (const CheckpointTensor& t : in->tensors())
        if (t.listed_module) names.insert(t.name.substr(0, t.name.size() - 7));
    return names;
}

struct ListCase {
    std::string name;
    Dialect dialect;
    Strings entries;
    Strings named;  // suffixes of the modules that the list names
};

void PrintTo(const ListCase& c, std::ostream* out) { *out << c.name; }

class ExcludedLists : public testing::TestWithParam<ListCase> {};

TEST_P(ExcludedLists, AreReadWithTheRulesOfLoaders) {
    const ListCase& c = GetParam();
    TempDir dir;
    write_model(dir / "m", c.dialect);
    EXPECT_EQ(listed(dir / "m"), std::set(plain_modules.begin(), plain_modules.end())) << "as nibble writes it";
    set_list(dir / "m/config.json", "quantization_config", "ignore", c.entries);
    set_list(dir / "m/hf_quant_config.json", "quantization", "exclude_modules", c.entries);
    std::set<std::string> want;
    for (const std::string& m : plain_modules)
        for (const std::string& suffix : c.named)
            if (m.ends_with(suffix)) want.insert(m);
    EXPECT_EQ(listed(dir / "m"), want);
}

constexpr Dialect mo = Dialect::modelopt, ct = Dialect::compressed_tensors;

INSTANTIATE_TEST_SUITE_P(
    Spellings, ExcludedLists,
    testing::Values(
        ListCase{"exact names", mo, {attention + "q_proj", "lm_head"}, {"q_proj", "lm_head"}},
        ListCase{"a prefix", mo, {"model.layers.0.self_attn*"}, {"q_proj", "k_proj", "v_proj", "o_proj"}},
        ListCase{"below a module", mo, {"model.layers.1.mlp.*"}, {"up_proj", "mlp.gate"}},
        ListCase{"a wildcard in the middle", mo, {"model.layers.*.self_attn.[qk]_proj"}, {"q_proj", "k_proj"}},
        ListCase{"one character", mo, {"model.layers.?.linear_attn.in_proj_?"}, {"in_proj_a", "in_proj_b"}},
        ListCase{"an engine's q, k and v", mo, {attention + "qkv_proj"}, {"q_proj", "k_proj", "v_proj"}},
        ListCase{"an engine's b and a", mo, {deltas + "in_proj_ba"}, {"in_proj_a", "in_proj_b"}},
        ListCase{"the container of experts", mo, {second + "experts"}, {"up_proj"}},
        ListCase{"transformers' router", mo, {second + "router"}, {"mlp.gate"}},
        ListCase{"another root", mo, {"language_model.model.lm_head", "layers.0.self_attn.o_proj"}, {"o_proj"}},
        ListCase{"a regular expression means nothing", mo, {"re:.*"}, {}}, ListCase{"nothing", mo, {}, {}},
        ListCase{"exact names ", ct, {attention + "q_proj", "lm_head"}, {"q_proj", "lm_head"}},
        ListCase{"a wildcard is a character there", ct, {"model.layers.0.self_attn*", "lm_head"}, {"lm_head"}},
        ListCase{"an engine's q, k and v ", ct, {attention + "qkv_proj"}, {"q_proj", "k_proj", "v_proj"}},
        ListCase{"an expression", ct, {"re:.*self_attn.*"}, {"q_proj", "k_proj", "v_proj", "o_proj"}},
        ListCase{"from the start only", ct, {"re:self_attn.*", "re:lm_head"}, {"lm_head"}},
        ListCase{"flags", ct, {"re:(?i).*SELF_ATTN\\.O_PROJ"}, {"o_proj"}},
        ListCase{"look-behind", ct, {"re:.*(?<=mlp\\.)gate$"}, {"mlp.gate"}},
        ListCase{"not after", ct, {"re:.*(?<!self)_attn\\.out_proj"}, {"out_proj"}},
        ListCase{"the end", ct, {"re:lm_head\\Z", "re:.*in_proj_a\\Z"}, {"lm_head", "in_proj_a"}},
        ListCase{"named groups", ct, {"re:(?P<root>model)\\..*\\.(?P<p>[qk])_proj"}, {"q_proj", "k_proj"}},
        ListCase{"experts", ct, {"re:.*mlp\\.experts$"}, {"up_proj"}}));

TEST(ExcludedLists, BothDocumentsMustNameAModule) {
    TempDir dir;
    write_model(dir / "m", mo);
    set_list(dir / "m/config.json", "quantization_config", "ignore", {"lm_head"});
    EXPECT_EQ(listed(dir / "m"), std::set<std::string>{"lm_head"});
}

TEST(ExcludedLists, AGroupOfOtherTargetsNeedsNoList) {
    TempDir dir;
    write_model(dir / "m", ct);
    Json json = value_of(read_json_file(dir / "m/config.json"));
    Json& section = json["quantization_config"];
    section["config_groups"]["group_0"]["targets"] = {"re:.*layers\\.0\\.(mlp|self_attn)\\..*"};
    section["ignore"] = Json::array();
    write_file(dir / "m/config.json", json.dump());
    const auto names = listed(dir / "m");
    EXPECT_FALSE(names.contains(attention + "q_proj")) << "the group means it";
    EXPECT_TRUE(names.contains("lm_head"));
}

TEST(ExcludedLists, PatternsThatPythonRejectsAreErrors) {
    for (const char* bad : {"re:((", "re:\\q", "re:a(?i)", "re:(?<=a*)b", "re:(?P<x>a)(?P<x>b)", "re:\\N{DASH}"}) {
        TempDir dir;
        write_model(dir / "m", ct);
        set_list(dir / "m/config.json", "quantization_config", "ignore", {bad});
        const std::string message = message_of(Checkpoint::open(dir / "m"));
        EXPECT_NE(message.find("ignore"), std::string::npos) << message;
        EXPECT_NE(message.find("regular expression"), std::string::npos) << message;
    }
}

TEST(ExcludedLists, WritingDoesNotDependOnTheSourcesList) {
    for (const Dialect from : {mo, ct})
        for (const Dialect to : {mo, ct}) {
            TempDir dir;
            write_model(dir / "m", from);
            set_list(dir / "m/config.json", "quantization_config", "ignore", {"lm_head"});
            set_list(dir / "m/hf_quant_config.json", "quantization", "exclude_modules", {"lm_head"});
            const auto in = value_of(Checkpoint::open(dir / "m"));
            auto out = value_of(open_export(spec_of(*in, to, dir / "o"), ExportMode::create));
            write_all(*in, *out);
            EXPECT_EQ(listed(dir / "o"), std::set(plain_modules.begin(), plain_modules.end()))
                << dialect_name(from) << " to " << dialect_name(to);
        }
}

}  // namespace
}  // namespace nibble::test
