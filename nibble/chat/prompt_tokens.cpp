#include "chat/prompt_tokens.h"

#include "base/utf8.h"
#include "chat/control_tokens.h"

#include <algorithm>
#include <ctime>

namespace nibble {
namespace {

Result<std::vector<int32_t>> encoded(const ModelText& text, std::string_view prompt, bool special) {
    NIBBLE_TRY(const auto ids, text.tokenizer.encode(prompt, {.add_special = special}));
    return std::vector<int32_t>(ids.begin(), ids.end());
}

// Control tokens are recognized only in the text of the template.
Result<std::vector<int32_t>> encoded(const ModelText& text, const Rendering& rendering) {
    const std::vector<TokenId> control = control_tokens(text.tokenizer);
    NIBBLE_TRY(const auto ids, text.tokenizer.encode(rendering.text, {.data = &rendering.data, .control = control}));
    return std::vector<int32_t>(ids.begin(), ids.end());
}

Result<Rendering> rendered(const ModelText& text, const Json& messages) {
    if (!text.chat) return fail("the model has no chat template");
    NIBBLE_CHECK(check_messages(messages));
    const Json data{{"messages", messages}, {"add_generation_prompt", true}};
    const std::time_t seconds = std::time(nullptr);
    std::tm now{};
    localtime_r(&seconds, &now);
    return text.chat->render(text.variables, data, now).within("chat template");
}

}  // namespace

Result<std::vector<int32_t>> encode_prompt(const ModelText& text, const std::string& prompt) {
    NIBBLE_CHECK(check_utf8(prompt));
    return encoded(text, prompt, true);
}

Result<std::vector<int32_t>> encode_text(const ModelText& text, const std::string& more) {
    NIBBLE_CHECK(check_utf8(more));
    return encoded(text, more, false);
}

Result<std::vector<int32_t>> encode_chat(const ModelText& text, const Json& messages, bool control_in_data) {
    NIBBLE_TRY(const Rendering prompt, rendered(text, messages));
    if (control_in_data) return encoded(text, prompt.text, false);
    return encoded(text, prompt);
}

Result<std::vector<int32_t>> encode_chat_reply(const ModelText& text, const std::string& message, int32_t last) {
    const std::string answer = "nibble answer";  // placeholder at the position where the template writes an answer
    NIBBLE_TRY(Rendering whole, rendered(text, Json::array({{{"role", "user"}, {"content", "?"}},
                                                            {{"role", "assistant"}, {"content", answer}},
                                                            {{"role", "user"}, {"content", message}}})));
    const size_t at = whole.text.find(answer);
    if (at == whole.text.npos) return fail("the chat template leaves answers out: no turn can follow one");
    const size_t from = at + answer.size();
    Rendering rest{whole.text.substr(from), {}};
    for (const TextRange& r : whole.data)
        if (r.end > from) rest.data.push_back({std::max(r.begin, from) - from, r.end - from});
    NIBBLE_TRY(auto ids, encoded(text, rest));
    if (!ids.empty() && ids.front() == last) ids.erase(ids.begin());
    return ids;
}

}  // namespace nibble
