// The table of a configuration's keys: parser, overrides, identity by value, reference documentation.
#include "io/schema.h"

#include <gtest/gtest.h>

namespace nibble::test {
namespace {

enum class Colour : uint8_t { red, blue };

struct Inner {
    double rate = 0.5;
    bool fast = false;
};
struct Outer {
    std::filesystem::path folder;
    int64_t steps = 10;
    uint64_t seed = 1;
    Colour colour = Colour::red;
    std::optional<double> limit;
    std::vector<std::string> names;
    Inner inner;
};

Schema<Outer> outer_schema() {
    Schema<Inner> inner;
    inner.key("rate", number_kind(0, 1), at(&Inner::rate), "the rate");
    inner.key("fast", flag_kind(), at(&Inner::fast), "faster")
        .needs([](const Inner& i) { return i.rate > 0; }, "at rate 0");
    Schema<Outer> s;
    s.key("folder", path_kind(), at(&Outer::folder), "a folder");
    s.key("steps", count_kind(1), at(&Outer::steps), "number of | steps").keeps_bits();
    s.key("seed", seed_kind(), at(&Outer::seed), "the seed");
    s.key("look.colour", word_kind<Colour>({{"red", Colour::red}, {"rouge", Colour::red}, {"blue", Colour::blue}}),
          at(&Outer::colour), "a colour");
    s.key("look.limit", optional_kind(number_kind(-1e30, 1e30)), at(&Outer::limit), "a limit")
        .bits_where([](const Outer& o) { return o.colour == Colour::blue; });
    s.key("look.names", list_kind(text_kind(), "names", 1), at(&Outer::names), "names");
    s.group("part", inner, at(&Outer::inner));
    s.shorthand("part", "rate");
    return s;
}

Result<Outer> read(std::string_view yaml, const std::vector<KeyOverride>& overrides = {}) {
    static const Schema<Outer> schema = outer_schema();
    NIBBLE_TRY(YamlNode root, parse_config_map(yaml, "c.yaml"));
    NIBBLE_CHECK(schema.set(root, overrides));
    Outer out;
    NIBBLE_CHECK(schema.read(root, out));
    return out;
}

std::string error_of(std::string_view yaml, const std::vector<KeyOverride>& overrides = {}) {
    const auto config = read(yaml, overrides);
    return config.ok() ? "" : config.error().message();
}

TEST(Schema, ReadsEveryKey) {
    const auto c = read(
        "folder: a/b\nsteps: 3000000000\nseed: 7\n"
        "look: {colour: rouge, limit: -2.5, names: [x, \"y z\"]}\npart: {rate: 1e-1, fast: yes}\n");
    ASSERT_TRUE(c.ok()) << c.error().message();
    EXPECT_EQ(c->folder, "a/b");
    EXPECT_EQ(c->steps, 3'000'000'000);
    EXPECT_EQ(c->seed, 7u);
    EXPECT_EQ(c->colour, Colour::red);
    EXPECT_EQ(c->limit, -2.5);
    EXPECT_EQ(c->names, (std::vector<std::string>{"x", "y z"}));
    EXPECT_EQ(c->inner.rate, 0.1);
    EXPECT_TRUE(c->inner.fast);
    EXPECT_EQ(read("part: 0.25")->inner.rate, 0.25);
    EXPECT_FALSE(read("look: {limit: null}")->limit.has_value());
}

TEST(Schema, ErrorsNameFileLineAndKey) {
    EXPECT_EQ(error_of("seed: 1\nstep: 2\n"),
              "c.yaml:2: the config has no key 'step'; it has: folder, steps, seed, look, part; did you mean 'steps'?");
    EXPECT_EQ(error_of("colour: red\n"),
              "c.yaml:1: the config has no key 'colour'; it has: folder, steps, seed, look, part; did you mean "
              "'look.colour'?");
    EXPECT_EQ(error_of("look: {color: red}\n"),
              "c.yaml:1: look has no key 'color'; it has: colour, limit, names; did you mean 'colour'?");
    EXPECT_EQ(error_of("look: 3\n"), "c.yaml:1: look must be a map");
    EXPECT_EQ(error_of("steps: 0\n"), "c.yaml:1: steps must be at least 1, not 0");
    EXPECT_EQ(error_of("steps: 1.5\n"), "c.yaml:1: steps must be a whole number, not '1.5'");
    EXPECT_EQ(error_of("steps: null\n"), "c.yaml:1: steps must be a whole number, not nothing");
    EXPECT_EQ(error_of("look: {colour: blu}\n"),
              "c.yaml:1: look.colour must be red, rouge or blue, not 'blu'; did you mean 'blue'?");
    EXPECT_EQ(error_of("look: {names: []}\n"), "c.yaml:1: look.names must be a list of names");
    EXPECT_EQ(error_of("part: 2\n"), "c.yaml:1: part.rate must be from 0 to 1, not 2");
    EXPECT_EQ(error_of("part: {fast: true, rate: 0}\n"), "c.yaml:1: part.fast has no effect at rate 0");
    EXPECT_EQ(error_of("- a\n"), "c.yaml: a config must be one mapping");
}

TEST(Schema, OverridesReplaceValuesOfTheFile) {
    const auto c = read("part: 0.25\nsteps: 3\n", {{"steps", "4", "--steps"},
                                                   {"part.fast", "true", "--set"},
                                                   {"folder", "\"a: b\"", "--output"},
                                                   {"look.limit", "2", "--set"}});
    ASSERT_TRUE(c.ok()) << c.error().message();
    EXPECT_EQ(c->steps, 4);
    EXPECT_EQ(c->inner.rate, 0.25) << "a group given as one value keeps it";
    EXPECT_TRUE(c->inner.fast);
    EXPECT_EQ(c->folder, "a: b");
    EXPECT_EQ(c->limit, 2);
    EXPECT_EQ(read("part: {fast: true}", {{"part", "0.75", "--set"}})->inner.rate, 0.75);
    EXPECT_EQ(error_of("", {}), "c.yaml: a config must be one mapping");
    EXPECT_EQ(error_of("steps: 3", {{"steps", "0", "--steps"}}), "--steps: steps must be at least 1, not 0");
    EXPECT_EQ(error_of("steps: 3", {{"stepz", "1", "--set"}}),
              "--set: the config has no key 'stepz'; it has: folder, steps, seed, look, part; did you mean 'steps'?");
    EXPECT_EQ(error_of("steps: 3", {{"part.fats", "1", "--set"}}),
              "--set: part has no key 'fats'; it has: rate, fast; did you mean 'fast'?");
    EXPECT_EQ(key_override("a.b=c=d", "--set")->key, "a.b");
    EXPECT_EQ(key_override("a.b=c=d", "--set")->value, "c=d");
    EXPECT_EQ(key_override("steps", "--set").error().message(), "--set: 'steps' is not KEY=VALUE");
}

TEST(Schema, IdentityDependsOnValuesOnly) {
    const Schema<Outer> schema = outer_schema();
    const auto identity = [&](std::string_view yaml) {
        const auto c = read(yaml);
        EXPECT_TRUE(c.ok()) << yaml;
        return schema.identity(*c);
    };
    const Json base = identity("folder: x\npart: 0.5");
    EXPECT_EQ(base.dump(), R"({"folder":"x","seed":1,"look":{"colour":"red"},"part":{"rate":0.5,"fast":false}})");
    for (const char* same : {"folder: ./x/\npart: 5e-1", "folder: y/../x\nseed: 1", "folder: x\npart: {fast: no}",
                             "folder: x\nlook: {colour: rouge}", "folder: x\nsteps: 3", "folder: x\nlook: {limit: 3}"})
        EXPECT_EQ(identity(same), base) << same;
    for (const char* other : {"folder: y", "folder: x\nseed: 2", "folder: x\nlook: {colour: blue, limit: 3}",
                              "folder: x\npart: {fast: on}", "folder: x\nlook: {names: [a]}", "folder: /x"})
        EXPECT_NE(identity(other), base) << other;
    // The value of a key without effect is not part of the identity.
    EXPECT_FALSE(identity("part: 0")["part"].contains("fast"));
}

// Values that any version stored: scalars as texts, nulls and empty texts for absent ones.
TEST(Schema, ReadsTheStoredConfigOfARun) {
    const Schema<Outer> schema = outer_schema();
    for (const char* stored :
         {R"({"folder": "x", "seed": "7", "part": {"rate": "2.5e-1", "fast": "no"}, "look": {"limit": null}})",
          R"({"folder": "x", "seed": 7, "part": {"rate": 0.25}, "look": {"colour": ""}})"}) {
        Outer out;
        const YamlNode root = yaml_from_json(*parse_json(stored), "stored");
        ASSERT_TRUE(schema.read_stored(root, out).ok());
        EXPECT_EQ(schema.identity(out), schema.identity(*read("folder: x\nseed: 7\npart: 0.25"))) << stored;
    }
    Outer out;
    const auto unknown = schema.read_stored(yaml_from_json(*parse_json(R"({"later": 3})"), "stored"), out);
    ASSERT_FALSE(unknown.ok());
    EXPECT_EQ(unknown.error().message(),
              "stored: the config has no key 'later'; it has: folder, steps, seed, look, part");
}

TEST(Schema, DescribesItsKeys) {
    const std::vector<KeyText> keys = outer_schema().reference();
    ASSERT_EQ(keys.size(), 8u);
    EXPECT_EQ(keys[1].name, "steps");
    EXPECT_EQ(keys[1].kind, "whole number, at least 1");
    EXPECT_EQ(keys[1].usual, "10");
    EXPECT_FALSE(keys[1].bits);
    EXPECT_EQ(keys[3].kind, "red, rouge or blue");
    EXPECT_EQ(keys[3].usual, "red");
    EXPECT_EQ(keys[4].kind, "number");
    EXPECT_EQ(keys[4].usual, "none");
    EXPECT_EQ(keys[6].name, "part.rate");
    EXPECT_EQ(
        keys_as_text({keys[1]}),
        "steps\n    whole number, at least 1; default: 10; may change when a run resumes\n    number of | steps\n");
}

}  // namespace
}  // namespace nibble::test
