// Runs tests/cli/transcripts/*.txt, which contain commands that a user types and nibble's output.
//
// Lines that begin with two spaces are part of the session; all others are prose:
//       $ nibble inspect nowhere          a command for the shell; `  > ` continues it on the next line
//       nibble: nowhere: no such *        its output (stdout and stderr together); `*` matches any characters
//       [1]                               its exit status, unless it is 0
// Spaces at the end of a line and blank lines at the end of an output are ignored.
// One shell runs a whole transcript, so variables, functions and the current folder (a new $TMP) are kept. $DATA is
// tests/data. The shell first reads lib.sh, which is in the folder of the transcripts. In the expected output, $TMP and
// $DATA stand for the two folders. A line `needs: mount` runs the shell with the right to mount file systems, `needs:
// user` without root's rights. The test is skipped on machines that do not permit this.
//
// NIBBLE_UPDATE_TRANSCRIPTS=1 writes the actual output into the transcripts (lines with `*` that still match are kept);
// read the diff.
#include "support/files.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

const fs::path folder = fs::path(NIBBLE_SOURCE_DIR) / "tests/cli/transcripts";
constexpr std::string_view marker = "==end of command==";

struct Step {
    std::vector<std::string> prose;    // text before it
    std::vector<std::string> command;  // without the prompts
    std::vector<std::string> output;   // without the two spaces; the exit status as its last line "[N]"
};

struct Transcript {
    std::vector<Step> steps;
    std::vector<std::string> end;  // text after the last step
    std::string needs;
};

std::vector<std::string> lines_of(std::string_view text) {
    std::vector<std::string> lines;
    while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        lines.emplace_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
}

Transcript parse(std::string_view text) {
    Transcript t;
    std::vector<std::string> prose;
    const auto only_blank = [&] { return std::ranges::all_of(prose, [](const auto& line) { return line.empty(); }); };
    for (std::string& line : lines_of(text)) {
        if (line.starts_with("  $ ")) {
            t.steps.push_back({std::move(prose), {line.substr(4)}, {}});
            prose.clear();
        } else if (line.starts_with("  ") && !t.steps.empty() && only_blank()) {
            Step& step = t.steps.back();
            if (line.starts_with("  > ") && step.output.empty()) {
                step.command.push_back(line.substr(4));
                continue;
            }
            std::ranges::move(prose, std::back_inserter(step.output));  // blank lines inside the output
            prose.clear();
            step.output.push_back(line.substr(2));
        } else {
            if (line.starts_with("needs: ")) t.needs = line.substr(7);
            prose.push_back(std::move(line));
        }
    }
    t.end = std::move(prose);
    return t;
}

std::string to_text(const Transcript& t) {
    std::string text;
    const auto add = [&](const std::vector<std::string>& lines, std::string_view first, std::string_view rest) {
        for (size_t i = 0; i < lines.size(); ++i)
            text += lines[i].empty() ? "\n" : std::string(i == 0 ? first : rest) + lines[i] + '\n';
    };
    for (const Step& step : t.steps) {
        add(step.prose, "", "");
        add(step.command, "  $ ", "  > ");
        add(step.output, "  ", "  ");
    }
    add(t.end, "", "");
    return text;
}

// `*` in the pattern matches any characters, including none.
bool matches(std::string_view pattern, std::string_view text) {
    const size_t star = pattern.find('*');
    if (star == pattern.npos) return pattern == text;
    if (!text.starts_with(pattern.substr(0, star))) return false;
    for (size_t at = star; at <= text.size(); ++at)
        if (matches(pattern.substr(star + 1), text.substr(at))) return true;
    return false;
}

bool matches(const std::vector<std::string>& patterns, const std::vector<std::string>& lines) {
    if (patterns.size() != lines.size()) return false;
    for (size_t i = 0; i < lines.size(); ++i)
        if (!matches(patterns[i], lines[i])) return false;
    return true;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
}

// Returns a command that runs a shell with the rights that a transcript needs; the first argument is the script.
std::string shell_for(std::string_view needs) {
    if (needs.empty()) return "sh";
    if (needs == "mount") return "unshare --mount --map-root-user sh";
    if (needs == "user")
        return ::geteuid() != 0 ? "sh" : "setpriv --bounding-set=-all --inh-caps=-all --no-new-privs sh";
    ADD_FAILURE() << "needs: " << needs << ": only `mount` and `user` are known";
    return "false";
}

int run(const std::string& command) {
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// Returns the output of each step; fewer entries than steps if the shell ended early.
std::vector<std::vector<std::string>> run(const Transcript& t, const std::string& shell, const fs::path& dir) {
    std::string script = ". \"$LIB\"\n";
    for (const Step& step : t.steps) {
        for (const std::string& line : step.command) script += line + '\n';
        script += "echo \"" + std::string(marker) + " $?\"\n";
    }
    write_file(dir / "script", script);
    const fs::path tmp = fs::canonical(dir) / "tmp", data = test_data("");
    fs::create_directory(tmp);
    // LC_ALL: system messages in English. Variables of the caller must not affect nibble.
    const std::string environment = "TMP='" + tmp.string() + "' DATA='" + (data.parent_path()).string() + "' LIB='" +
                                    (folder / "lib.sh").string() + "' PATH='" +
                                    fs::path(NIBBLE_PROGRAM).parent_path().string() + "':\"$PATH\" LC_ALL=C";
    run("cd '" + tmp.string() + "' && " + environment + " " + shell + " ../script >../output 2>&1 </dev/null");

    std::string output = read_file(dir / "output");
    replace_all(output, tmp.string(), "$TMP");
    replace_all(output, data.parent_path().string(), "$DATA");
    std::vector<std::vector<std::string>> steps(1);
    for (std::string& line : lines_of(output)) {
        const size_t end = line.find(marker);
        if (end == line.npos) {
            line.erase(line.find_last_not_of(' ') + 1);
            steps.back().push_back(std::move(line));
            continue;
        }
        if (end > 0) steps.back().push_back(line.substr(0, end) + " (no newline)");
        while (!steps.back().empty() && steps.back().back().empty()) steps.back().pop_back();
        const std::string status = line.substr(end + marker.size() + 1);
        if (status != "0") steps.back().push_back("[" + status + "]");
        steps.emplace_back();
    }
    if (steps.back().empty()) steps.pop_back();
    return steps;
}

std::string joined(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += "  " + line + '\n';
    return text;
}

std::vector<std::string> names() {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(folder))
        if (file.path().extension() == ".txt") names.push_back(file.path().stem().string());
    std::sort(names.begin(), names.end());
    return names;
}

class Transcripts : public testing::TestWithParam<std::string> {};

TEST_P(Transcripts, MatchTheOutputOfTheProgram) {
    const fs::path file = folder / (GetParam() + ".txt");
    Transcript t = parse(read_file(file));
    ASSERT_FALSE(t.steps.empty());
    const std::string shell = shell_for(t.needs);
    if (!t.needs.empty() && run(shell + " -c true >/dev/null 2>&1") != 0)
        GTEST_SKIP() << "this machine does not permit: " << t.needs;
    TempDir dir;
    const auto outputs = run(t, shell, dir.path());
    EXPECT_EQ(outputs.size(), t.steps.size()) << "the shell ended early";
    const bool update = std::getenv("NIBBLE_UPDATE_TRANSCRIPTS") != nullptr;
    for (size_t i = 0; i < std::min(outputs.size(), t.steps.size()); ++i) {
        Step& step = t.steps[i];
        if (matches(step.output, outputs[i])) continue;
        if (!update)
            ADD_FAILURE() << file.filename().string() << ": $ " << step.command.front() << "\nexpected:\n"
                          << joined(step.output) << "happened:\n"
                          << joined(outputs[i]);
        for (size_t k = 0; k < outputs[i].size(); ++k)
            if (k >= step.output.size() || !matches(step.output[k], outputs[i][k])) {
                step.output.resize(std::max(step.output.size(), k + 1));
                step.output[k] = outputs[i][k];
            }
        step.output.resize(outputs[i].size());
    }
    if (update) write_file(file, to_text(t));
}

INSTANTIATE_TEST_SUITE_P(Cli, Transcripts, testing::ValuesIn(names()), [](const auto& test) { return test.param; });

TEST(TranscriptRunner, ComparesLinesWithPatterns) {
    EXPECT_TRUE(matches("a*c", "abbc"));
    EXPECT_TRUE(matches("a*c*", "ac"));
    EXPECT_TRUE(matches("*", ""));
    EXPECT_FALSE(matches("a*c", "abcd"));
    EXPECT_FALSE(matches("abc", "abcd"));
    EXPECT_FALSE(matches(std::vector<std::string>{"a"}, {"a", "[1]"}));
    EXPECT_FALSE(matches(std::vector<std::string>{"a", "[1]"}, {"a"}));
}

TEST(TranscriptRunner, DetectsWrongOutputStatusAndAnEarlyEnd) {
    const std::string text =
        "prose\n\n  $ echo one; false\n  one\n  [1]\n\n  $ printf '%s' \\\n  > two\n  two (no newline)\n\n  $ exit "
        "3\nend\n";
    const Transcript t = parse(text);
    ASSERT_EQ(t.steps.size(), 3u);
    EXPECT_EQ(to_text(t), text);
    TempDir dir;
    const auto outputs = run(t, "sh", dir.path());
    ASSERT_EQ(outputs.size(), 2u) << "the third step ends the shell";
    EXPECT_EQ(outputs[0], t.steps[0].output);
    EXPECT_EQ(outputs[1], t.steps[1].output);
}

}  // namespace
}  // namespace nibble::test
