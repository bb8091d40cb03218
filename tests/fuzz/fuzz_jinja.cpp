// Input: a chat template, then, after the first byte 1, the JSON of its variables (if absent: a conversation). It must
// be refused, or rendered within its limits of time and memory. An error has one line.
#include "judge.h"
#include "text/chat_template.h"

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Json conversation = *parse_json(
        R"({"messages": [{"role": "user", "content": "a\u00e9 b"}, {"role": "assistant", "content": null, "tool_calls": [{"x": 1.5}]}], "tools": null, "add_generation_prompt": true, "eos_token": "</s>"})");
    const Judge judge;
    const std::string_view all(reinterpret_cast<const char*>(data), size);
    const size_t cut = all.find('\1');
    Json variables = conversation;
    if (cut != all.npos) {
        auto given = parse_json(all.substr(cut + 1));
        if (!given.ok()) {
            require_message(given.error());
            return 0;
        }
        variables = *std::move(given);
    }
    const TemplateLimits limits{.max_steps = 100'000, .max_made_bytes = 4 << 20, .max_output_bytes = 1 << 20};
    const auto parsed = ChatTemplate::parse(all.substr(0, cut), limits);
    if (!parsed.ok()) {
        require_message(parsed.error());
        return 0;
    }
    const auto text = parsed->render(variables, std::tm{});
    if (text.ok())
        require(int64_t(text->size()) <= limits.max_output_bytes);
    else
        require_message(text.error());
    require(text.ok() || text.error().message().starts_with("line ") || !variables.is_object());
    const auto again = parsed->render(variables, std::tm{});
    require(again.ok() == text.ok() && (!text.ok() || *again == *text));
    return 0;
}
