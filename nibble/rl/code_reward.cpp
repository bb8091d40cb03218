#include "rl/code_reward.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace nibble {
namespace {

// The harness reads the program and its statements from the beginning of standard input; the rest is the program's own
// input. For each statement that passes it writes a line with a random word that was chosen for this run.
constexpr std::string_view harness = R"(
import json, os

def read(size):
    data = b''
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part: os._exit(3)
        data += part
    return data

def run(compile, exec, write, leave):
    job = json.loads(read(int(read(16))))
    names = {'__name__': '__main__', '__builtins__': __builtins__}
    program = compile(job['code'], 'answer.py', 'exec')
    if job['statements'] is None: return exec(program, names)
    try: exec(program, names)
    except BaseException: leave(1)
    for i, text in enumerate(job['statements']):
        try: exec(compile(text, 'test.py', 'exec'), names)
        except BaseException: continue
        write(1, f"\n{job['word']} {i}\n".encode())
    leave(0)

run(compile, exec, os.write, os._exit)
)";

constexpr std::string_view fence = "```";

bool is_python(std::string_view language) {
    while (!language.empty() && (language.back() == ' ' || language.back() == '\r')) language.remove_suffix(1);
    return language.empty() || language == "python" || language == "py" || language == "python3";
}

// Removes white space at the ends of lines and after the last line.
std::string plain_output(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        const size_t last = line.find_last_not_of(" \t\r");
        out += line.substr(0, last == line.npos ? 0 : last + 1);
        out += '\n';
    }
    out.resize(out.find_last_not_of('\n') + 1);
    return out;
}

std::string random_word() {
    std::random_device device;
    return fmt::format("passed-{:08x}{:08x}{:08x}", device(), device(), device());
}

std::string standard_input(const std::string& code, const Json& statements, std::string_view word,
                           std::string_view input) {
    const Json job{{"code", code}, {"statements", statements}, {"word", word}};
    // Answers may end inside a UTF-8 sequence.
    const std::string text = job.dump(-1, ' ', true, Json::error_handler_t::replace);
    return fmt::format("{:016}{}{}", text.size(), text, input);
}

std::vector<std::string> python() { return {"/usr/bin/python3", "-s", "-c", std::string(harness)}; }

// Accepts text or a list of lines.
Result<std::string> text_of_case(const Json& value, std::string_view where) {
    if (value.is_string()) return value.get<std::string>();
    std::string text;
    if (!value.is_array()) return fail("{}: must be text or a list of lines", where);
    for (const Json& line : value) {
        if (!line.is_string()) return fail("{}: must be text or a list of lines", where);
        text += line.get<std::string>() + "\n";
    }
    return text;
}

Result<std::string> tests_of_cases(const Json& answer) {
    for (const auto& [key, value] : answer.items())
        if (key != "inputs" && key != "outputs")
            return fail("'{}': unknown key; tests have 'inputs' and 'outputs'", key);
    Json cases = Json::array();
    const auto inputs = answer.find("inputs"), outputs = answer.find("outputs");
    if (inputs == answer.end() || outputs == answer.end() || !inputs->is_array() || !outputs->is_array())
        return fail("'inputs' and 'outputs' must be lists");
    if (inputs->size() != outputs->size()) return fail("{} 'inputs' for {} 'outputs'", inputs->size(), outputs->size());
    for (size_t i = 0; i < inputs->size(); ++i) {
        NIBBLE_TRY(std::string input, text_of_case((*inputs)[i], fmt::format("inputs[{}]", i)));
        NIBBLE_TRY(std::string output, text_of_case((*outputs)[i], fmt::format("outputs[{}]", i)));
        cases.push_back({std::move(input), std::move(output)});
    }
    if (cases.empty()) return fail("has no test");
    return Json{{"cases", std::move(cases)}}.dump();
}

}  // namespace

std::string code_of(std::string_view text) {
    std::optional<std::string_view> found, open;  // `open` begins after the line of the opening fence
    bool inside = false, wanted = false;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string_view line = text.substr(at, end - at),
                               bare = line.substr(std::min(line.size(), line.find_first_not_of(' ')));
        if (bare.starts_with(fence)) {
            if (inside && wanted)
                found = text.substr(static_cast<size_t>(open->data() - text.data()),
                                    at - static_cast<size_t>(open->data() - text.data()));
            inside = !inside;
            wanted = inside && is_python(bare.substr(fence.size()));
            open = text.substr(std::min(end + 1, text.size()));
        }
        at = end + 1;
    }
    if (inside && wanted) found = open;
    return std::string(found.value_or(text));
}

Result<std::string> code_tests(const Json& answer) {
    if (answer.is_object()) return tests_of_cases(answer);
    if (answer.is_string()) {
        const std::string& text = answer.get_ref<const std::string&>();
        if (text.find_first_not_of(" \t\r\n") == text.npos) return fail("is empty");
        if (const auto parsed = parse_json(text); parsed.ok() && parsed->is_object()) return tests_of_cases(*parsed);
        return Json{{"statements", {text}}}.dump();
    }
    if (!answer.is_array()) return fail("must be tests: text, a list of texts, or 'inputs' and 'outputs'");
    if (answer.empty()) return fail("has no test");
    for (const Json& test : answer)
        if (!test.is_string()) return fail("must be a list of texts");
    return Json{{"statements", answer}}.dump();
}

Result<CodeReward> CodeReward::create(const CodeRewardOptions& options) {
    NIBBLE_TRY(Sandbox sandbox, Sandbox::open());
    CodeReward made(std::move(sandbox), options);
    NIBBLE_TRY(const double works, made("x = 1", R"({"statements":["assert x == 1"]})"));
    if (works != 1) return fail("/usr/bin/python3 cannot run a program in the sandbox under these limits");
    return made;
}

Result<int64_t> CodeReward::passed_statements(const std::string& code, const Json& statements) const {
    const std::string word = random_word();
    NIBBLE_TRY(const SandboxRun run,
               sandbox_.run(python(), standard_input(code, statements, word, {}), options_.limits));
    std::set<std::string_view> passed;
    for (std::string_view rest = run.output; !rest.empty();) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        if (line.starts_with(word)) passed.insert(line);
    }
    return std::ssize(passed);
}

Result<int64_t> CodeReward::passed(const std::string& code, const Json& tests) const {
    if (const auto statements = tests.find("statements"); statements != tests.end())
        return passed_statements(code, *statements);
    int64_t passed = 0;
    for (const Json& pair : tests.at("cases")) {
        const std::string input = standard_input(code, nullptr, {}, pair[0].get_ref<const std::string&>());
        NIBBLE_TRY(const SandboxRun run, sandbox_.run(python(), input, options_.limits));
        if (run.ended_well() && plain_output(run.output) == plain_output(pair[1].get_ref<const std::string&>()))
            ++passed;
        else if (!options_.partial)
            break;
    }
    return passed;
}

Result<double> CodeReward::operator()(std::string_view text, std::string_view tests) const {
    NIBBLE_TRY(const Json json, parse_json(tests));
    const int64_t all = std::ssize(json.contains("cases") ? json["cases"] : json["statements"]);
    NIBBLE_TRY(const int64_t good, passed(code_of(text), json));
    return options_.partial ? static_cast<double>(good) / static_cast<double>(all) : good == all;
}

}  // namespace nibble
