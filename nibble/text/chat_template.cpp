#include "text/chat_template.h"

#include "base/mapped_file.h"
#include "base/utf8.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/jinja_text.h"

namespace nibble {

using namespace jinja;
namespace fs = std::filesystem;

struct ChatTemplate::Tree {
    std::string source;
    Body body;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Tree> tree, const TemplateLimits& limits)
    : tree_(std::move(tree)), limits_(limits) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

namespace {

// Makes one line of readable length.
Error at_line(const Failure& failure) {
    std::string text = failure.message.substr(0, 1000);
    for (size_t at = 0; (at = text.find_first_of("\r\n", at)) != text.npos;) text[at] = ' ';
    return fail("line {}: {}", failure.line, text);
}

// `marked` is Marked::written or Marked::from_data.
Value to_value(const Json& json, Budget& budget, Marked (*marked)(std::string), int depth = 0) {
    if (depth > 200) budget.fail("the input is nested too deeply");
    switch (json.type()) {
        case Json::value_t::null:
            return Value::none();
        case Json::value_t::boolean:
            return json.get<bool>();
        case Json::value_t::number_integer:
            return json.get<int64_t>();
        case Json::value_t::number_unsigned:
            if (json.get<uint64_t>() > uint64_t(INT64_MAX))
                budget.fail("a number of the input needs more than 64 bits");
            return json.get<int64_t>();
        case Json::value_t::number_float:
            return json.get<double>();
        case Json::value_t::string: {
            const auto& text = json.get_ref<const std::string&>();
            if (!utf8_valid(text)) budget.fail("a string of the input is not UTF-8");
            return make_string(budget, marked(text));
        }
        case Json::value_t::array: {
            std::vector<Value> items;
            for (const Json& item : json) items.push_back(to_value(item, budget, marked, depth + 1));
            return make_list(budget, std::move(items));
        }
        case Json::value_t::object: {
            auto dict = std::make_shared<Dict>();
            int inner = 0;
            for (const auto& [key, item] : json.items()) {
                Value value = to_value(item, budget, marked, depth + 1);
                inner = std::max(inner, container_depth(value));
                if (!utf8_valid(key)) budget.fail("a key of the input is not UTF-8");
                dict->entries.emplace_back(make_string(budget, marked(key)), std::move(value));
            }
            dict->depth = deeper(budget, inner);
            return Value(std::move(dict));
        }
        default:
            budget.fail("the input holds what is not JSON");
    }
}

// Returns chat_template of a tokenizer_config.json: a string, or the "default" entry of a list; null if there is none.
const std::string* template_text(const Json& config) {
    const auto it = config.find("chat_template");
    if (it == config.end()) return nullptr;
    if (it->is_string()) return it->get_ptr<const std::string*>();
    if (!it->is_array()) return nullptr;
    for (const Json& one : *it)
        if (one.is_object() && one.value("name", Json()) == "default" && one.contains("template"))
            return one["template"].get_ptr<const std::string*>();
    return nullptr;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, const TemplateLimits& limits) {
    if (int64_t(source.size()) > limits.max_source_bytes)
        return fail("the template is longer than {} bytes", limits.max_source_bytes);
    if (!utf8_valid(source)) return fail("the template is not UTF-8");
    try {
        auto tree = std::make_unique<Tree>();
        tree->source = source;
        tree->body = jinja::parse(source);
        return ChatTemplate(std::move(tree), limits);
    } catch (const Failure& failure) {
        return at_line(failure);
    }
}

Result<ChatTemplate> ChatTemplate::open(const fs::path& path, const TemplateLimits& limits) {
    std::error_code none;
    fs::path file = path;
    if (fs::is_directory(path, none))
        file = fs::exists(path / "chat_template.jinja", none) ? path / "chat_template.jinja"
                                                              : path / "tokenizer_config.json";
    // tokenizer_config.json and chat_template.json contain a template inside JSON.
    if (file.extension() == ".json") {
        NIBBLE_TRY(const Json config, read_json_file(file, {.python_constants = true}));
        NIBBLE_TRY(auto found, from_tokenizer_config(config, limits).within(file.string()));
        if (!found) return fail("{}: holds no chat_template", file.string());
        return *std::move(found);
    }
    NIBBLE_TRY(const std::string source, read_text_file(file, static_cast<size_t>(limits.max_source_bytes)));
    if (const auto json = parse_json(source); json.ok() && json->is_structured())
        return fail("{}: is JSON, not a Jinja template", file.string());
    return parse(source, limits).within(file.string());
}

Result<std::optional<ChatTemplate>> ChatTemplate::from_tokenizer_config(const Json& config,
                                                                        const TemplateLimits& limits) {
    const std::string* source = config.is_object() ? template_text(config) : nullptr;
    if (!source) return std::optional<ChatTemplate>();
    NIBBLE_TRY(auto chat, parse(*source, limits));
    return std::optional<ChatTemplate>(std::move(chat));
}

const std::string& ChatTemplate::source() const { return tree_->source; }

Result<std::string> ChatTemplate::render(const Json& variables, const std::optional<std::tm>& now) const {
    NIBBLE_TRY(auto rendering, render(Json::object(), variables, now));
    return std::move(rendering.text);
}

Result<std::string> ChatTemplate::render(const Json& variables, const std::optional<std::tm>& now, Meter& meter) const {
    NIBBLE_TRY(auto rendering, render(Json::object(), variables, now, meter));
    return std::move(rendering.text);
}

Result<Rendering> ChatTemplate::render(const Json& own, const Json& data, const std::optional<std::tm>& now) const {
    Meter meter({.steps = limits_.max_steps, .bytes = limits_.max_made_bytes});
    return render(own, data, now, meter);
}

Result<Rendering> ChatTemplate::render(const Json& own, const Json& data, const std::optional<std::tm>& now,
                                       Meter& meter) const {
    if (!own.is_object() || !data.is_object()) return fail("the variables of a template are not an object");
    try {
        Interpreter interpreter(meter, limits_.max_output_bytes, now ? &*now : nullptr);
        std::vector<std::pair<std::string, Value>> values;
        for (const auto& [name, value] : own.items())
            values.emplace_back(name, to_value(value, interpreter.budget, Marked::written));
        for (const auto& [name, value] : data.items())
            values.emplace_back(name, to_value(value, interpreter.budget, Marked::from_data));
        const Marked text = interpreter.run(tree_->body, std::move(values));
        return Rendering{text.text(), text.data()};
    } catch (const Failure& failure) {
        Error error = at_line(failure);
        if (meter.ok()) return error;
        return std::move(error).as(meter.error().kind());
    }
}

Status check_messages(const Json& messages) {
    if (!messages.is_array() || messages.empty()) return fail("'messages' is not a list of messages");
    for (size_t i = 0; i < messages.size(); ++i) {
        const Json& m = messages[i];
        if (!m.is_object() || !m.contains("role") || !m["role"].is_string())
            return fail("message {} is not an object with a 'role'", i);
    }
    return Ok{};
}

}  // namespace nibble
