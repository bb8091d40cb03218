#include "base/json.h"

#include "base/mapped_file.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace nibble {
namespace {

// Builds the document through nlohmann's own DOM builder and adds what the library does not check: depth and
// duplicate keys.
class Checker {
public:
    Checker(Json& root, int max_depth) : dom_(root, false), max_depth_(max_depth) {}

    bool null() { return dom_.null(); }
    bool boolean(bool v) { return dom_.boolean(v); }
    bool number_integer(Json::number_integer_t v) { return dom_.number_integer(v); }
    bool number_unsigned(Json::number_unsigned_t v) { return dom_.number_unsigned(v); }
    bool number_float(Json::number_float_t v, const std::string& s) { return dom_.number_float(v, s); }
    bool string(std::string& v) { return dom_.string(v); }
    bool binary(Json::binary_t& v) { return dom_.binary(v); }
    bool start_object(size_t n) {
        keys_.emplace_back();
        return deeper() && dom_.start_object(n);
    }
    bool end_object() {
        keys_.pop_back();
        --depth_;
        return dom_.end_object();
    }
    bool start_array(size_t n) { return deeper() && dom_.start_array(n); }
    bool end_array() {
        --depth_;
        return dom_.end_array();
    }
    bool key(std::string& k) {
        if (!keys_.back().insert(k).second) {
            problem = fmt::format("duplicate key '{}'", k.substr(0, 200));
            return false;
        }
        return dom_.key(k);
    }
    bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) {
        // The library's text: "[json.exception...] parse error at line 1, column 2: reason"
        std::string_view what = e.what();
        const size_t cut = what.find("parse error");
        problem = std::string(cut == std::string_view::npos ? what : what.substr(cut)).substr(0, 300);
        if (problem.empty()) problem = fmt::format("parse error at byte {}", position);
        return false;
    }

    std::string problem;

private:
    bool deeper() {
        if (++depth_ <= max_depth_) return true;
        problem = fmt::format("nested deeper than {} levels", max_depth_);
        return false;
    }

    nlohmann::detail::json_sax_dom_parser<Json> dom_;
    std::vector<std::unordered_set<std::string>> keys_;
    int depth_ = 0, max_depth_;
};

// Puts quotes around bare Infinity, -Infinity and NaN outside strings.
std::string quote_python_constants(std::string_view text) {
    std::string out;
    out.reserve(text.size() + 16);
    bool in_string = false;
    for (size_t i = 0; i < text.size();) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\' && i + 1 < text.size())
                out += text[i++];
            else if (c == '"')
                in_string = false;
            out += text[i++];
            continue;
        }
        std::string_view token;
        for (std::string_view t : {"-Infinity", "Infinity", "NaN"})
            if (text.substr(i).starts_with(t)) token = t;
        if (!token.empty()) {
            out += fmt::format("\"{}\"", token);
            i += token.size();
            continue;
        }
        in_string = c == '"';
        out += c;
        ++i;
    }
    return out;
}

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonOptions& options) {
    // The library takes a zero byte for the end of the text and would pass whatever follows.
    if (const size_t zero = text.find('\0'); zero != text.npos) return fail("invalid JSON: zero byte at {}", zero);
    std::string rewritten;
    if (options.python_constants) {
        rewritten = quote_python_constants(text);
        text = rewritten;
    }
    Json root;
    Checker checker(root, options.max_depth);
    bool fine = false;
    try {
        fine = Json::sax_parse(text.begin(), text.end(), &checker);
    } catch (const std::exception& e) {  // number out of range and the like
        checker.problem = e.what();
    }
    if (!fine) return fail("invalid JSON: {}", checker.problem);
    return root;
}

Result<Json> read_json_file(const std::filesystem::path& path, const JsonOptions& options) {
    NIBBLE_TRY(auto text, read_text_file(path));
    return parse_json(text, options).within(path.string());
}

}  // namespace nibble
