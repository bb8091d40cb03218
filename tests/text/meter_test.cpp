// Texts and files that once cost disproportionate time or memory. The tests use no clock: a meter counts steps, and
// work that it missed would exceed the test's own time limit or end the process.
#include "text/meter.h"

#include "text/chat_template.h"
#include "text/stoppable.h"
#include "text/substring.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

using namespace nibble;

namespace {

std::string repeated(std::string_view text, size_t n) {
    std::string out;
    out.reserve(text.size() * n);
    for (size_t i = 0; i < n; ++i) out += text;
    return out;
}

std::string rendered_with(const std::string& source, const TemplateLimits& limits = {}) {
    const auto parsed = ChatTemplate::parse(source, limits);
    if (!parsed.ok()) return "ERROR " + parsed.error().message();
    const auto text = parsed->render(Json::object());
    return text.ok() ? *text : "ERROR " + text.error().message();
}

// `components`: members of the document; `vocabulary`: that of a BPE without merges.
Result<Tokenizer> tokenizer_of(const std::string& components, const std::string& vocabulary = R"("a": 0, "b": 1)") {
    return Tokenizer::from_json(fmt::format(R"({{{} "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}})",
                                            components.empty() ? "" : components + ",", vocabulary));
}

std::string encoded(const Result<Tokenizer>& tokenizer, std::string_view text, int64_t most_steps = 0) {
    if (!tokenizer.ok()) return "ERROR at load: " + tokenizer.error().message();
    MeterLimits limits = MeterLimits::for_text(text.size());
    if (most_steps) limits.steps = most_steps;  // a hostile text reaches any limit; a low one is reached sooner
    Meter meter(limits);
    const auto ids = tokenizer->encode(text, {}, meter);
    return ids.ok() ? fmt::format("{} ids", ids->size()) : "ERROR " + ids.error().message();
}

std::string split_by(std::string_view regex) {
    return fmt::format(R"("pre_tokenizer": {{"type": "Split", "pattern": {{"Regex": {}}}, "behavior": "Isolated"}})",
                       Json(regex).dump());
}

constexpr std::string_view steps_reached = "steps is reached",
                           bytes_reached = "bytes of texts and lists made on the way is reached";

}  // namespace

TEST(Meter, EveryLimitIsNamedAndFinal) {
    Meter steps({.steps = 10});
    EXPECT_TRUE(steps.pay_steps(10));
    EXPECT_FALSE(steps.pay_steps(1));
    EXPECT_FALSE(steps.pay_steps(0));
    EXPECT_EQ(steps.error().message(), "the limit of 10 steps is reached");
    Meter bytes({.bytes = 100});
    EXPECT_TRUE(bytes.pay_bytes(100));
    EXPECT_FALSE(bytes.pay_bytes(1));
    EXPECT_FALSE(bytes.pay_steps(1));
    EXPECT_EQ(bytes.error().message(), "the limit of 100 bytes of texts and lists made on the way is reached");
    Meter depth({.depth = 2});
    EXPECT_TRUE(depth.enter());
    depth.leave();
    EXPECT_TRUE(depth.enter() && depth.enter());
    EXPECT_FALSE(depth.enter());
    EXPECT_EQ(depth.error().message(), "the limit of 2 nested evaluations is reached");
    Meter huge({.steps = 10});
    EXPECT_FALSE(huge.pay_steps(INT64_MAX));
    Meter late({.deadline = std::chrono::steady_clock::now()});
    EXPECT_FALSE(late.pay_steps(10'000));
    EXPECT_EQ(late.error().message(), "the time limit is reached");
}

TEST(Meter, AFlagStopsTheWorkInsideAStringOperation) {
    std::atomic<bool> cancel{true};
    const std::string text(size_t{64} << 20, 'a');
    Meter meter({.cancel = &cancel});
    EXPECT_EQ(find_text(text, "b", meter), std::string_view::npos);
    EXPECT_EQ(meter.error().message(), "the work was cancelled");
    EXPECT_LT(meter.steps_used(), MeterLimits::unlimited + 2);
    const auto looped =
        ChatTemplate::parse("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
    Meter endless({.cancel = &cancel});  // without any other limit, only the flag can end it
    ASSERT_TRUE(looped.ok());
    EXPECT_EQ(looped->render(Json::object(), {}, endless).error().message(), "line 1: the work was cancelled");
    Meter encoding({.cancel = &cancel});
    EXPECT_EQ(tokenizer_of("")->encode(text, {}, encoding).error().message(), "the work was cancelled");
    const auto tokenizer = tokenizer_of("");
    EXPECT_EQ(encode_stoppable(*tokenizer, text, {}, &cancel).error().kind(), ErrorKind::cancelled);
    cancel = false;
    EXPECT_EQ(*encode_stoppable(*tokenizer, "aab", {}, &cancel), *tokenizer->encode("aab"));
    EXPECT_EQ(*encode_stoppable(*tokenizer, "aab", {}, nullptr), *tokenizer->encode("aab"));
}

TEST(Substring, FindsWhatStdFindsInLinearTime) {
    for (const std::string_view text : {"", "a", "abab", "aaab", "abcabcabd", "xyzzy"})
        for (const std::string_view what : {"", "a", "b", "ab", "abab", "abcabd", "zz", "zy", "aab", "abcabcabdx"}) {
            Meter meter({});
            for (size_t from = 0; from <= text.size() + 1; ++from)
                EXPECT_EQ(find_text(text, what, meter, from), text.find(what, from)) << text << ' ' << what;
            EXPECT_EQ(rfind_text(text, what, meter), text.rfind(what)) << text << ' ' << what;
        }
    // Matches across the parts in which a long text is searched.
    std::string long_text(size_t{5} << 20, 'a');
    long_text.replace((size_t{2} << 20) - 3, 6, "needle");
    Meter meter({});
    EXPECT_EQ(find_text(long_text, "needle", meter), (size_t{2} << 20) - 3);
    EXPECT_EQ(rfind_text(long_text, "needle", meter), (size_t{2} << 20) - 3);
    // The needle matches everywhere except for one byte: quadratic for a naive search.
    const std::string hay(size_t{4} << 20, 'a'), almost = std::string(1 << 20, 'a') + "b" + std::string(1 << 20, 'a');
    Meter linear({.steps = 2'000'000});
    EXPECT_EQ(find_text(hay, almost, linear), std::string_view::npos);
    EXPECT_EQ(rfind_text(hay, almost, linear), std::string_view::npos);
    EXPECT_TRUE(linear.ok());
}

TEST(HostileTemplates, ChainsOfLoopsMethodsAndKeywordsDoNotOverflowTheStack) {
    // In each, the destructor of one value would call that of the next, 100,000 deep.
    EXPECT_EQ(rendered_with("{% set ns=namespace(l=0) %}{% for i in range(99999) %}{% for j in [1] %}{% if "
                            "loop.changed(ns.l) %}{% endif %}{% set ns.l=loop %}{% endfor %}{% endfor %}ok"),
              "ok");
    EXPECT_EQ(rendered_with("{% for i in [1] %}{% if loop.changed(loop) %}{% endif %}{% endfor %}ok"), "ok")
        << "a circle: AddressSanitizer would find the leak";
    EXPECT_NE(
        rendered_with("{% set ns=namespace(f=1) %}{% for i in range(99999) %}{% set ns.f=[ns.f].copy %}{% endfor %}")
            .find("nested too deeply"),
        std::string::npos);
    EXPECT_NE(
        rendered_with("{% set ns=namespace(d=1) %}{% macro m() %}{% set ns.d = kwargs %}{% endmacro %}{% for i in "
                      "range(99999) %}{{ m(a=ns.d) }}{% endfor %}")
            .find("nested too deeply"),
        std::string::npos);
}

TEST(HostileTemplates, ValuesThatShareTheirPartsAreHashedOnce) {
    // 2^60 leaves of one tuple, 60 tuples in memory.
    const std::string doubled =
        "{% set ns=namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t=(ns.t,ns.t) %}{% endfor %}";
    EXPECT_EQ(rendered_with(doubled + "{{ {}.get(ns.t) }}"), "None");
    for (const char* use : {"{{ ns.t|string|length }}", "{{ ns.t|tojson|length }}", "{{ [ns.t]|unique|list|length }}",
                            "{% set u=(ns.t[0],ns.t[1]) %}{{ u == (u,u)[0] }}"})
        EXPECT_FALSE(rendered_with(doubled + use).empty()) << use;
    EXPECT_EQ(rendered_with("{{ {(1, [2]): 3} }}"), "ERROR line 1: unhashable type: 'tuple'");
    EXPECT_EQ(rendered_with("{{ {(1, (2, 'x')): 3}[(1, (2, 'x'))] }}"), "3");
}

TEST(HostileTemplates, StringOperationsPayForWhatTheyLookAt) {
    const TemplateLimits low{.max_steps = 300'000};
    const std::string big = "{% set a='a'*400000 %}{% set n='a'*200000 ~ 'b' ~ 'a'*100000 %}";
    for (const char* use : {"{{ n in a }}", "{{ a.find(n) }}", "{{ a.rfind(n) }}", "{{ a.split(n)|length }}",
                            "{{ a.rsplit(n)|length }}", "{{ a.count(n) }}", "{{ a.replace(n, '')|length }}"}) {
        const std::string got = rendered_with(big + use);  // one search: within the limits because it is linear
        EXPECT_TRUE(got == "False" || got == "-1" || got == "1" || got == "0" || got == "400000")
            << use << ": " << got.substr(0, 200);
        // Many of them: over the limit.
        const std::string many = rendered_with(big + "{% for i in range(99999) %}" + use + "{% endfor %}", low);
        EXPECT_TRUE(many.ends_with(steps_reached) || many.ends_with(bytes_reached))
            << use << ": " << many.substr(0, 200);
    }
    for (const char* use :
         {"{% if a == b %}{% endif %}", "{% if a < b %}{% endif %}", "{% if a.isdigit() %}{% endif %}",
          "{% if a.startswith(b) %}{% endif %}", "{% if d[b] %}{% endif %}"}) {
        const std::string many = rendered_with(
            "{% set a='1'*400000 %}{% set b='1'*399999 ~ '2' %}{% set d={a:1} %}{% for i in range(99999) %}" +
                std::string(use) + "{% endfor %}",
            low);
        EXPECT_TRUE(many.ends_with(steps_reached) || many.ends_with(bytes_reached))
            << use << ": " << many.substr(0, 200);
    }
    for (const char* kept :
         {"namespace(**{a:1})", "dict(**{a:1})", "l|map('attr', a)|list", "l|map(attribute='upper')|list"}) {
        const std::string source = fmt::format(
            "{{% set a='n'*30000 %}}{{% set l=['x']*2000 %}}{{% set ns=namespace(l=1) %}}{{% for i in range(99999) %}}"
            "{{% set n=namespace(p=ns.l, v={}) %}}{{% set ns.l=n %}}{{% endfor %}}",
            kept);
        const std::string got = rendered_with(source, {.max_made_bytes = 16 << 20});
        EXPECT_TRUE(got.ends_with(bytes_reached)) << kept << ": " << got.substr(0, 200);
    }
    const std::string digits =
        rendered_with("{% set a='1'*400000 ~ 'x' %}{% for i in range(99999) %}{% set z=a|int %}{% endfor %}", low);
    EXPECT_TRUE(digits.ends_with(steps_reached)) << digits.substr(0, 200);
    for (const char* all_at_once :
         {"{{ ([1]*90000)|tojson(separators=('x'*1000000, ':')) }}", "{{ [[[[[[1]]]]]]|tojson(indent='x'*100000000) }}",
          "{{ (['a']*90000)|join('x'*1000000) }}", "{{ ('a\n'*90000)|indent('x'*1000000) }}"}) {
        const std::string got = rendered_with(all_at_once);
        EXPECT_TRUE(got.ends_with(bytes_reached)) << all_at_once << ": " << got.substr(0, 200);
    }
}

TEST(HostileTemplates, NumbersAtTheEdgesAreErrorsOrExact) {
    EXPECT_EQ(rendered_with("{{ '%999999d' % 1 }}"), "ERROR line 1: a width or precision of over 999");
    EXPECT_EQ(rendered_with("{{ '%.999999f' % 1.0 }}"), "ERROR line 1: a width or precision of over 999");
    EXPECT_EQ(rendered_with("{{ '%600d' % 1 }}"), "ERROR line 1: a formatted number of over 500 characters");
    EXPECT_EQ(rendered_with("{{ '%-5d|%05.1f|%x' % (7, 2.25, 255) }}"), "7    |002.2|ff");
    EXPECT_EQ(rendered_with("{{ range(-9223372036854775807-1, 9223372036854775807, 2**62)|list }}"),
              "[-9223372036854775808, -4611686018427387904, 0, 4611686018427387904]");
    EXPECT_EQ(rendered_with("{{ 9223372036854775807|round(-1) }}"), "ERROR line 1: an integer needs more than 64 bits");
    EXPECT_EQ(
        rendered_with("{{ 9223372036854775804|round(-1) }} {{ 15|round(-1) }} {{ 25|round(-1) }} {{ -15|round(-1) }} "
                      "{{ -14|round(-1) }} {{ 7|round(-300) }} {{ 5|round(-19) }}"),
        "9223372036854775800 20 20 -20 -10 0 0");
    EXPECT_EQ(rendered_with("{{ " + std::string(2000, 'a') + " }}"), "ERROR line 1: a name is longer than 1000 bytes");
    std::string call = "{{ dict(";
    for (int i = 0; i < 3000; ++i) call += fmt::format("a{}=1,", i);
    EXPECT_EQ(rendered_with(call + ") }}"), "ERROR line 1: a call has over 1000 named arguments");
}

TEST(HostileTokenizers, TextThatGrowsOnTheWayIsLimited) {
    const auto replace = [](size_t n) {
        return fmt::format(R"({{"type": "Replace", "pattern": {{"String": "a"}}, "content": "{}"}})", repeated("a", n));
    };
    const std::string chain = fmt::format("{0}, {0}, {0}, {0}", replace(1000));
    const std::string normalizers = fmt::format(R"("normalizer": {{"type": "Sequence", "normalizers": [{}]}})", chain);
    EXPECT_TRUE(encoded(tokenizer_of(normalizers), "a").ends_with(bytes_reached));
    EXPECT_EQ(encoded(tokenizer_of(normalizers), "bb"), "2 ids") << "text that does not grow is encoded";
    const std::string added = R"(, "added_tokens": [{"id": 0, "content": "a", "normalized": true}])";
    EXPECT_TRUE(encoded(tokenizer_of(normalizers + added), "b")
                    .starts_with("ERROR at load: added_tokens, normalized: the limit of"));
    const std::string decoders = fmt::format(R"("decoder": {{"type": "Sequence", "decoders": [{}]}})", chain);
    EXPECT_TRUE(encoded(tokenizer_of(decoders), "b").starts_with("ERROR at load: decoder: token 0: the limit of"));
    EXPECT_TRUE(encoded(tokenizer_of(fmt::format(R"("decoder": {})", replace(2000))), "b")
                    .starts_with("ERROR at load: decoder: token 0 becomes 2000 bytes"));
    EXPECT_EQ(encoded(tokenizer_of(fmt::format(R"("decoder": {})", replace(2))), "b"), "1 ids");

    const std::string spaces(1000, ' ');
    const std::string mark = fmt::format(
        R"({{"type": "Metaspace", "replacement": "{}", "prepend_scheme": "always", "split": false}})", spaces);
    EXPECT_TRUE(encoded(tokenizer_of(fmt::format(
                            R"("pre_tokenizer": {{"type": "Sequence", "pretokenizers": [{0}, {0}, {0}, {0}]}})", mark)),
                        "a b c")
                    .ends_with(bytes_reached));
    std::string prepends;
    for (int i = 0; i < 2000; ++i)
        prepends += fmt::format(R"({}{{"type": "Prepend", "prepend": "{}"}})", i ? "," : "", repeated("b", 1000));
    EXPECT_TRUE(
        encoded(tokenizer_of(fmt::format(R"("normalizer": {{"type": "Sequence", "normalizers": [{}]}})", prepends)),
                "a")
            .ends_with(bytes_reached));
}

TEST(HostileTokenizers, PostProcessorsDoNotMultiply) {
    const std::string ids = repeated("0,", 3000) + "0";
    const std::string single = repeated(R"({"SpecialToken": {"id": "x", "type_id": 0}},)", 100);
    const std::string processor = fmt::format(
        R"({{"type": "TemplateProcessing", "single": [{}{{"Sequence": {{"id": "A", "type_id": 0}}}}], "special_tokens": {{"x": {{"id": "x", "ids": [{}], "tokens": []}}}}}})",
        single, ids);
    EXPECT_EQ(encoded(tokenizer_of(fmt::format(R"("post_processor": {})", processor)), "a"),
              "ERROR at load: post_processor TemplateProcessing: over 4096 special tokens");
}

TEST(HostileTokenizers, LongTokensDoNotMultiplyWithTheText) {
    const std::string token = repeated("a", 100'000) + "b", text = repeated("a", 200'000);
    const std::string added =
        fmt::format(R"("added_tokens": [{{"id": 2, "content": "{}", "normalized": false}}])", token);
    EXPECT_TRUE(encoded(tokenizer_of(added), text, 1'000'000).ends_with(steps_reached));
    EXPECT_EQ(encoded(tokenizer_of(added), token), "1 ids");
    const auto unigram = Tokenizer::from_json(
        fmt::format(R"({{"model": {{"type": "Unigram", "unk_id": 0, "vocab": [["a", -1], ["{}", -2]]}}}})", token));
    EXPECT_TRUE(encoded(unigram, text, 1'000'000).ends_with(steps_reached));
}

TEST(HostileTokenizers, ARegularExpressionHasOneBudgetForTheWholeText) {
    const std::string text = repeated("a", 200'000) + "cb" + repeated("a", 300'000);
    for (const char* regex :
         {"(?:a|a){1,17}b|a", "a.*b|a", "(a*)*b", "(?=(a+))\\1b|a",
          "(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)b|a",
          "(?:a?){30}a{30}b"}) {
        const std::string got = encoded(tokenizer_of(split_by(regex)), text, 2'000'000);
        EXPECT_TRUE(got.ends_with(steps_reached) || got.find("needs more than 64 MiB") != got.npos)
            << regex << ": " << got;
    }
    // Long literals, and a class of many ranges, where every place of the text looks like a beginning.
    EXPECT_TRUE(
        encoded(tokenizer_of(split_by(repeated("a", 30'000) + "b|a")), text, 2'000'000).ends_with(steps_reached));
    std::string ranges;
    for (int c = 0x4E00; ranges.size() < 20'000; c += 2) ranges += fmt::format("\\x{{{:X}}}", c);
    EXPECT_TRUE(encoded(tokenizer_of(split_by("[a" + ranges + "]*z|a")), text, 2'000'000).ends_with(steps_reached));
}

TEST(HostileTokenizers, OrdinaryExpressionsFarFromTheLimits) {
    const auto tokenizer = tokenizer_of(split_by(
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    const std::string text = repeated("Hello, it's 12345 o'clock!\n  ab ", 10'000);
    Meter meter(MeterLimits::for_text(text.size()));
    EXPECT_TRUE(tokenizer->encode(text, {}, meter).ok());
    EXPECT_LT(meter.steps_used(), 8 * static_cast<int64_t>(text.size()))
        << "an eighth of the part that grows with the text";
    for (const char* group : {"(?R)a", "(*LIMIT_MATCH=9)a", "(?x) a", "(?C1)a", "(?(1)a|b)", "(?P<n>a)", "(?#a)b"})
        EXPECT_NE(encoded(tokenizer_of(split_by(group)), "a").find("is not supported"), std::string::npos) << group;
}
