// The parts of JSON-Schema-Test-Suite (draft 2020-12) that grammars support. The grammar rejects all documents that the
// suite calls invalid, and accepts most valid ones (it has one order of members and one spelling of numbers).
#include "grammar/grammar.h"

#include "support/files.h"

#include <gtest/gtest.h>

#include <fstream>

using namespace nibble;
using namespace nibble::test;

TEST(SchemaSuite, NothingInvalidIsTaken) {
    std::ifstream in(test_data("grammar") / "suite.jsonl");
    size_t schemas = 0, refused = 0, valid = 0, taken = 0, invalid = 0;
    for (std::string line; std::getline(in, line);) {
        const auto one = parse_json(line);
        ASSERT_TRUE(one.ok()) << one.error().message();
        ++schemas;
        const auto grammar = Grammar::from_json_schema((*one)["schema"]);
        if (!grammar.ok()) {
            ++refused;
            continue;
        }
        for (const Json& document : (*one)["invalid"]) {
            ++invalid;
            EXPECT_FALSE((*grammar)->matches(document.get<std::string>())) << (*one)["where"] << ": " << document;
        }
        for (const Json& document : (*one)["valid"]) {
            ++valid;
            taken += (*grammar)->matches(document.get<std::string>());
        }
    }
    EXPECT_GT(schemas, 250u);
    EXPECT_LT(refused, schemas / 3);
    EXPECT_GT(invalid, 300u);
    EXPECT_GT(taken, valid * 3 / 4);
}
