// Judges programs as answers: runs Python in a sandbox (base/sandbox.h) against the tests of a data row.
//
//   answer of the row                          test
//   text                                       statements that run after the program; passed if they raise no exception
//   [text, ...]                                one such test per element
//   {"inputs": [...], "outputs": [...]}        one run per pair: the program must print the output for the input and
//   (or that object as text, as in APPS)       exit with status 0; white space at line ends and at the end is ignored
//
// Runs with inputs and outputs are judged from outside the program. Statements run in the program's process. A program
// cannot pass them by leaving early or by printing a success message, but it can if it modifies the interpreter's own
// functions.
#pragma once

#include "base/json.h"
#include "base/sandbox.h"

#include <string>
#include <string_view>

namespace nibble {

struct CodeRewardOptions {
    SandboxLimits limits{.seconds = 5};  // limits of one run
    bool partial = false;  // true: the reward is the share of passed tests; false: 1 if all tests pass, else 0
};

// Returns the program in a text: the last block between ``` lines whose language is absent or Python, even if the block
// is not closed; the whole text if there is no such block.
std::string code_of(std::string_view text);

// Checks a row's answer and converts it for CodeReward. Error: none of the forms above, or no test.
Result<std::string> code_tests(const Json& answer);

class CodeReward {
public:
    // Runs a trivial program to check that the sandbox works. Error: no sandbox or no /usr/bin/python3 (one line).
    static Result<CodeReward> create(const CodeRewardOptions& options);

    // Returns the reward of the program in `text`. A program that exceeds a limit fails its test. `tests` comes from
    // code_tests(). Thread-safe. Error: the sandbox failed.
    Result<double> operator()(std::string_view text, std::string_view tests) const;

private:
    CodeReward(Sandbox sandbox, const CodeRewardOptions& options) : sandbox_(std::move(sandbox)), options_(options) {}
    // Counts the tests that pass. Without `partial` it stops at the first run that fails.
    Result<int64_t> passed(const std::string& code, const Json& tests) const;
    Result<int64_t> passed_statements(const std::string& code, const Json& statements) const;

    Sandbox sandbox_;
    CodeRewardOptions options_;
};

}  // namespace nibble
