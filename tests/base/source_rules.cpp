#include "base/source_rules.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

const std::map<std::string, int> levels{
    {"base", 0},   {"formats", 1},      {"io", 1},      {"http", 1},     {"page", 1},    {"text", 1},
    {"tensor", 2}, {"architecture", 2}, {"grammar", 2}, {"parallel", 2}, {"kernels", 3}, {"checkpoint", 3},
    {"data", 4},   {"gpu_bench", 4},    {"model", 4},   {"chat", 4},     {"quant", 5},   {"engine", 5},
    {"train", 5},  {"eval", 6},         {"run", 6},     {"server", 6},   {"rl", 7},      {"nibble", 7},
    {"jobs", 8},   {"measure", 9},      {"cli", 10}};

std::vector<std::string> parts_of(const fs::path& path) {
    std::vector<std::string> parts;
    for (const fs::path& part : path) parts.push_back(part.string());
    return parts;
}

std::string read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

std::vector<fs::path> sources_below(const fs::path& root, const std::set<std::string>& extensions) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(root))
        if (entry.is_regular_file() && extensions.contains(entry.path().extension().string()))
            found.push_back(fs::relative(entry.path(), root));
    std::ranges::sort(found);
    return found;
}

bool within_cuda(const std::vector<std::string>& parts) {
    return std::find(parts.begin(), parts.end() - 1, "cuda") != parts.end() - 1;
}

// GPU code, which a build without CUDA does not compile: cmake/device.cmake.
bool is_device_code(const std::vector<std::string>& parts) {
    const auto folders_end = parts.end() - 1;
    return parts[0] == "gpu_bench" || within_cuda(parts) ||
           std::find(parts.begin(), folders_end, "device") != folders_end;
}

// Returns why a file that is not GPU code may not include a header; "": it may.
std::string device_violation(const std::vector<std::string>& from, const std::vector<std::string>& to) {
    if (is_device_code(from)) return "";
    if (std::find(to.begin(), to.end() - 1, "device") != to.end() - 1)
        return "a header of a device/ folder outside of GPU code";
    const bool shares_folder =
        from[0] == "kernels" && from.size() == 2;  // the headers of kernels/, and files that share their folder
    const bool kernels = to[0] == "kernels" && to.back().ends_with("_cuda.h");
    return kernels && !shares_folder ? "a header of GPU kernels outside of GPU code" : "";
}

// Returns why a file of kernels/ may not include a header of kernels/; "": it may.
std::string kernels_violation(const std::vector<std::string>& from, const std::vector<std::string>& to) {
    const std::string inner = to.size() > 2 ? to[1] : "", outer = from.size() > 2 ? from[1] : "";
    if (inner.empty() || inner == outer) {
        if (inner != "cuda" || from.size() < 4 || to.size() < 4 || from[2] == to[2] || to[2] == "primitives") return "";
        if (to.back().ends_with("_launch.h")) return "";
        return "kernels/cuda/" + from[2] + " includes kernels/cuda/" + to[2];
    }
    if (outer == "cpu" && inner == "ref") return "";
    // Tables of implementations, which are sources, not headers.
    if (outer.empty() && (inner == "cpu" || inner == "ref") && from.back().ends_with(".cpp")) return "";
    return "kernels" + (outer.empty() ? "" : "/" + outer) + " includes kernels/" + inner;
}

std::string level_text(const std::string& folder) {
    return folder + " (level " + std::to_string(levels.at(folder)) + ")";
}

// Returns why a file may not include a project header; "": it may.
std::string include_violation(const std::vector<std::string>& from, const std::vector<std::string>& to) {
    if (!levels.contains(to[0])) return "unknown folder '" + to[0] + "'";
    if (from[0] != to[0] && levels.at(to[0]) >= levels.at(from[0]))
        return level_text(from[0]) + " includes " + level_text(to[0]);
    if (std::string why = device_violation(from, to); !why.empty()) return why;
    if (from[0] == "kernels" && to[0] == "kernels") return kernels_violation(from, to);
    if (within_cuda(to) && !within_cuda(from)) return "a header of a cuda/ folder outside of one";
    if (to[0] != "kernels") return "";
    return to.size() > 2 ? from[0] + " includes kernels/" + to[1] + "; callers include headers of kernels/ itself" : "";
}

}  // namespace

RuleReport check_includes(const fs::path& root) {
    RuleReport report;
    const std::regex include("^\\s*#\\s*include\\s*([<\"])([^>\"]+)[>\"]");
    const std::regex cuda_header("^(cuda|cublas|cudnn|nccl|cusolver|curand)[^/]*$");
    for (const fs::path& file : sources_below(root, {".h", ".cpp", ".cu", ".cuh", ".inc"})) {
        const std::vector<std::string> from = parts_of(file);
        if (from.size() == 1) continue;  // main.cpp
        ++report.files;
        std::istringstream lines(read(root / file));
        std::string line;
        for (int number = 1; std::getline(lines, line); ++number) {
            std::smatch match;
            if (!std::regex_search(line, match, include)) continue;
            const bool quoted = match[1] == "\"";
            const std::string header = match[2];
            const std::vector<std::string> to = parts_of(fs::path(header));
            const auto add = [&](const std::string& what) {
                report.violations.push_back(file.string() + ":" + std::to_string(number) + ": " + what);
            };
            if (!levels.contains(from[0])) {
                add("folder '" + from[0] + "' has no level");
                break;
            }
            if (std::regex_match(header, cuda_header)) {
                if (!within_cuda(from)) add("CUDA header outside a cuda/ folder");
                continue;
            }
            if (!quoted && (to.size() == 1 || !levels.contains(to[0]))) continue;  // a system header
            ++report.seen;
            if (to.size() == 1) {
                add("include by folder, e.g. \"base/error.h\"");
                continue;
            }
            if (!quoted) add("project header in angle brackets");
            if (const std::string why = include_violation(from, to); !why.empty()) add(why);
        }
    }
    std::ranges::sort(report.violations);
    return report;
}

std::string bare_code(std::string_view text) {
    std::string out;
    const auto keep_lines = [&](size_t from, size_t to) {
        for (size_t i = from; i < std::min(to, text.size()); ++i)
            if (text[i] == '\n') out += '\n';
    };
    const auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    size_t i = 0;
    bool line_start = true;
    while (i < text.size()) {
        const char c = text[i];
        if (line_start && c == '#') {  // with continued lines
            while (i < text.size() && text[i] != '\n') {
                if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == '\n') out += '\n', ++i;
                ++i;
            }
        } else if (text.substr(i, 2) == "//") {
            while (i < text.size() && text[i] != '\n') ++i;
        } else if (text.substr(i, 2) == "/*") {
            const size_t end = std::min(text.find("*/", i + 2), text.size() - 2) + 2;
            keep_lines(i, end);
            i = end;
        } else if (c == 'R' && text.substr(i, 2) == "R\"" && (i == 0 || !word(text[i - 1]))) {
            const size_t open = text.find('(', i);
            const std::string close = ")" + std::string(text.substr(i + 2, open - i - 2)) + "\"";
            const size_t end = std::min(text.find(close, open), text.size() - close.size()) + close.size();
            out += "\"\"";
            keep_lines(i, end);
            i = end;
        } else if (c == '"' || c == '\'') {
            // A quote between digits separates them.
            size_t token = out.size();
            while (token > 0 && (word(out[token - 1]) || out[token - 1] == '\'')) --token;
            if (c == '\'' && token < out.size() && std::isdigit(static_cast<unsigned char>(out[token]))) {
                out += c;
                ++i;
            } else {
                for (++i; i < text.size() && text[i] != c; ++i)
                    if (text[i] == '\\') ++i;
                ++i;
                out += c == '"' ? "\"\"" : "0";
            }
        } else {
            out += c;
            ++i;
        }
        if (!out.empty() && i > 0 && i <= text.size()) {
            if (text[i - 1] == '\n')
                line_start = true;
            else if (!std::isspace(static_cast<unsigned char>(text[i - 1])))
                line_start = false;
        }
    }
    return out;
}

namespace {

// The name that a declaration at namespace level declares. `kind`: variable, type, alias or function. `detail`: may
// differ without a clash; the parameter types of a function or the target of an alias.
struct Declared {
    std::string kind, name, detail;
};

std::string squeezed(std::string_view text) {
    std::string out;
    for (const char c : text)
        if (!std::isspace(static_cast<unsigned char>(c))) out += c;
    return out;
}

std::string trimmed(std::string_view text) {
    const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
    while (!text.empty() && space(text.front())) text.remove_prefix(1);
    while (!text.empty() && space(text.back())) text.remove_suffix(1);
    return std::string(text);
}

// Returns the end of the brackets that open at `at`, or the end of the text. For angle brackets, those of -> do not
// count.
size_t closing(std::string_view text, size_t at, char open, char close) {
    int depth = 0;
    for (size_t i = at; i < text.size(); ++i) {
        if (text[i] == open) ++depth;
        if (text[i] == close && !(close == '>' && i > 0 && text[i - 1] == '-') && --depth == 0) return i;
    }
    return text.size();
}

// Returns the parameter types without names and default values.
std::string parameter_types(std::string_view parameters) {
    std::string types, current;
    int depth = 0;
    static const std::regex named("^(.*[\\s&*>])(\\w+)$");
    const auto finish = [&] {
        std::string one = trimmed(current.substr(0, current.find('=')));
        std::ranges::replace(one, '\n', ' ');
        std::smatch match;
        if (std::regex_match(one, match, named) && trimmed(match[1].str()) != "const") one = match[1];
        // const is not part of a value's type.
        if (one.starts_with("const ") && one.find_first_of("*&") == std::string::npos) one.erase(0, 6);
        types += squeezed(one) + ",";
        current.clear();
    };
    for (const char c : parameters) {
        if (c == '<' || c == '(' || c == '[' || c == '{') ++depth;
        if (c == '>' || c == ')' || c == ']' || c == '}') --depth;
        if (c == ',' && depth == 0)
            finish();
        else
            current += c;
    }
    if (!trimmed(current).empty()) finish();
    return types;
}

std::optional<Declared> declared_by(std::string head) {
    static const std::regex attribute("\\[\\[[^\\]]*\\]\\]"),
        type("^(struct|class|union|enum(\\s+(class|struct))?)\\s+(\\w+)\\s*(.*)$"),
        alias("^(using|namespace)\\s+(\\w+)\\s*=([\\s\\S]*)$"), last_name("([\\w:~]+)\\s*(\\[[^\\]]*\\]\\s*)*$");
    head = trimmed(std::regex_replace(head, attribute, ""));
    while (head.starts_with("template")) {
        const size_t open = head.find('<');
        if (open == std::string::npos) return {};
        head = trimmed(head.substr(std::min(closing(head, open, '<', '>') + 1, head.size())));
    }
    if (head.empty() || head.find("operator") != std::string::npos || head.starts_with("static_assert") ||
        head.starts_with("extern"))
        return {};
    std::smatch match;
    std::string flat = head;
    std::ranges::replace(flat, '\n', ' ');
    if (std::regex_match(flat, match, type)) {
        const std::string rest = match[5];
        // A forward declaration or an explicit specialization clashes with nothing.
        if (rest.starts_with("::")) return {};  // a class within a class, defined outside of it
        if (rest.empty() || rest[0] == ':' || rest.starts_with("final")) return Declared{"type", match[4], ""};
        if (rest[0] == '<') return {};
    }
    if (std::regex_match(flat, match, alias)) return Declared{"alias", match[2], squeezed(match[3].str())};
    if (head.starts_with("using ")) return {};
    int depth = 0;  // depth of angle brackets
    const auto name_before = [&](size_t end) -> std::string {
        const std::string before = head.substr(0, end);
        return std::regex_search(before, match, last_name) ? match[1].str() : "";
    };
    for (size_t i = 0; i < head.size(); ++i) {
        if (head[i] == '<') ++depth;
        if (head[i] == '>' && i > 0 && head[i - 1] != '-') --depth;
        if (depth > 0) continue;
        if (head[i] == '(') {
            const std::string name = name_before(i);
            const size_t end = closing(head, i, '(', ')');
            if (name == "alignas" || name == "decltype" || name == "__launch_bounds__") {
                i = end;
                continue;
            }
            if (name.empty() || name.find("::") != std::string::npos) return {};  // defined elsewhere
            return Declared{"function", name, parameter_types(std::string_view(head).substr(i + 1, end - i - 1))};
        }
        if (head[i] == '=') break;
    }
    const std::string name = name_before(head.find('='));
    if (name.empty() || name.find("::") != std::string::npos) return {};
    return Declared{"variable", name, ""};
}

// Returns true if a declaration has reached its = sign (not one of a default argument).
bool assigns(std::string_view head) {
    if (head.find("operator") != std::string_view::npos) return false;
    int depth = 0;
    for (const char c : head) {
        if (c == '<' || c == '(' || c == '[') ++depth;
        if (c == '>' || c == ')' || c == ']') --depth;
        if (c == '=' && depth == 0) return true;
    }
    return false;
}

struct Piece {
    std::string head;
    size_t at = 0;        // position of the declaration
    size_t body = 0;      // position of the text in its braces
    size_t body_end = 0;  // 0: no braces
};

// Returns the declarations in a namespace's text from `begin` to `end`, each up to its semicolon or including its
// braces.
std::vector<Piece> declarations(std::string_view text, size_t begin, size_t end) {
    std::vector<Piece> pieces;
    size_t start = begin;
    int brackets = 0;
    const auto finish = [&](size_t head_end, size_t body, size_t body_end) {
        size_t first = start;
        while (first < head_end && std::isspace(static_cast<unsigned char>(text[first]))) ++first;
        pieces.push_back({trimmed(text.substr(start, head_end - start)), first, body, body_end});
    };
    for (size_t i = begin; i < end; ++i) {
        const char c = text[i];
        if (c == '(' || c == '[') ++brackets;
        if (c == ')' || c == ']') --brackets;
        if (brackets > 0) {
            if (c == '{') i = closing(text, i, '{', '}');
            continue;
        }
        if (c == '{') {
            const size_t close = std::min(closing(text, i, '{', '}'), end);
            size_t next = close + 1;
            while (next < end && std::isspace(static_cast<unsigned char>(text[next]))) ++next;
            const std::string head = trimmed(text.substr(start, i - start));
            // A value ends with its semicolon, also if it continues after the braces of its type.
            if (assigns(head) || (next < end && (text[next] == ',' || text[next] == '.'))) {
                i = close;
                continue;
            }
            finish(i, i + 1, close);
            i = close;
            if (next < end && text[next] == ';') i = next;
            start = i + 1;
        } else if (c == ';') {
            finish(i, 0, 0);
            start = i + 1;
        }
    }
    return pieces;
}

struct Place {
    std::string file;
    int line = 0;
};

void collect(std::string_view text, size_t begin, size_t end, bool anonymous, const std::string& file,
             std::vector<std::pair<Declared, Place>>& found) {
    for (const Piece& piece : declarations(text, begin, end)) {
        if (piece.head.starts_with("namespace") && piece.body_end) {
            const bool hidden = trimmed(piece.head) == "namespace";
            collect(text, piece.body, piece.body_end, anonymous || hidden, file, found);
            continue;
        }
        const bool is_static = piece.head.starts_with("static ") && !piece.head.starts_with("static_assert");
        if (!anonymous && !is_static) continue;
        if (auto name = declared_by(piece.head)) {
            const bool forward = name->kind == "type" && !piece.body_end;
            const auto line = static_cast<int>(std::count(text.begin(), text.begin() + ptrdiff_t(piece.at), '\n')) + 1;
            if (!forward) found.emplace_back(std::move(*name), Place{file, line});
        }
    }
}

// Collects types defined in the namespace `scope` from `begin` to `end` and in the named namespaces inside it.
void collect_types(std::string_view text, size_t begin, size_t end, const std::string& scope, const std::string& file,
                   std::vector<std::pair<std::string, Place>>& found) {
    for (const Piece& piece : declarations(text, begin, end)) {
        if (!piece.body_end) continue;
        if (piece.head.starts_with("namespace")) {
            const std::string name = trimmed(std::string_view(piece.head).substr(std::string_view("namespace").size()));
            if (!name.empty()) collect_types(text, piece.body, piece.body_end, scope + name + "::", file, found);
            continue;
        }
        const auto declared = declared_by(piece.head);
        if (!declared || declared->kind != "type") continue;
        const auto line = static_cast<int>(std::count(text.begin(), text.begin() + ptrdiff_t(piece.at), '\n')) + 1;
        found.emplace_back(scope + declared->name, Place{file, line});
    }
}

}  // namespace

RuleReport check_type_names(const fs::path& root) {
    RuleReport report;
    std::map<std::string, std::vector<Place>> by_name;
    for (const fs::path& file : sources_below(root, {".h", ".cpp", ".cu", ".cuh"})) {
        ++report.files;
        const std::string code = bare_code(read(root / file));
        std::vector<std::pair<std::string, Place>> found;
        collect_types(code, 0, code.size(), "", file.string(), found);
        for (auto& [name, place] : found) {
            ++report.seen;
            by_name[name].push_back(std::move(place));
        }
    }
    for (const auto& [name, places] : by_name)
        for (size_t i = 1; i < places.size(); ++i)
            if (places[i].file != places[0].file)
                report.violations.push_back(places[i].file + ":" + std::to_string(places[i].line) + ": '" + name +
                                            "' is also defined in " + places[0].file);
    std::ranges::sort(report.violations);
    return report;
}

RuleReport check_kernel_names(const fs::path& root) {
    RuleReport report;
    const std::regex kernel("__global__[^;{]*?\\b(\\w+_kernel)\\s*\\(");
    std::map<std::string, std::string> file_of;
    for (const fs::path& file : sources_below(root, {".cu", ".cuh"})) {
        ++report.files;
        const std::string code = bare_code(read(root / file));
        for (auto it = std::sregex_iterator(code.begin(), code.end(), kernel); it != std::sregex_iterator(); ++it) {
            ++report.seen;
            const auto [at, fresh] = file_of.emplace((*it)[1].str(), file.string());
            if (!fresh && at->second != file.string())
                report.violations.push_back(file.string() + ": '" + at->first + "' is also in " + at->second);
        }
    }
    std::ranges::sort(report.violations);
    return report;
}

RuleReport check_anonymous_names(const fs::path& root) {
    RuleReport report;
    std::map<std::pair<std::string, std::string>, std::vector<std::pair<Declared, Place>>> by_name;  // folder, name
    for (const fs::path& file : sources_below(root, {".cpp"})) {
        const std::vector<std::string> parts = parts_of(file);
        const std::set<std::string> apart{"formats", "tensor", "kernels"};
        if (parts.size() == 1 || apart.contains(parts[0])) continue;
        ++report.files;
        const std::string code = bare_code(read(root / file));
        std::vector<std::pair<Declared, Place>> found;
        collect(code, 0, code.size(), false, file.string(), found);
        for (auto& one : found) {
            ++report.seen;
            by_name[{parts[0], one.first.name}].push_back(std::move(one));
        }
    }
    for (const auto& [key, places] : by_name)
        for (size_t i = 0; i < places.size(); ++i)
            for (size_t j = 0; j < i; ++j) {
                const auto& [a, at] = places[j];
                const auto& [b, here] = places[i];
                if (at.file == here.file) continue;
                const bool overload = a.kind == "function" && b.kind == "function" && a.detail != b.detail;
                const bool equal_alias = a.kind == "alias" && b.kind == "alias" && a.detail == b.detail;
                if (overload || equal_alias) continue;
                report.violations.push_back(here.file + ":" + std::to_string(here.line) + ": '" + b.name +
                                            "' is also in " + at.file);
                j = i;  // one line per name and file
            }
    std::ranges::sort(report.violations);
    return report;
}

}  // namespace nibble::test
