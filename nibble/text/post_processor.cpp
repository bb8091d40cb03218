#include "text/post_processor.h"

#include "text/tokenizer_json.h"

#include <algorithm>

namespace nibble {
namespace {

Result<std::vector<uint32_t>> special_ids(const Json& component, const std::string& name) {
    const auto tokens = component.find("special_tokens");
    std::vector<uint32_t> out;
    if (tokens == component.end() || !tokens->is_object() || !tokens->contains(name))
        return fail("special token {:?} is not defined", name);
    const Json& token = (*tokens)[name];
    if (!token.is_object() || !token.contains("ids") || !token["ids"].is_array())
        return fail("special token {:?} has no ids", name);
    for (const Json& id : token["ids"]) {
        if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX)
            return fail("special token {:?}: an id is not one", name);
        out.push_back(id.get<uint32_t>());
    }
    return out;
}

Result<PostProcessor> parse_template(const Json& component) {
    PostProcessor out;
    const auto single = component.find("single");
    if (single == component.end() || !single->is_array()) return fail("'single' is not a list");
    if (single->size() > PostProcessor::most_ids) return fail("'single' has over {} items", PostProcessor::most_ids);
    int texts = 0;
    for (const Json& item : *single) {
        if (item.is_object() && item.contains("Sequence")) {
            ++texts;
            continue;
        }
        if (!item.is_object() || !item.contains("SpecialToken") || !item["SpecialToken"].is_object())
            return fail("an item of 'single' is neither Sequence nor SpecialToken");
        NIBBLE_TRY(const std::string name, json_string(item["SpecialToken"], "id"));
        NIBBLE_TRY(const auto ids, special_ids(component, name));
        auto& side = texts ? out.after : out.before;
        side.insert(side.end(), ids.begin(), ids.end());
        if (side.size() > PostProcessor::most_ids) return fail("over {} special tokens", PostProcessor::most_ids);
    }
    if (texts != 1) return fail("'single' has {} texts", texts);
    return out;
}

}  // namespace

Result<PostProcessor> PostProcessor::parse(const Json& component, int depth) {
    if (component.is_null()) return PostProcessor{};
    NIBBLE_TRY(const std::string type, component_type(component, "post_processor"));
    if (type == "ByteLevel") return PostProcessor{};
    if (type == "TemplateProcessing") return parse_template(component).within("post_processor TemplateProcessing");
    if (type != "Sequence")
        return fail("post_processor '{}' is not supported (supported: TemplateProcessing, ByteLevel, Sequence)", type);
    const auto list = component.find("processors");
    if (depth > 8 || list == component.end() || !list->is_array())
        return fail("post_processor Sequence: 'processors' is not a list");
    PostProcessor out;
    for (const Json& step : *list) {
        NIBBLE_TRY(const PostProcessor inner, parse(step, depth + 1));
        out.before.insert(out.before.begin(), inner.before.begin(), inner.before.end());
        out.after.insert(out.after.end(), inner.after.begin(), inner.after.end());
        if (std::max(out.before.size(), out.after.size()) > most_ids)
            return fail("post_processor Sequence: over {} special tokens", most_ids);
    }
    return out;
}

}  // namespace nibble
