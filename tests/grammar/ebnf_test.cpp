// Grammars in GBNF and Lark.
#include "grammar/walks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

using namespace nibble;
using namespace nibble::test;

namespace {

std::string ebnf_error(std::string_view text) {
    const auto made = Grammar::from_ebnf(text);
    return made.ok() ? "" : made.error().message();
}

// Returns n rules that may begin at one position.
std::string alternatives(int n) {
    std::string choice = "r0 many", rules;
    for (int i = 1; i < n; ++i) choice += fmt::format(" | r{} many", i);
    for (int i = 0; i < n; ++i) rules += fmt::format("\nr{} ::= [ab] \"{}\"", i, i);
    return choice + " | \"\"" + rules;
}

void expect_texts(std::string_view grammar, const std::vector<std::string>& yes, const std::vector<std::string>& no) {
    const auto made = Grammar::from_ebnf(grammar);
    ASSERT_TRUE(made.ok()) << grammar << made.error().message();
    for (const std::string& text : yes) EXPECT_TRUE((*made)->matches(text)) << text;
    for (const std::string& text : no) EXPECT_FALSE((*made)->matches(text)) << text;
    const auto tokens = std::make_shared<const GrammarTokens>(*made, small_vocabulary());
    Dice dice(21);
    for (int i = 0; i < 6; ++i) {
        const Walk walk = random_walk(tokens, dice, 20, 3, i < 2);
        EXPECT_TRUE(!walk.complete || (*made)->matches(walk.text)) << walk.text;
    }
}

}  // namespace

TEST(Gbnf, ArithmeticAsLlamaCppWritesIt) {
    expect_texts(R"x(
# sums of products
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
)x",
                 {"a+b=c\n", "(a +3)*x= 12\n", "1=2\n3=4\n"}, {"", "a+=c\n", "a=b", "A=b\n", "(a=b\n"});
}

TEST(Gbnf, RepetitionsClassesAndLines) {
    expect_texts(
        "root ::= \"x\"{2,3} [^a-c\\]]? | \n  \"é\"{1} .\n\n | item{2,} # end\nitem ::= \"\\x41\" | [\\u00e4-\\u00f6]",
        {"xx", "xxx", "xxz", "é日", "AA", "AäöA"},
        {"x", "xxa", "xx]", "é", "A",
         "xxxx"
         "x"});
    expect_texts("root ::= a-b \"1\"?\na-b ::= \"k\"", {"k", "k1"}, {"", "1"});
}

TEST(Gbnf, NestingAndDirectLeftRecursion) {
    expect_texts("root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())"});
    expect_texts("root ::= root \"+\" [0-9] | [0-9]", {"1", "1+2+3"}, {"+", "1+", "12"});
}

// Left-recursive rules: directly, through others, after rules that match the empty text. Each is compared with the same
// language without left recursion, over all short texts.
TEST(LeftRecursion, GivesTheTextsOfTheGrammarWithoutIt) {
    struct Case {
        const char *grammar, *same, *letters;
    };
    const Case cases[] = {
        {"root ::= root \"+\" [0-1] | [0-1]", "root ::= [0-1] (\"+\" [0-1])*", "01+"},
        {"root ::= e\ne ::= e \"+\" e | [0-1]", "root ::= [0-1] (\"+\" [0-1])*", "01+"},
        {"root ::= root root | \"a\"", "root ::= \"a\"+", "ab"},
        {"root ::= root root | \"a\" | \"\"", "root ::= \"a\"*", "ab"},
        {"root ::= a \"x\" | \"z\"\na ::= root | \"y\"", "root ::= (\"y\" \"x\" | \"z\") \"x\"*", "xyz"},
        {"root ::= a\na ::= b \"1\" | \"p\"\nb ::= c \"2\"\nc ::= a \"3\" | \"q\"",
         "root ::= (\"p\" | \"q21\") \"321\"*", "pq123"},
        {"root ::= n root \"a\" | \"b\"\nn ::= \"\" | \"c\"",
         "root ::= \"b\" \"a\"* | x\nx ::= \"c\" (\"b\" \"a\"* | x) \"a\"+", "abc"},
        {"root ::= n n root | \"b\"\nn ::= \"\"", "root ::= \"b\"", "ab"},
        {"root ::= root | \"a\"", "root ::= \"a\"", "ab"},
        {"root ::= a\na ::= b\nb ::= a | \"x\"", "root ::= \"x\"", "xy"},
        {"root ::= n\nn ::= n n | \"\" | \"a\" n \"b\"", "root ::= p*\np ::= \"a\" root \"b\"", "ab"},
        {"root ::= e\ne ::= e \"*\" e | e \"+\" e | \"(\" e \")\" | \"1\"",
         "root ::= e\ne ::= t ([*+] t)*\nt ::= \"1\" | \"(\" e \")\"", "1+*()"},
        {"start: a\na: a \",\" B | B\nB: \"x\" | \"y\"", "root ::= [xy] (\",\" [xy])*", "xy,"}};
    for (const Case& c : cases) {
        const auto made = Grammar::from_ebnf(c.grammar), same = Grammar::from_ebnf(c.same);
        ASSERT_TRUE(made.ok()) << c.grammar << made.error().message();
        ASSERT_TRUE(same.ok()) << c.same << same.error().message();
        const std::string_view letters = c.letters;
        std::vector<std::string> texts{""};
        size_t taken = 0;
        for (size_t i = 0; i < texts.size() && texts.size() < 20'000; ++i)
            for (const char letter : letters) texts.push_back(texts[i] + letter);
        for (const std::string& text : texts) {
            ASSERT_EQ((*made)->matches(text), (*same)->matches(text)) << c.grammar << "\n" << text;
            taken += (*same)->matches(text);
        }
        EXPECT_GT(taken, 0u) << c.grammar;
        const auto tokens = std::make_shared<const GrammarTokens>(*made, small_vocabulary());
        Dice dice(5);
        for (int i = 0; i < 4; ++i) {
            const Walk walk = random_walk(tokens, dice, 30, 3, i < 2);
            EXPECT_TRUE(!walk.complete || (*made)->matches(walk.text)) << walk.text;
        }
    }
    EXPECT_NE(ebnf_error("root ::= root \"a\"").find("no text of finite length satisfies"), std::string::npos);
}

// However many readings a text has, every answer can continue, with bounded work per token.
TEST(AmbiguousGrammars, LongAnswersNeverBreakOff) {
    const std::string grammars[] = {"root ::= e\ne ::= e \"+\" e | [0-9]",
                                    "root ::= e\ne ::= [0-9] | [0-9] \"+\" e | [0-9] \"+\" e \"+\" e",
                                    "root ::= root root | \"a\" | \"b\"",
                                    "root ::= (\"a\"* \"a\"* \"a\"*)* \"b\"",
                                    "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s | \"a\"",
                                    "root ::= s\ns ::= \"a\" s \"a\" | \"b\" s \"b\" | \"a\" | \"b\"",
                                    "root ::= x\nx ::= y x y | [a-c]\ny ::= [a-c] | [a-c] y",
                                    "root ::= x*\nx ::= \"a\" | \"aa\" | \"aaa\" | x2\nx2 ::= \"a\" x | \"b\"",
                                    "root ::= \"a\" many\nmany ::= " + alternatives(1500),
                                    "root ::= i\ni ::= \"if \" i | \"if \" i \" else \" i | \"x\"",
                                    "root ::= e\ne ::= e \"+\" e | e \"*\" e | \"(\" e \")\" | \"-\" e | [0-9]+"};
    for (const std::string& grammar : grammars) {
        const auto made = Grammar::from_ebnf(grammar);
        ASSERT_TRUE(made.ok()) << grammar.substr(0, 100) << made.error().message();
        const auto tokens = std::make_shared<const GrammarTokens>(*made, small_vocabulary());
        for (uint64_t seed = 1; seed <= 2; ++seed) {
            Dice dice(seed);
            const Walk walk = random_walk(tokens, dice, 900, 0, false);  // fails if a mask is empty
            EXPECT_TRUE(walk.complete || walk.tokens >= 900) << grammar.substr(0, 100) << walk.text;
        }
        Dice dice(3);
        random_walk(tokens, dice, grammar.size() < 1000 ? 40 : 0, 0, true);  // the readings that are dropped differ
    }
}

// Rules that may match the empty text and call each other twice: the number of readings doubles with every rule.
TEST(AmbiguousGrammars, NullableRulesCalledTwiceEnd) {
    for (const int rules : {12, 20, 60, 400})
        for (const std::string& start : {std::string("a0"), std::string("\"y\" a0 \"z\"")}) {
            std::string grammar = "root ::= " + start + "\n";
            for (int i = 0; i < rules; ++i) grammar += fmt::format("a{} ::= a{} a{} | \"\"\n", i, i + 1, i + 1);
            grammar += fmt::format("a{} ::= \"x\"\n", rules);
            const auto made = Grammar::from_ebnf(grammar);
            ASSERT_TRUE(made.ok()) << rules << made.error().message();
            const bool framed = start != "a0";
            for (const int n :
                 rules > 60 ? std::vector{0, 1, 2}
                            : std::vector{0, 1, 2, 3, 4}) {  // every rule except the last has an even number of x
                const std::string text(static_cast<size_t>(n), 'x');
                EXPECT_EQ((*made)->matches(framed ? "y" + text + "z" : text), n % 2 == 0) << rules << " " << n;
            }
            EXPECT_FALSE((*made)->matches(framed ? "yy" : "xy"));
            if (rules > 60) continue;  // a walk looks at every token of the vocabulary, which takes a minute here
            const auto tokens = std::make_shared<const GrammarTokens>(*made, small_vocabulary());
            Dice dice(7);
            const Walk walk = random_walk(tokens, dice, 8, 0, false);
            EXPECT_TRUE(walk.complete || walk.tokens >= 8) << rules << walk.text;
        }
}

TEST(Lark, RulesTerminalsAndImports) {
    expect_texts(R"x(
// a small language
?start: command (";" " " command)*
command.2: "go"i " " DIRECTION -> go
       | "say " ESCAPED_STRING
       | [ "very " ] "wait " NUM~1..2
DIRECTION: "north" | "south" | /w(est)?/
NUM: "0".."9"
%import common.ESCAPED_STRING
)x",
                 {"go north", "GO w", "say \"a\\\"b\"", "very wait 12", "wait 1; go west"},
                 {"go", "go northsouth", "wait 123", "say a", "wait 1;go west"});
}

// Grammars in the form that guidance writes for llguidance.
TEST(Lark, TheDialectOfLlguidance) {
    expect_texts("%llguidance {}\n\nstart: START\nSTART: \"a\" /[0-9]{2}/\n", {"a12"}, {"a1", "12"});
    expect_texts(
        "%llguidance {\"no_forcing\": true}\nstart: x \" \" y\n\nx[capture=\"one\"]: \"p\"\n     | \"q\"\n\n"
        "y[capture, stop_capture=\"s\"]: /(?s:.{1,2})/",
        {"p a", "q \n\n"}, {"p ", "r a"});
    expect_texts(
        "%llguidance {}\n\nstart: \"<\" j \">\"\nj: %json {\n  \"type\": \"object\",\n  \"properties\": {\"a }\": "
        "{\"type\": \"boolean\"}},\n  \"required\": [\"a }\"]\n}\n",
        {"<{\"a }\": true}>"}, {"<{}>", "<{\"a }\": true, \"b\": 1}>"});
    expect_texts("%llguidance {}\nstart: (\"a\" | \"b\"){2,3} \"::=\"? \"\"", {"ab", "bba::="}, {"a", "::="});
    const std::pair<const char*, const char*> refused[] = {
        {"start: x\nx[max_tokens=3]: /a*/", "line 3: the attribute 'max_tokens'"},
        {"start: x\nx[capture, temperature=0.5]: /a*/", "line 3: the attribute 'temperature'"},
        {"start: x\nx[stop=\"b\"]: /a*/", "line 3: the attribute 'stop'"},
        {"start: x\nx[suffix=\"b\"]: /a*/", "line 3: the attribute 'suffix'"},
        {"start: x\nx[lazy]: /a*/", "line 3: the attribute 'lazy'"},
        {"start: %lark {\n start: \"a\"\n}", "line 2: %lark is not supported"},
        {"start: %regex {\"substring_chunks\": [\"a\"]}", "line 2: %regex is not supported"},
        {"start: <[123]>", "line 2: tokens by their numbers"},
        {"start: \"a\"\n%ignore / /", "line 3: %ignore is not supported"},
        {"start: %json {\"type\": \"string\", \"contains\": {}}", "line 2: %json: #: the keyword 'contains'"},
        {"start: %json {\"type\"", "line 2: a JSON object is missing"},
        {"start: a&b", "line 2: "}};
    for (const auto& [rules, error] : refused)
        EXPECT_EQ(ebnf_error(std::string("%llguidance {}\n") + rules).find(error), 0u)
            << ebnf_error(std::string("%llguidance {}\n") + rules);
    EXPECT_NE(ebnf_error("%llguidance {\"x\": 1}\nstart: \"a\"").find("the option 'x'"), std::string::npos);
}

TEST(Ebnf, ErrorsNameTheLine) {
    EXPECT_EQ(ebnf_error("root ::= a\n"), "line 1: there is no rule 'a'");
    EXPECT_EQ(ebnf_error("x ::= \"a\""), "line 1: there is no rule 'root'");
    EXPECT_EQ(ebnf_error("root ::= \"a\"\nroot ::= \"b\""), "line 2: the rule 'root' is there already");
    EXPECT_EQ(ebnf_error("root ::= (\"a\"\nb ::= \"c\""), "line 1: '(' without ')'");
    EXPECT_EQ(ebnf_error("start: \"a\"\n%ignore WS"),
              "line 2: %ignore is not supported: write the white space where it may stand");
    EXPECT_EQ(ebnf_error("start: \"a\" /b(?=c)/"),
              "line 1: regular expression: character 2: look-ahead is not supported");
    EXPECT_NE(ebnf_error("root ::= \"a\" root").find("no text of finite length satisfies"), std::string::npos);
    for (const char* bad :
         {"root ::= \"a", "root ::= [a", "root ::= \"a\"{3,2}", "root ::= \"a\"{200000}", "root ::= )", "root = \"a\"",
          "start: \"a\"..\"\"", "start: <a", "::= a", "%foo", "root ::= \"\\q\"", "root ::= \"\\uD800\"", "", "\xFF"})
        EXPECT_NE(ebnf_error(bad), "") << bad;
}

TEST(Ebnf, BombsAreErrors) {
    EXPECT_NE(ebnf_error("root ::= " + std::string(100'000, '(')), "");
    EXPECT_NE(ebnf_error("root ::= ((((\"a\"{1000}){1000}){1000}){1000})"), "");
    EXPECT_NE(ebnf_error("root ::= [ab]* \"a\" [ab]{40} \"c\""), "");
    std::string chain = "root ::= r0";
    for (int i = 0; i < 30'000; ++i) chain += "\nr" + std::to_string(i) + " ::= r" + std::to_string(i + 1);
    EXPECT_NE(ebnf_error(chain), "");
    // Two readings double at every step: their number is limited, and texts that exceed the limit are rejected.
    const auto made = Grammar::from_ebnf("root ::= a\na ::= \"x\" a a | \"x\" a | \"x\"");
    ASSERT_TRUE(made.ok());
    (*made)->matches(std::string(5000, 'x'));
}
