// Tests programs as answers: extraction of the program, forms of a row's tests, and the reward of hostile programs.
#include "rl/code_reward.h"

#include "rl/answer_rule.h"
#include "rl/question_rows.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

namespace nibble::test {
namespace {

TEST(CodeReward, FindsTheProgram) {
    const std::pair<const char*, const char*> table[] = {
        {"x = 1", "x = 1"},
        {"", ""},
        {"Sure:\n```python\nx = 1\n```\nThat is it.", "x = 1\n"},
        {"```\nx = 1\n```", "x = 1\n"},
        {"```py\nx = 1\n```\nor\n```python3 \r\nx = 2\ny = 3\n```", "x = 2\ny = 3\n"},
        {"```python\nx = 1\n```\nIt prints\n```text\n1\n```", "x = 1\n"},
        {"  ```python\n  x = 1\n  ```", "  x = 1\n"},
        {"```python\nx = 1", "x = 1"},                   // a stop string removed the end
        {"```python\nx = 1\n```\n```python\n", ""},      // a second block without content
        {"```text\nx = 1\n```", "```text\nx = 1\n```"},  // no Python block: the whole text
        {"```python", ""},
        {"```", ""},
    };
    for (const auto& [text, code] : table) EXPECT_EQ(code_of(text), code) << text;
}

TEST(CodeReward, ReadsTests) {
    const std::pair<const char*, const char*> good[] = {
        {R"("assert f(1) == 2")", R"({"statements":["assert f(1) == 2"]})"},
        {R"(["assert a", "assert b"])", R"({"statements":["assert a","assert b"]})"},
        {R"({"inputs": ["1\n"], "outputs": ["2\n"]})", R"({"cases":[["1\n","2\n"]]})"},
        {R"({"outputs": [["2", "3"]], "inputs": [["1", "1"]]})", R"({"cases":[["1\n1\n","2\n3\n"]]})"},
        {R"("{\"inputs\": [\"\"], \"outputs\": [\"x\"]}")", R"({"cases":[["","x"]]})"},
        {R"("{1: 2}[1]")", R"({"statements":["{1: 2}[1]"]})"},  // not a JSON object: Python
    };
    for (const auto& [row, tests] : good) {
        const auto read = code_tests(*parse_json(row));
        ASSERT_TRUE(read.ok()) << row << ": " << read.error().message();
        EXPECT_EQ(*read, tests);
    }
    const std::pair<const char*, const char*> bad[] = {
        {R"(" ")", "is empty"},
        {"[]", "has no test"},
        {"[1]", "must be a list of texts"},
        {"7", "must be tests: text, a list of texts, or 'inputs' and 'outputs'"},
        {R"({"inputs": [], "outputs": []})", "has no test"},
        {R"({"inputs": ["1"]})", "'inputs' and 'outputs' must be lists"},
        {R"({"inputs": ["1", "2"], "outputs": ["1"]})", "2 'inputs' for 1 'outputs'"},
        {R"({"inputs": [1], "outputs": ["1"]})", "inputs[0]: must be text or a list of lines"},
        {R"({"inputs": ["1"], "outputs": [[1]]})", "outputs[0]: must be text or a list of lines"},
        {R"({"inputs": ["1"], "outputs": ["1"], "fn_name": "f"})",
         "'fn_name': unknown key; tests have 'inputs' and 'outputs'"},
    };
    for (const auto& [row, message] : bad) {
        const auto read = code_tests(*parse_json(row));
        ASSERT_FALSE(read.ok()) << row;
        EXPECT_EQ(read.error().message(), message);
    }
}

TEST(CodeReward, RowsOfAFileHaveTests) {
    TempDir dir;
    write_file(dir / "rows.jsonl", R"({"text": "Double it.", "test_list": ["assert f(1) == 2"]}
{"text": "Double it.", "test_list": []})");
    const QuestionFileOptions options{
        .file = dir / "rows.jsonl", .input_key = "text", .output_key = "test_list", .rule = AnswerRule::code};
    const auto bad = read_question_file(options);
    ASSERT_FALSE(bad.ok());
    EXPECT_NE(bad.error().message().find("line 2: 'test_list': has no test"), std::string::npos);
    write_file(dir / "rows.jsonl", R"({"text": "Double it.", "test_list": ["assert f(1) == 2"]})");
    const auto good = read_question_file(options);
    ASSERT_TRUE(good.ok()) << good.error().message();
    EXPECT_EQ(good->rows[0].answer, R"({"statements":["assert f(1) == 2"]})");
    EXPECT_EQ(given_answer(AnswerRule::code, "```python\nx = 1\n```"), "x = 1\n");
}

const std::string doubles = *code_tests(*parse_json(R"(["assert f(1) == 2", "assert f(3) == 6"])"));
const std::string sums = *code_tests(*parse_json(R"({"inputs": ["1 2\n", "40 2"], "outputs": ["3\n", "42"]})"));

struct Program {
    const char* text;
    double statements, cases;  // shares of passed tests in `doubles` and `sums`
};

const Program programs[] = {
    {"def f(x): return 2 * x", 1, 0},
    {"def f(x): return x + 1", 0.5, 0},
    {"```python\nimport math\ndef f(x):\n    return x + int(math.sqrt(x * x))\n```", 1, 0},
    {"print(sum(map(int, input().split())))", 0, 1},
    {"import sys\nprint(sum(int(x) for x in open(0).read().split()), '  ')\nsys.exit()", 0, 1},
    {"print(3)", 0, 0.5},
    {"def f(x):\n    print('noise', end='')\n    return 2 * x", 1, 0},
    {"def f(x:", 0, 0},
    {"\xff\xfe(", 0, 0},
    {"def f(x): return 2 * x\nraise SystemExit(0)", 0, 0},
    {"import os\nos._exit(0)", 0, 0},
    {"def f(x):\n    import os\n    os._exit(0)", 0, 0},
    {"def f(x):\n    if x > 1: raise SystemExit\n    return 2 * x", 0.5, 0},
    {"print('passed-00000000 0\\npassed-00000000 1')", 0, 0},
    {"import os\ndef f(x): return 0\nos.write = print\nimport builtins\nbuiltins.exec = builtins.compile = lambda *a: "
     "None",
     0, 0},
    {"print(3)\nraise ValueError", 0, 0},  // correct output of a program that fails
    {"print('3' * 0, 3)", 0, 0},           // leading white space counts
};

TEST(CodeReward, ProgramsGetWhatTheirTestsSay) {
    const auto all = CodeReward::create({}), some = CodeReward::create({.partial = true});
    if (!all.ok()) GTEST_SKIP() << all.error().message();  // the machine forbids user namespaces
    for (const Program& p : programs) {
        SCOPED_TRACE(p.text);
        EXPECT_EQ(*(*some)(p.text, doubles), p.statements);
        EXPECT_EQ(*(*all)(p.text, doubles), p.statements == 1);
        EXPECT_EQ(*(*some)(p.text, sums), p.cases);
        EXPECT_EQ(*(*all)(p.text, sums), p.cases == 1);
    }
}

// No hostile program gets a reward or causes an error, and each ends at about its time limit.
TEST(CodeReward, HostileProgramsAreWorthNothing) {
    const auto reward = CodeReward::create({.limits = {.seconds = 1, .output_bytes = 1 << 16}});
    if (!reward.ok()) GTEST_SKIP() << reward.error().message();
    const char* const hostile[] = {
        "while True: pass",
        "import time; time.sleep(100)",
        "while True: print('x' * 1000)",
        "import os\nwhile True: os.fork()",
        "import threading\nwhile True: threading.Thread(target=print).start()",
        "x = [0]\nwhile True: x += x",
        "open('/tmp/x', 'wb').write(b'x' * (1 << 26))",
        "open('/usr/bin/python3', 'wb')",
        "open('/etc/passwd').read()",
        "import socket; socket.create_connection(('127.0.0.1', 80))",
        "import os; os.execv('/bin/sh', ['sh', '-c', 'exit 0'])",
        "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill(os.getpid(), 9)",
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef g(): g()\ng()",
        "import os\nos.close(0)\nos.close(1)\nos.close(2)\nwhile True: pass",
    };
    for (const char* text : hostile)
        for (const std::string& tests : {doubles, sums}) {
            SCOPED_TRACE(text);
            const auto start = std::chrono::steady_clock::now();
            const auto worth = (*reward)(text, tests);
            ASSERT_TRUE(worth.ok()) << worth.error().message();
            EXPECT_EQ(*worth, 0);
            EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
        }
}

// A limit that no program can meet is reported before a run, not as rewards of 0.
TEST(CodeReward, LimitsThatNothingKeepsAreAnError) {
    if (const auto any = CodeReward::create({}); !any.ok()) GTEST_SKIP() << any.error().message();
    const auto reward = CodeReward::create({.limits = {.seconds = 5, .memory_bytes = 1 << 20}});
    ASSERT_FALSE(reward.ok());
    EXPECT_EQ(reward.error().message().find('\n'), std::string::npos);
}

// With a format the reward is split as for other rules.
TEST(CodeReward, AFormatHasItsShareOfTheReward) {
    const auto reward = AnswerReward::create({.rule = AnswerRule::code, .format = "```python", .format_share = 0.25});
    if (!reward.ok()) GTEST_SKIP() << reward.error().message();
    EXPECT_EQ(*(*reward)("```python\ndef f(x): return 2 * x\n```", doubles), 1);
    EXPECT_EQ(*(*reward)("def f(x): return 2 * x", doubles), 0.75);
    EXPECT_EQ(*(*reward)("```python\nf = 1\n```", doubles), 0.25);
}

}  // namespace
}  // namespace nibble::test
