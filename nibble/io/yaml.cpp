#include "io/yaml.h"

#include "base/nearest.h"

#include <fmt/ranges.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>

namespace nibble {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Thrown through yaml-cpp's parser and caught by the calling functions.
struct Refused {
    Error error;
};

// Builds the tree from the parser's events. yaml-cpp's own nodes would not limit the size to which aliases expand, and
// would not stop at endless documents (which some damaged flow collections cause).
class TreeBuilder : public YAML::EventHandler {
public:
    explicit TreeBuilder(const std::string& file) : file_(std::make_shared<const std::string>(file)) {}

    std::vector<YamlNode> documents;

    void OnDocumentStart(const YAML::Mark&) override {
        if (documents.size() >= max_yaml_documents)
            refuse("{}: more than {} YAML documents", *file_, max_yaml_documents);
        anchors_.clear();
        documents.emplace_back();
        documents.back().file = file_;
    }
    void OnDocumentEnd() override {}

    void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
        add(make(mark, YamlNode::Kind::null), anchor);
    }

    void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  const std::string& text) override {
        YamlNode node = make(mark, YamlNode::Kind::scalar);
        check_tag(node, tag);
        node.text = text;
        node.quoted = tag == "!";
        if (is_open_map() && !open_.back().key) return set_key(node);
        add(std::move(node), anchor);
    }

    void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
        const auto found = anchors_.find(anchor);
        const YamlNode at = make(mark, YamlNode::Kind::null);
        if (found == anchors_.end()) refuse("{}: an alias inside its own anchor", at.where());
        count(found->second.node_count(), at);
        add(found->second, 0);
    }

    void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                         YAML::EmitterStyle::value) override {
        open(make(mark, YamlNode::Kind::list), tag, anchor);
    }
    void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                    YAML::EmitterStyle::value) override {
        open(make(mark, YamlNode::Kind::map), tag, anchor);
    }
    void OnSequenceEnd() override { close(); }
    void OnMapEnd() override { close(); }

private:
    struct Open {
        YamlNode node;
        YAML::anchor_t anchor;
        std::optional<std::string> key;  // key of a map whose value has not been read
        int key_line = 0;
    };

    template <class... Args>
    [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
        throw Refused{fail(format, std::forward<Args>(args)...)};
    }

    YamlNode make(const YAML::Mark& mark, YamlNode::Kind kind) {
        YamlNode node;
        node.kind = kind;
        node.file = file_;
        node.line = mark.line + 1;
        count(1, node);
        return node;
    }

    void count(size_t nodes, const YamlNode& at) {
        count_ += nodes;
        if (count_ > max_yaml_nodes) refuse("{}: more than {} values", at.where(), max_yaml_nodes);
    }

    void check_tag(const YamlNode& node, const std::string& tag) {
        if (!tag.empty() && tag != "?" && tag != "!") refuse("{}: tags are not allowed in a recipe", node.where());
    }

    bool is_open_map() const { return !open_.empty() && open_.back().node.is_map(); }

    void set_key(const YamlNode& node) {
        const std::string& name = node.text;
        if (name.size() > 200 || std::any_of(name.begin(), name.end(), is_control))
            refuse("{}: a key is too long or holds control characters", node.where());
        if (open_.back().node.find(name)) refuse("{}: key '{}' is given twice", node.where(), name);
        open_.back().key = name;
        open_.back().key_line = node.line;
    }

    void open(YamlNode node, const std::string& tag, YAML::anchor_t anchor) {
        check_tag(node, tag);
        if (open_.size() >= max_yaml_depth) refuse("{}: nested deeper than {} levels", node.where(), max_yaml_depth);
        if (is_open_map() && !open_.back().key) refuse("{}: a key must be a word or a number", node.where());
        open_.push_back({std::move(node), anchor, std::nullopt});
    }

    void close() {
        Open done = std::move(open_.back());
        open_.pop_back();
        add(std::move(done.node), done.anchor);
    }

    void add(YamlNode node, YAML::anchor_t anchor) {
        if (anchor) {
            count(node.node_count(), node);
            anchors_[anchor] = node;
        }
        if (open_.empty()) {
            documents.back() = std::move(node);
        } else if (Open& parent = open_.back(); parent.node.is_list()) {
            parent.node.items.push_back(std::move(node));
        } else if (!parent.key) {
            refuse("{}: a key must be a word or a number", node.where());
        } else {
            // An alias has the line of its anchor; the line of the key is more useful in messages.
            node.line = parent.key_line;
            parent.node.entries.push_back({*std::move(parent.key), std::move(node)});
            parent.key.reset();
        }
    }

    std::shared_ptr<const std::string> file_;
    std::vector<Open> open_;
    std::map<YAML::anchor_t, YamlNode> anchors_;
    size_t count_ = 0;
};

template <class T>
bool parse_whole(const std::string& text, T& value) {
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, value);
    return error == std::errc() && stop == end && begin != end;
}

std::string shown(const YamlNode& node) {
    switch (node.kind) {
        case YamlNode::Kind::null:
            return "nothing";
        case YamlNode::Kind::list:
            return "a list";
        case YamlNode::Kind::map:
            return "a mapping";
        case YamlNode::Kind::scalar:
            break;
    }
    std::string text = node.text.substr(0, 60);
    std::replace_if(text.begin(), text.end(), is_control, ' ');
    return fmt::format("'{}'", text);
}

bool is_plain(const YamlNode& node) { return node.kind == YamlNode::Kind::scalar && !node.quoted; }

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
    for (const YamlEntry& entry : entries)
        if (entry.key == key) return &entry.value;
    return nullptr;
}

YamlNode* YamlNode::find(std::string_view key) { return const_cast<YamlNode*>(std::as_const(*this).find(key)); }

std::string YamlNode::where() const {
    const std::string name = file ? *file : "?";
    return line > 0 ? fmt::format("{}:{}", name, line) : name;
}

size_t YamlNode::node_count() const {
    size_t n = 1;
    for (const YamlNode& item : items) n += item.node_count();
    for (const YamlEntry& entry : entries) n += entry.value.node_count();
    return n;
}

Result<std::vector<YamlNode>> parse_yaml(std::string_view text, const std::string& file) {
    if (text.size() > max_yaml_bytes)
        return fail("{}: {} bytes; a recipe has at most {}", file, text.size(), max_yaml_bytes);
    if (text.find('\0') != std::string_view::npos) return fail("{}: holds a zero byte: not a text file", file);
    TreeBuilder builder(file);
    try {
        std::istringstream in{std::string(text)};
        YAML::Parser parser(in);
        while (parser.HandleNextDocument(builder)) {
        }
    } catch (Refused& refused) {
        return std::move(refused.error);
    } catch (const YAML::Exception& error) {
        return fail("{}:{}: not valid YAML: {}", file, error.mark.is_null() ? 0 : error.mark.line + 1, error.msg);
    } catch (const std::exception& error) {
        return fail("{}: not valid YAML: {}", file, error.what());
    }
    return std::move(builder.documents);
}

Result<YamlNode> parse_config_map(std::string_view text, const std::string& file) {
    NIBBLE_TRY(auto documents, parse_yaml(text, file));
    if (documents.size() != 1 || !documents[0].is_map()) return fail("{}: a config must be one mapping", file);
    return std::move(documents[0]);
}

YamlNode yaml_from_json(const Json& json, const std::string& file) {
    YamlNode node;
    node.file = std::make_shared<const std::string>(file);
    if (json.is_object()) {
        node.kind = YamlNode::Kind::map;
        for (const auto& [key, value] : json.items()) node.entries.push_back({key, yaml_from_json(value, file)});
    } else if (json.is_array()) {
        node.kind = YamlNode::Kind::list;
        for (const Json& item : json) node.items.push_back(yaml_from_json(item, file));
    } else if (!json.is_null()) {
        node.kind = YamlNode::Kind::scalar;
        node.text = json.is_string() ? json.get<std::string>() : json.dump();
    }
    return node;
}

Result<bool> as_bool(const YamlNode& node, std::string_view what) {
    if (is_plain(node)) {
        for (std::string_view yes : {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
            if (node.text == yes) return true;
        for (std::string_view no : {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
            if (node.text == no) return false;
    }
    return fail("{}: {} must be true or false, not {}", node.where(), what, shown(node));
}

Result<int> as_int(const YamlNode& node, std::string_view what) {
    int value = 0;
    if (is_plain(node) && parse_whole(node.text, value)) return value;
    return fail("{}: {} must be a whole number, not {}", node.where(), what, shown(node));
}

Result<int64_t> as_int64(const YamlNode& node, std::string_view what) {
    int64_t value = 0;
    if (is_plain(node) && parse_whole(node.text, value)) return value;
    return fail("{}: {} must be a whole number, not {}", node.where(), what, shown(node));
}

Result<double> as_number(const YamlNode& node, std::string_view what) {
    double value = 0;
    if (is_plain(node) && parse_whole(node.text, value) && std::isfinite(value)) return value;
    return fail("{}: {} must be a number, not {}", node.where(), what, shown(node));
}

Result<std::string> as_text(const YamlNode& node, std::string_view what) {
    const bool line = node.text.size() <= 1000 && std::none_of(node.text.begin(), node.text.end(), is_control);
    if (node.kind == YamlNode::Kind::scalar && !node.text.empty() && line) return node.text;
    return fail("{}: {} must be one line of text, not {}", node.where(), what, shown(node));
}

Result<std::string> as_lines(const YamlNode& node, std::string_view what) {
    if (node.kind == YamlNode::Kind::scalar) return node.text;
    return fail("{}: {} must be text, not {}", node.where(), what, shown(node));
}

Status check_keys(const YamlNode& map, std::string_view what, std::initializer_list<std::string_view> known) {
    if (!map.is_map()) return fail("{}: {} must be a mapping, not {}", map.where(), what, shown(map));
    for (const YamlEntry& entry : map.entries) {
        if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
        const std::string meant = did_you_mean(entry.key, std::vector<std::string>(known.begin(), known.end()));
        return fail("{}: {} has no key '{}'; it has: {}{}", entry.value.where(), what, entry.key,
                    fmt::join(known, ", "), meant);
    }
    return Ok{};
}

}  // namespace nibble
