#include "base/json.h"

#include "base/mapped_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

template class nlohmann::basic_json<nlohmann::ordered_map>;
template class std::vector<nlohmann::ordered_json>;
template class nlohmann::detail::iter_impl<const nlohmann::ordered_json>;

namespace nibble {
namespace {

constexpr size_t most_bytes = size_t{256} << 20;
constexpr int64_t most_values = int64_t{16} << 20;  // 16 to 64 bytes each

// nlohmann's parser reads only JSON numbers, so each constant is passed to it as a number that stands for it.
struct PythonConstant {
    std::string_view name, stand_in;
    double value;
};
constexpr std::array python_constants{
    PythonConstant{"Infinity", "0e0070000000001", std::numeric_limits<double>::infinity()},
    PythonConstant{"-Infinity", "-0e0070000000001", -std::numeric_limits<double>::infinity()},
    PythonConstant{"NaN", "0e0070000000002", std::numeric_limits<double>::quiet_NaN()}};

// Builds the document and makes checks that nlohmann's parser lacks: depth, duplicate keys, number of values.
// nlohmann's own builder searches all earlier keys for every new key, which is quadratic.
class Builder {
public:
    Builder(Json& root, const JsonOptions& options) : root_(root), options_(options) {}

    bool null() { return put(nullptr); }
    bool boolean(bool v) { return put(v); }
    bool number_integer(Json::number_integer_t v) { return put(v); }
    bool number_unsigned(Json::number_unsigned_t v) { return put(v); }
    bool number_float(Json::number_float_t v, const std::string& text) {
        if (options_.python_constants)
            for (const PythonConstant& constant : python_constants)
                if (text == constant.stand_in) return put(constant.value);
        return options_.decimals_as_text ? put(text) : put(v);
    }
    bool string(std::string& v) { return put(std::move(v)); }
    bool binary(Json::binary_t&) { return stop("binary data"); }
    bool start_object(size_t) { return open(Json::object()); }
    bool end_object() { return check_keys() && close(); }
    bool start_array(size_t) { return open(Json::array()); }
    bool end_array() { return close(); }
    bool key(std::string& k) {
        auto& entries = static_cast<Json::object_t::Container&>(open_.back()->get_ref<Json::object_t&>());
        member_ = &entries.emplace_back(std::move(k), nullptr).second;
        return true;
    }
    bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) {
        // nlohmann's text: "[json.exception...] parse error at line 1, column 2: reason"
        std::string_view what = e.what();
        const size_t cut = what.find("parse error");
        problem = std::string(cut == std::string_view::npos ? what : what.substr(cut)).substr(0, 240);
        if (problem.empty()) problem = fmt::format("parse error at byte {}", position);
        return false;
    }

    std::string problem;

private:
    bool stop(std::string reason) {
        problem = std::move(reason);
        return false;
    }

    // Returns null if there are too many values.
    Json* place(Json value) {
        if (++values_ > most_values) {
            problem = fmt::format("over {} values", most_values);
            return nullptr;
        }
        if (open_.empty()) return &(root_ = std::move(value));
        if (open_.back()->is_object()) return &(*member_ = std::move(value));
        auto& items = open_.back()->get_ref<Json::array_t&>();
        return &items.emplace_back(std::move(value));
    }
    bool put(Json value) { return place(std::move(value)) != nullptr; }

    // Addresses of open values stay valid: a parent gets no other value before its open child is closed.
    bool open(Json empty) {
        if (static_cast<int>(open_.size()) >= options_.max_depth)
            return stop(fmt::format("nested deeper than {} levels", options_.max_depth));
        Json* const at = place(std::move(empty));
        if (at) open_.push_back(at);
        return at != nullptr;
    }
    bool close() {
        open_.pop_back();
        return true;
    }

    // Sorting instead of hashing: a hostile file could contain keys with equal hashes.
    bool check_keys() {
        sorted_.clear();
        for (const auto& entry : open_.back()->get_ref<const Json::object_t&>()) sorted_.push_back(entry.first);
        std::ranges::sort(sorted_);
        const auto twice = std::ranges::adjacent_find(sorted_);
        return twice == sorted_.end() || stop(fmt::format("duplicate key '{}'", twice->substr(0, 200)));
    }

    Json& root_;
    std::vector<Json*> open_;  // enclosing objects and arrays of the next value, outermost first
    Json* member_ = nullptr;   // the value of the last key
    std::vector<std::string_view> sorted_;
    int64_t values_ = 0;
    const JsonOptions& options_;
};

// Replaces bare Infinity, -Infinity and NaN outside strings by numbers that do not occur in practice.
std::string replace_python_constants(std::string_view text) {
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
        const auto constant = std::ranges::find_if(
            python_constants, [&](const PythonConstant& p) { return text.substr(i).starts_with(p.name); });
        if (constant != python_constants.end()) {
            out += constant->stand_in;
            i += constant->name.size();
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
    if (text.size() > most_bytes)
        return fail("invalid JSON: {} bytes, more than the limit of {}", text.size(), most_bytes);
    // nlohmann's parser treats a zero byte as the end of the text and would accept anything after it.
    if (const size_t zero = text.find('\0'); zero != text.npos) return fail("invalid JSON: zero byte at {}", zero);
    std::string rewritten;
    if (options.python_constants) {
        rewritten = replace_python_constants(text);
        text = rewritten;
    }
    Json root;
    Builder builder(root, options);
    bool fine = false;
    try {
        fine = Json::sax_parse(text.begin(), text.end(), &builder);
    } catch (const std::exception& e) {  // for example a number out of range
        builder.problem = e.what();
    }
    if (!fine) return fail("invalid JSON: {}", builder.problem);
    return root;
}

Result<Json> read_json_file(const std::filesystem::path& path, const JsonOptions& options) {
    NIBBLE_TRY(auto text, read_text_file(path));
    return parse_json(text, options).within(path.string());
}

}  // namespace nibble
