#include "text/chat_template.h"

#include "support/files.h"

#include <gtest/gtest.h>

#include <fstream>

using namespace nibble;
namespace fs = std::filesystem;

static std::string rendered(const std::string& source, const Json& variables = Json::object(),
                            const TemplateLimits& limits = {}) {
    const auto parsed = ChatTemplate::parse(source, limits);
    if (!parsed.ok()) return "ERROR " + parsed.error().message();
    const auto text = parsed->render(variables);
    return text.ok() ? *text : "ERROR " + text.error().message();
}

static std::vector<Json> lines_of(const fs::path& path) {
    std::ifstream in(path);
    std::vector<Json> out;
    for (std::string line; std::getline(in, line);) {
        auto json = parse_json(line);
        EXPECT_TRUE(json.ok()) << path << ": " << json.error().message();
        if (json.ok()) out.push_back(*std::move(json));
    }
    return out;
}

TEST(ChatTemplate, ExpressionsGiveWhatJinja2Gives) {
    const auto cases = lines_of(fs::path(NIBBLE_SOURCE_DIR) / "tests/data/jinja_table.jsonl");
    ASSERT_GT(cases.size(), 100u);
    for (const Json& c : cases) {
        const std::string source = c["template"], got = rendered(source, c["variables"]);
        if (c.contains("error"))
            EXPECT_TRUE(got.starts_with("ERROR line ")) << source << "\ngave " << got << "\nJinja2: " << c["error"];
        else
            EXPECT_EQ(got, c["rendered"].get<std::string>()) << source;
    }
}

TEST(ChatTemplate, GoldenConversationsAreEqual) {
    const fs::path folder = fs::path(NIBBLE_SOURCE_DIR) / "tests/data/golden/chat_templates";
    const auto cases = lines_of(folder / "cases.jsonl");
    ASSERT_GT(cases.size(), 50u);
    for (const Json& c : cases) {
        const std::string name = c["template"].get<std::string>() + " " + c["case"].get<std::string>();
        const auto parsed = ChatTemplate::open(folder / (c["template"].get<std::string>() + ".jinja"));
        ASSERT_TRUE(parsed.ok()) << name << ": " << parsed.error().message();
        Json variables = c["kwargs"];
        for (const char* key : {"messages", "tools", "add_generation_prompt"}) variables[key] = c[key];
        const auto text = parsed->render(variables, std::tm{});
        if (c.contains("error")) {
            ASSERT_FALSE(text.ok()) << name << " rendered " << *text;
            const std::string want = c["error"];  // "TemplateError: message"
            EXPECT_NE(text.error().message().find(want.substr(want.find(": ") + 2)), std::string::npos)
                << name << ": " << text.error().message();
        } else {
            ASSERT_TRUE(text.ok()) << name << ": " << text.error().message();
            EXPECT_EQ(*text, c["rendered"].get<std::string>()) << name;
        }
    }
}

TEST(ChatTemplate, ErrorsNameTheLineAndTheUnknown) {
    EXPECT_EQ(rendered("a\n{{ x|nope }}"), "ERROR line 2: unknown filter 'nope'");
    EXPECT_EQ(rendered("a\n\n{{ x is nope }}"), "ERROR line 3: unknown test 'nope'");
    EXPECT_EQ(rendered("{% include 'x' %}"), "ERROR line 1: unknown tag 'include'");
    EXPECT_EQ(rendered("\n{{ a.b }}"), "ERROR line 2: 'a' is undefined");
    EXPECT_EQ(rendered("{% if false %}{{ x|nope }}{% endif %}"), "");
    EXPECT_EQ(rendered("{% if true %}\n{{ x|nope }}{% endif %}"), "ERROR line 2: unknown filter 'nope'");
    EXPECT_EQ(rendered("{% for x in [1] %}\n"), "ERROR line 1: the template ends where 'endfor' is missing");
    EXPECT_EQ(rendered("\n{{ raise_exception('no\nway') }}"), "ERROR line 2: no way");
    EXPECT_TRUE(rendered("{{ '\xff' }}").starts_with("ERROR"));
}

TEST(ChatTemplate, HostileTemplatesEndWithAnError) {
    const TemplateLimits limits{.max_steps = 200'000, .max_made_bytes = 4 << 20, .max_output_bytes = 1 << 20};
    const auto repeated = [](const char* text, int n) {
        std::string out;
        for (int i = 0; i < n; ++i) out += text;
        return out;
    };
    const std::vector<std::string> hostile{
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**12 }}",
        "{{ [1] * 10**12 }}",
        "{{ ('a' * 10**6) * 10**6 }}",
        "{{ 'a' * 9223372036854775807 }}",
        "{% set ns = namespace(x='a') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ " + repeated("(", 100000) + "1",
        "{{ " + repeated("-", 100000) + "1 }}",
        "{{ 1" + repeated("+1", 100000) + " }}",
        "{{ a" + repeated(".a", 100000) + " }}",
        "{{ 1" + repeated("|abs", 100000) + " }}",
        repeated("{% if 1 %}", 100000),
        "{{ " + repeated("not ", 100000) + "1 }}",
        "{{ " + repeated("1 if 1 else ", 100000) + "1 }}",
        "{{ 2 ** 63 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'a'.replace('', 'b' * 1000000).replace('b', 'cccccccccccc') }}",
        "{{ -9223372036854775807 - 2 }}",
        "{{ '%0999999999d' % 1 }}",
    };
    for (const std::string& source : hostile) {
        const std::string got = rendered(source, Json::object(), limits);
        EXPECT_TRUE(got.starts_with("ERROR line 1: ")) << source.substr(0, 80) << " gave " << got.substr(0, 100);
    }
}

TEST(ChatTemplate, ANamespaceMayHoldItselfAndIsStillFreed) {
    EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.x = [ns] %}{% set ns.y = loop %}{% macro m() %}{% endmacro "
                       "%}{% set ns.m = m %}ok"),
              "ok");
    EXPECT_EQ(rendered("{% set a = namespace() %}{% for i in range(20000) %}{% set n = namespace(p=a.p) %}{% set a.p = "
                       "n %}{% endfor %}ok"),
              "ok");
}

TEST(ChatTemplate, TheClockIsTheCallers) {
    const auto parsed = ChatTemplate::parse("{{ strftime_now('%d %b %Y') }}");
    ASSERT_TRUE(parsed.ok());
    std::tm now{};
    now.tm_year = 124, now.tm_mon = 6, now.tm_mday = 26;
    const auto text = parsed->render(Json::object(), now);
    ASSERT_TRUE(text.ok()) << text.error().message();
    EXPECT_EQ(*text, "26 Jul 2024");
    EXPECT_FALSE(parsed->render(Json::object()).ok());
}
