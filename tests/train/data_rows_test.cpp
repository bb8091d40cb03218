// Tests data files as other programs write them: the content decides the format, whatever the file name.
#include "data/build.h"
#include "data/format.h"
#include "data/rows.h"
#include "data/table.h"
#include "data/token_set.h"
#include "support/files.h"
#include "support/gzip.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace nibble {
namespace {

namespace fs = std::filesystem;

Json parsed(std::string_view text) {
    auto json = parse_json(text);
    EXPECT_TRUE(json.ok()) << text;
    return json.ok() ? *json : Json();
}

// Each case is a row in some form and the conversation or text that it denotes.
TEST(DataRow, EveryFormIsRead) {
    const Json chat = parsed(R"([{"role": "user", "content": "ask"}, {"role": "assistant", "content": "say"}])");
    const Json system = parsed(R"([{"role": "system", "content": "be"}, {"role": "user", "content": "ask"},
                                   {"role": "assistant", "content": "say"}])");
    const Json two_lines =
        parsed(R"([{"role": "user", "content": "do\nthis"}, {"role": "assistant", "content": "say"}])");
    struct Case {
        const char* row;
        Json messages;
    };
    const Case cases[] = {
        {R"({"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "say"}]})", chat},
        {R"({"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "say", "weight": 1}]})",
         chat},
        {R"({"conversations": [{"from": "human", "value": "ask"}, {"from": "gpt", "value": "say"}]})", chat},
        {R"({"conversations": [{"from": "user", "value": "ask"}, {"from": "assistant", "value": "say"}], "id": 3})",
         chat},
        {R"({"conversations": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "say"}]})", chat},
        {R"({"conversation": [{"from": "human", "value": "ask"}, {"from": "model", "value": "say"}]})", chat},
        {R"({"messages": [{"from": "human", "value": "ask"}, {"from": "bot", "value": "say"}]})", chat},
        {R"({"conversations": "[{\"from\": \"human\", \"value\": \"ask\"}, {\"from\": \"gpt\", \"value\": \"say\"}]"})",
         chat},
        {R"({"conversations": [{"from": "human", "value": "ask"}, {"from": "gpt", "value": "say"}], "system": "be"})",
         system},
        {R"({"instruction": "ask", "output": "say"})", chat},
        {R"({"instruction": "ask", "input": "", "output": "say", "text": "Below is ..."})", chat},
        {R"({"instruction": "do", "input": "this", "output": "say"})", two_lines},
        {R"({"instruction": "do", "context": "this", "response": "say", "category": "qa"})", two_lines},
        {R"({"instruction": "ask", "output": "say", "system": "be"})", system},
        {R"({"question": "ask", "answer": "say"})", chat},
        {R"({"query": "ask", "response": "say"})", chat},
        {R"({"prompt": "ask", "response": "say"})", chat},
        {R"({"input": "ask", "output": "say"})", chat},
        {R"({"prompt": [{"role": "user", "content": "ask"}], "completion": [{"role": "assistant", "content": "say"}]})",
         chat},
    };
    for (const Case& c : cases) {
        const auto row = data_row(parsed(c.row));
        ASSERT_TRUE(row.ok()) << c.row << ": " << row.error().message();
        EXPECT_EQ(row->messages, c.messages) << c.row;
        EXPECT_EQ(row->unlearned.size(), c.messages.size());
    }
    const auto history = data_row(parsed(R"({"instruction": "c", "output": "d", "history": [["a", "b"]]})"));
    ASSERT_TRUE(history.ok());
    EXPECT_EQ(history->messages.size(), 4u);
    EXPECT_EQ(history->messages[1], parsed(R"({"role": "assistant", "content": "b"})"));
    const auto call =
        data_row(parsed(R"({"tools": "[{\"name\": \"f\"}]", "conversations": [{"from": "human", "value": "x"},
        {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"}, {"from": "observation", "value": "1"},
        {"from": "gpt", "value": "y"}]})"));
    ASSERT_TRUE(call.ok()) << call.error().message();
    EXPECT_EQ(call->messages[1]["tool_calls"][0]["function"]["name"], "f");
    EXPECT_EQ(call->messages[2]["role"], "tool");
    EXPECT_EQ(call->tools[0]["name"], "f");
    const auto weighted = data_row(parsed(
        R"({"messages": [{"role": "assistant", "content": "a", "weight": 0}, {"role": "assistant", "content": "b"}]})"));
    ASSERT_TRUE(weighted.ok());
    EXPECT_EQ(weighted->unlearned, (std::vector<bool>{true, false}));
    EXPECT_FALSE(weighted->messages[0].contains("weight"));
    const auto completion = data_row(parsed(R"({"prompt": "2+2=", "completion": "4"})"));
    ASSERT_TRUE(completion.ok());
    EXPECT_EQ(completion->prompt + "|" + completion->text, "2+2=|4");
    EXPECT_EQ(data_row(parsed(R"({"content": "words", "language": "en"})"))->text, "words");
}

TEST(DataRow, OtherRowsAreRefusedWithTheReason) {
    for (const auto& [row, why] : {std::pair{R"([1])", "expected an object"},
                                   {R"({"txt": "a"})", "has the keys txt"},
                                   {R"({"text": 3})", "'text' is not a string"},
                                   {R"({"text": "a", "messages": []})", "has both"},
                                   {R"({"messages": "[{'role': 'user'}]"})", "'messages'"},
                                   {R"({"messages": []})", "'messages' is an empty list"},
                                   {R"({"conversations": [{"from": "alien", "value": "x"}]})", "'from' is 'alien'"},
                                   {R"({"conversations": [{"value": "x"}]})", "message 1: has no 'role'"},
                                   {R"({"chosen": "a", "rejected": "b"})", "preferences"},
                                   {R"({"instruction": "a"})", "has the keys instruction"},
                                   {R"({"instruction": "a", "output": ["b"]})", "'output' is not a string"}}) {
        const auto read = data_row(parsed(row));
        ASSERT_FALSE(read.ok()) << row;
        EXPECT_NE(read.error().message().find(why), std::string::npos) << row << ": " << read.error().message();
    }
}

TEST(DataFile, FormatIsRecognizedByContent) {
    struct Case {
        const char *name, *content;
        std::optional<DataFormat> format;  // absent: refused
    };
    const Case cases[] = {
        {"a.txt", "The quick brown fox.", DataFormat::text},
        {"a.md", "# Title\n\n[link](x), {braces}", DataFormat::text},
        {"a.txt", "[1] A list of sources", DataFormat::text},
        {"a.txt", "{{Infobox}} text", DataFormat::text},
        {"a.py", "{\"a\": 1}.get('a')\nprint(2)\n", DataFormat::text},
        {"a.txt", "text, with a comma\nand more", DataFormat::text},
        {"a.txt", "text,with,commas\nand more", DataFormat::text},
        {"a.txt", "question,answer", DataFormat::csv},
        {"a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n", DataFormat::lines},
        {"a.txt", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n", DataFormat::lines},
        {"a", "{\"messages\": []}", DataFormat::lines},
        {"a.json", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n", DataFormat::lines},
        {"a.jsonl", "broken", DataFormat::lines},  // the error names the line when it is read
        {"a.json", "[{\"text\": \"x\"}]", DataFormat::array},
        {"a.txt", " \n[\n  {\"instruction\": \"x\"}]", DataFormat::array},
        {"a.jsonl", "[{\"text\": \"x\"}]", DataFormat::array},
        {"a.json", "{\n \"text\": \"x\"\n}\n", DataFormat::object},
        {"a.json", "{\n \"data\": [{\"text\": \"x\"}]\n}", DataFormat::object},
        {"a.json", "[1, 2]", {}},
        {"a.json", "hello", {}},
        {"a.csv", "text\nhello\n", DataFormat::csv},
        {"a.tsv", "question\tanswer\n1\t2\n", DataFormat::csv},
        {"a.txt", "instruction,input,output\na,b,c\n", DataFormat::csv},
        {"a.txt", "\"question\";\"answer\"\na;b\n", DataFormat::csv},
        {"a", "PAR1....", DataFormat::parquet},
        {"a.txt", "PAR1....", DataFormat::parquet},
        {"a.parquet", "hello", {}},
        {"a.jsonl.zst", "\x28\xB5\x2F\xFD....", {}},
        {"a.arrow", "ARROW1....", {}},
        {"a.txt", "PK\x03\x04....", {}},
        {"a.pdf", "%PDF-1.7", {}},
    };
    for (const Case& c : cases) {
        const auto kind = data_file_kind(c.name, c.content, true);
        ASSERT_EQ(kind.ok(), c.format.has_value()) << c.name << ": " << c.content;
        if (!kind.ok()) continue;
        EXPECT_EQ(kind->format, *c.format) << c.name << ": " << c.content;
    }
    EXPECT_EQ(data_file_kind("a.tsv", "a\tb", true)->separator, '\t');
    EXPECT_EQ(data_file_kind("a.csv", "question;answer\n", true)->separator, ';');
    EXPECT_EQ(data_file_kind("a.csv", "text,label\n", true)->separator, ',');
}

TEST(DataTable, RecordsKeepWhatQuotesProtect) {
    std::string_view rest = "a,b\r\n\"x, \"\"y\"\"\",\"two\nlines\"\r\n\n,\nlast,\"\"";
    const std::vector<std::vector<std::string>> want = {{"a", "b"}, {"x, \"y\"", "two\nlines"}, {"", ""}, {"last", ""}};
    for (const auto& fields : want) {
        const auto record = next_record(rest, ',');
        ASSERT_TRUE(record.ok() && *record) << rest;
        EXPECT_EQ(**record, fields);
    }
    EXPECT_FALSE(*next_record(rest, ','));
    for (std::string_view bad : {"\"open", "\"a\"b,c"}) EXPECT_FALSE(next_record(bad, ',').ok()) << bad;
}

TEST(DataTable, ElementsOfAListAreObjects) {
    std::string_view rest = R"( {"a": "}]\""}, {"b": [{"c": 1}]} ] )";
    EXPECT_EQ(**next_element(rest), R"({"a": "}]\""})");
    EXPECT_EQ(**next_element(rest), R"({"b": [{"c": 1}]})");
    EXPECT_FALSE(*next_element(rest));
    for (std::string_view bad : {R"({"a": 1)", "", "3]", R"("x"])", "] more"})
        EXPECT_FALSE(next_element(bad).ok()) << bad;
}

class DataFilesTest : public testing::Test {
protected:
    void SetUp() override {
        tokenizer.emplace(*Tokenizer::from_folder(test::test_data("chat")));
        chat.emplace(*ChatTemplate::open(test::test_data("chat")));
        how = {.tokenizer = &*tokenizer, .chat = &*chat, .end_token = 271};
    }
    struct Built {
        std::string error;
        std::vector<int32_t> tokens;
        int64_t documents = 0, learned = 0;
    };
    Built build(const std::string& name, const std::string& content) {
        test::write_file(dir / name, content);
        ThreadPool pool(2);
        std::error_code ignored;
        fs::remove_all(dir / "out", ignored);
        const auto made = build_data(how, {.inputs = {dir / name}, .out = dir / "out"}, pool);
        if (!made.ok()) return {.error = made.error().message()};
        const auto set = TokenSet::open(dir / "out", *made, false);
        TokenSet::Slice slice;
        EXPECT_TRUE(set.ok() && set->read(0, set->tokens(), slice).ok());
        return {.error = "",
                .tokens = {slice.ids.begin(), slice.ids.end()},
                .documents = made->train.documents(),
                .learned = made->train.learned()};
    }
    std::optional<Tokenizer> tokenizer;
    std::optional<ChatTemplate> chat;
    DocumentText how;
    test::TempDir dir;
};

// The same two conversations in every format and form give the same tokens.
TEST_F(DataFilesTest, EveryFormatGivesTheSameTokens) {
    const std::string first = R"({"question": "hello", "answer": "world"})",
                      second = R"({"question": "one, \"two\"", "answer": "three\nfour"})";
    const std::string lines = first + "\n" + second + "\n";
    const Built want = build("a.jsonl", lines);
    ASSERT_EQ(want.error, "");
    EXPECT_EQ(want.documents, 2);
    EXPECT_GT(want.learned, 0);
    EXPECT_LT(want.learned, std::ssize(want.tokens));
    const std::string list = "[\n " + first + ",\n " + second + "\n]\n";
    const std::string table = "question,answer\r\nhello,world\r\n\"one, \"\"two\"\"\",\"three\nfour\"\r\n";
    const auto with = [&](std::string user, std::string assistant, std::string key, std::string role,
                          std::string text) {
        const auto row = [&](const char* q, const char* a) {
            return fmt::format(R"({{"{}": [{{"{}": "{}", "{}": {}}}, {{"{}": "{}", "{}": {}}}]}})", key, role, user,
                               text, Json(q).dump(), role, assistant, text, Json(a).dump());
        };
        return row("hello", "world") + "\n" + row("one, \"two\"", "three\nfour") + "\n";
    };
    for (const auto& [name, content] : std::vector<std::pair<std::string, std::string>>{
             {"b.txt", lines},
             {"b.json", lines},
             {"b", lines},
             {"b.jsonl", "\xEF\xBB\xBF" + lines},
             {"b.jsonl.gz", test::gzipped(lines)},
             {"b.bin", test::gzipped(lines)},  // gzip is detected whatever the name
             {"b.json", list},
             {"b.txt", list},
             {"b.json.gz", test::gzipped(list)},
             {"b.json", "{\n\"version\": 1, \"data\": " + list + "}"},
             {"b.csv", table},
             {"b.txt", table},
             {"b.csv.gz", test::gzipped(table)},
             {"b.csv", "\xEF\xBB\xBF" + table},
             {"b.tsv", "answer\tquestion\nworld\thello\n\"three\nfour\"\t\"one, \"\"two\"\"\"\n"},
             {"b.jsonl", with("user", "assistant", "messages", "role", "content")},
             {"b.jsonl", with("human", "gpt", "conversations", "from", "value")}}) {
        const Built got = build(name, content);
        EXPECT_EQ(got.error, "") << name << ": " << content.substr(0, 80);
        EXPECT_EQ(got.tokens, want.tokens) << name << ": " << content.substr(0, 80);
        EXPECT_EQ(got.learned, want.learned) << name << ": " << content.substr(0, 80);
    }
}

TEST_F(DataFilesTest, ErrorsNameFileAndRow) {
    for (const auto& [name, content, end] : std::vector<std::array<std::string, 3>>{
             {"a.json", "[{\"text\": \"x\"}, {\"txt\": 1}]", "a.json: row 2: has the keys txt; "},
             {"a.json", "[{\"text\": \"x\"}, 3]", "a.json: after row 1: the list has an element that is not an object"},
             {"a.json", "[{\"text\": \"x\"}", "a.json: after row 1: the list is not closed"},
             {"a.csv", "text,n\nx,1\ny\n", "a.csv: after row 1: a record has 1 fields, but the first line has 2 names"},
             {"a.csv", "name,age\nx,1\n", "a.csv: the first line: has the keys name, age; "},
             {"a.json", "{\n\"a\": [{\"x\": 1}], \"b\": [{\"x\": 1}]}", "a.json: has several lists of objects"},
             {"a.json", "{\n\"a\": 1}", "a.json: has neither a row nor a list of rows"},
             {"a.jsonl.zst", "\x28\xB5\x2F\xFD",
              "is compressed by zstd, which is not supported; decompress it: zstd -d"},
             {"a.jsonl", R"({"messages": [{"role": "user", "content": "alone"}]})", "no token would be learned"}}) {
        const Built got = build(name, content);
        EXPECT_NE(got.error.find(end), std::string::npos) << got.error;
    }
}

TEST_F(DataFilesTest, OnlyTheCompletionIsLearned) {
    const Built got = build("a.jsonl", R"({"prompt": "hello the ", "completion": "world"})");
    ASSERT_EQ(got.error, "");
    const auto prompt = *tokenizer->encode("hello the ", {.add_special = true, .parse_special = false});
    const auto completion = *tokenizer->encode("world", {.parse_special = false});
    std::vector<int32_t> want(prompt.begin(), prompt.end());
    want.insert(want.end(), completion.begin(), completion.end());
    want.push_back(271);
    EXPECT_EQ(got.tokens, want);
    EXPECT_EQ(got.learned, std::ssize(completion) + 1);
}

// A program named python3 stands for one with pyarrow, one without, and one that fails.
TEST_F(DataFilesTest, ParquetIsReadByPyarrowOrNamesIt) {
    const std::string path = std::getenv("PATH");
    fs::create_directories(dir / "bin");
    const auto python = [&](const std::string& script) {
        test::write_file(dir / "bin/python3", "#!/bin/sh\n" + script);
        fs::permissions(dir / "bin/python3", fs::perms::owner_all);
        ::setenv("PATH", ((dir / "bin").string() + ":" + path).c_str(), 1);
        const Built got = build("a.parquet", "PAR1....PAR1");
        ::setenv("PATH", path.c_str(), 1);
        return got;
    };
    const Built rows = python(R"(printf '{"text":"one"}\n{"text":"two"}\n')");
    EXPECT_EQ(rows.error, "");
    EXPECT_EQ(rows.documents, 2);
    EXPECT_NE(python("echo '!pyarrow'").error.find("a.parquet: is a Parquet file, which pyarrow reads: install it"),
              std::string::npos);
    EXPECT_NE(python("echo '!has the columns a, b; none of them is known'").error.find("has the columns a, b"),
              std::string::npos);
    EXPECT_NE(
        python(R"(printf '{"text":"one"}\n{"te'; exit 3)").error.find("after row 1: the Python that reads it ended"),
        std::string::npos);
    EXPECT_NE(
        python(R"(printf '{"text":"one"}\n{"text":"two"}\n{"txt":"three"}\n')").error.find("row 3: has the keys txt"),
        std::string::npos);
    ::setenv("PATH", (dir / "none").c_str(), 1);
    const Built none = build("a.parquet", "PAR1....PAR1");
    ::setenv("PATH", path.c_str(), 1);
    EXPECT_NE(none.error.find("pip install pyarrow"), std::string::npos) << none.error;
}

}  // namespace
}  // namespace nibble
