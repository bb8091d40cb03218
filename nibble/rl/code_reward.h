// Programs as answers: Python in a sandbox (base/sandbox.h), judged by the tests that a row of data gives.
//
//   the row's answer                           a test
//   text                                       statements that run behind the program: passed if they raise nothing
//   [text, ...]                                each is a test of that kind
//   {"inputs": [...], "outputs": [...]}        a run: its standard output for this standard input, white space at ends
//   (or that object as text, as APPS has it)   of lines and of the whole excepted, and exit status 0
//
// Runs of inputs and outputs are judged from outside the program. Statements run in the program's process: leaving
// early or printing what looks like success passes none, but a program that attacks the interpreter's own functions
// can.
#pragma once

#include "base/json.h"
#include "base/sandbox.h"

#include <string>
#include <string_view>

namespace nibble {

struct CodeRewardOptions {
    SandboxLimits limits{.seconds = 5};  // of a run
    bool partial = false;                // the share of tests that pass; false: 1 if all do, else 0
};

// The program of a text: its last block between ``` lines without a language or in Python, one that is not closed
// included; the whole text where there is none.
std::string code_of(std::string_view text);

// A row's answer, checked, as CodeReward reads it. Error: none of the shapes above, or no test.
Result<std::string> code_tests(const Json& answer);

class CodeReward {
public:
    // Runs a program to see that it can. Error: no sandbox or no /usr/bin/python3, in one line.
    static Result<CodeReward> create(const CodeRewardOptions& options);

    // What the text's program is worth; a program that breaks a limit fails its test. Thread-safe. `tests`: from
    // code_tests(). Error: the sandbox failed.
    Result<double> operator()(std::string_view text, std::string_view tests) const;

private:
    CodeReward(Sandbox sandbox, const CodeRewardOptions& options) : sandbox_(std::move(sandbox)), options_(options) {}
    // Tests that pass; without `partial` it ends at the first run that fails.
    Result<int64_t> passed(const std::string& code, const Json& tests) const;
    Result<int64_t> passed_statements(const std::string& code, const Json& statements) const;

    Sandbox sandbox_;
    CodeRewardOptions options_;
};

}  // namespace nibble
