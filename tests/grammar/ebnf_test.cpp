// Grammars in GBNF and Lark.
#include "grammar/walks.h"

#include <gtest/gtest.h>

using namespace nibble;
using namespace nibble::test;

namespace {

std::string ebnf_error(std::string_view text) {
    const auto made = Grammar::from_ebnf(text);
    return made.ok() ? "" : made.error().message();
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

TEST(Ebnf, ErrorsNameTheLine) {
    EXPECT_EQ(ebnf_error("root ::= a\n"), "line 1: there is no rule 'a'");
    EXPECT_EQ(ebnf_error("x ::= \"a\""), "line 1: there is no rule 'root'");
    EXPECT_EQ(ebnf_error("root ::= \"a\"\nroot ::= \"b\""), "line 2: the rule 'root' is there already");
    EXPECT_EQ(ebnf_error("root ::= (\"a\"\nb ::= \"c\""), "line 1: '(' without ')'");
    EXPECT_EQ(ebnf_error("start: \"a\"\n%ignore WS"),
              "line 2: %ignore is not supported: write the white space where it may stand");
    EXPECT_EQ(ebnf_error("start: \"a\" /b(?=c)/"),
              "line 1: regular expression: character 2: look-ahead is not supported");
    EXPECT_NE(ebnf_error("root ::= a \"x\"\na ::= root | \"y\"").find("left-recursive"), std::string::npos);
    EXPECT_NE(ebnf_error("root ::= \"a\" root").find("nothing satisfies"), std::string::npos);
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
    // Two readings double at every step: the readings are limited, and what exceeds them is refused, not run.
    const auto made = Grammar::from_ebnf("root ::= a\na ::= \"x\" a a | \"x\" a | \"x\"");
    ASSERT_TRUE(made.ok());
    (*made)->matches(std::string(5000, 'x'));
}
