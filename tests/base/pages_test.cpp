// Pages for new users refer only to existing files, links, commands and flags. A renamed file or flag must be updated
// in them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

const fs::path tree = NIBBLE_SOURCE_DIR;

// Pages about the current program. docs/lab/ describes older versions: only its line lengths and links are checked.
const std::vector<std::string> current_pages{
    "README.md",           "docs/architecture.md", "docs/decisions.md",  "docs/formats.md",          "docs/recipes.md",
    "docs/results-cpu.md", "docs/results-h200.md", "docs/results-rl.md", "docs/results-training.md", "docs/roadmap.md",
    "docs/tutorial.md"};

std::string text_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in) << path;
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

std::vector<std::string> lines_in(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

std::vector<std::string> all_pages() {
    std::vector<std::string> pages = current_pages;
    for (const auto& entry : fs::directory_iterator(tree / "docs/lab"))
        if (entry.path().extension() == ".md") pages.push_back(fs::relative(entry.path(), tree).string());
    return pages;
}

std::vector<std::string> found_by(const std::regex& pattern, const std::string& text) {
    std::vector<std::string> found;
    for (std::sregex_iterator i(text.begin(), text.end(), pattern), end; i != end; ++i) found.push_back((*i)[1]);
    return found;
}

// Spans between backticks, and lines of code blocks.
std::vector<std::string> code_in(const std::string& text) {
    std::vector<std::string> code;
    bool block = false;
    static const std::regex span("`([^`]+)`");
    for (const std::string& line : lines_in(text)) {
        if (line.starts_with("```"))
            block = !block;
        else if (block)
            code.push_back(line);
        else
            for (std::string& one : found_by(span, line)) code.push_back(std::move(one));
    }
    return code;
}

TEST(Pages, LinesAndPagesAreShort) {
    for (const std::string& page : all_pages()) {
        const std::vector<std::string> lines = lines_in(text_of(tree / page));
        EXPECT_GT(lines.size(), 5u) << page;
        for (size_t i = 0; i < lines.size(); ++i) EXPECT_LE(lines[i].size(), 240u) << page << ":" << i + 1;
    }
    EXPECT_LE(lines_in(text_of(tree / "README.md")).size(), 80u);
    EXPECT_LE(lines_in(text_of(tree / "docs/results-cpu.md")).size(), 100u);
    EXPECT_LE(lines_in(text_of(tree / "docs/results-h200.md")).size(), 100u);
}

TEST(Pages, LinksLeadSomewhere) {
    int links = 0;
    static const std::regex link("\\]\\(([^)#:]+)(#[^)]*)?\\)");
    for (const std::string& page : all_pages())
        for (const std::string& to : found_by(link, text_of(tree / page))) {
            ++links;
            EXPECT_TRUE(fs::exists((tree / page).parent_path() / to)) << page << " links to " << to;
        }
    EXPECT_GT(links, 30);
}

// `nibble/quant/plan.h`, and `quant/plan.h`, which is below nibble/.
TEST(Pages, FilesThatAreNamedExist) {
    int files = 0;
    static const std::regex path("^[\\w.-]+(/[\\w.-]+)+/?$");
    const std::set<std::string> top{"nibble", "tests", "tools", "docs", "cmake", "bench", "recipes"};
    for (const std::string& page : current_pages)
        for (const std::string& code : code_in(text_of(tree / page))) {
            const std::string first = code.substr(0, code.find_first_of(" ("));
            if (!std::regex_match(first, path)) continue;
            const std::string folder = first.substr(0, first.find('/'));
            const bool below_nibble =
                !top.contains(folder) && fs::exists(tree / "nibble" / folder) && fs::path(first).has_extension();
            if (!below_nibble && !top.contains(folder)) continue;
            ++files;
            EXPECT_TRUE(fs::exists(tree / first) || fs::exists(tree / "nibble" / first)) << page << " names " << first;
        }
    EXPECT_GT(files, 60);
}

TEST(Pages, CommandsAndFlagsExist) {
    std::string sources;
    for (const auto& entry : fs::recursive_directory_iterator(tree / "nibble/cli"))
        if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h") sources += text_of(entry.path());
    int commands = 0, flags = 0;
    static const std::regex command("nibble ([a-z]+)"), flag("(--[a-z][a-z0-9-]*)");
    for (const std::string& page : current_pages)
        for (const std::string& code : code_in(text_of(tree / page))) {
            if (!code.starts_with("nibble ") && !code.starts_with("$ nibble ")) continue;
            for (const std::string& name : found_by(command, code)) {
                ++commands;
                EXPECT_NE(sources.find("\"" + name + "\""), std::string::npos) << page << ": nibble " << name;
            }
            for (const std::string& name : found_by(flag, code)) {
                ++flags;
                if (name == "--help") continue;  // CLI11's own
                EXPECT_TRUE(sources.find(name + "\"") != std::string::npos ||
                            sources.find(name + ",") != std::string::npos)
                    << page << ": " << name << " in `" << code << "`";
            }
        }
    EXPECT_GT(commands, 20);
    EXPECT_GT(flags, 20);
}

// tests/cli/transcripts/tutorial.txt runs these commands.
TEST(Pages, TheCommandsOfTheTutorialAreRun) {
    const std::string transcript = text_of(tree / "tests/cli/transcripts/tutorial.txt");
    int commands = 0;
    bool block = false;
    for (const std::string& line : lines_in(text_of(tree / "docs/tutorial.md"))) {
        if (line.starts_with("```")) block = !block;
        if (!block || !line.starts_with("nibble ")) continue;
        ++commands;
        EXPECT_NE(transcript.find("  $ " + line + " >log"), std::string::npos) << line;
    }
    EXPECT_GT(commands, 7);
}

}  // namespace
}  // namespace nibble::test
