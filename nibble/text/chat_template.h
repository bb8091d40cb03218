// Chat templates: the Jinja that tokenizers bring along, rendered as transformers does (immutable sandbox, trim_blocks,
// lstrip_blocks, loop controls, the generation tag, tojson without HTML escapes), and bounded: a template is untrusted.
// Errors are one line, "line 12: ...". Errors where Jinja2 has none: integers beyond 64 bits, printing what Python
// prints as an address (generators, functions) or as range(...), string methods such as format, and tags that load
// other templates.
#pragma once

#include "base/json.h"
#include "text/meter.h"
#include "text/text_range.h"

#include <ctime>
#include <memory>
#include <optional>

namespace nibble {

struct TemplateLimits {
    int64_t max_steps = 20'000'000;      // evaluations, and 64 bytes or so of data looked at
    int64_t max_made_bytes = 256 << 20;  // of all strings and lists made on the way: bounds the memory
    int64_t max_output_bytes = 64 << 20;
    int64_t max_source_bytes = 4 << 20;
};

struct Rendering {
    std::string text;
    TextRanges data;  // bytes that come from data; the template wrote all others
};

class ChatTemplate {
public:
    static Result<ChatTemplate> parse(std::string_view source, const TemplateLimits& limits = {});
    // A folder with chat_template.jinja, or with chat_template in tokenizer_config.json (a list of templates: the one
    // named "default"); or a file with a template.
    static Result<ChatTemplate> open(const std::filesystem::path& path, const TemplateLimits& limits = {});
    // Of a tokenizer_config.json that was read already; nothing when it holds none.
    static Result<std::optional<ChatTemplate>> from_tokenizer_config(const Json& config,
                                                                     const TemplateLimits& limits = {});

    // `variables`: an object; messages, tools, add_generation_prompt, bos_token, ... `now` is what strftime_now tells.
    Result<std::string> render(const Json& variables, const std::optional<std::tm>& now = {}) const;
    // The meter's steps and bytes stand for those of the template's limits.
    Result<std::string> render(const Json& variables, const std::optional<std::tm>& now, Meter& meter) const;

    // The same with variables of two kinds: the model's `own` (bos_token ...), which count as written by the template,
    // and data, which takes the place of own ones of the same name. Characters keep their origin through all that a
    // template does with them; what upper(), tojson and the like make of a string that is partly data is data.
    Result<Rendering> render(const Json& own, const Json& data, const std::optional<std::tm>& now) const;
    Result<Rendering> render(const Json& own, const Json& data, const std::optional<std::tm>& now, Meter& meter) const;
    const std::string& source() const;

    ~ChatTemplate();
    ChatTemplate(ChatTemplate&&) noexcept;
    ChatTemplate& operator=(ChatTemplate&&) noexcept;

private:
    struct Tree;
    ChatTemplate(std::unique_ptr<Tree> tree, const TemplateLimits& limits);
    std::unique_ptr<Tree> tree_;
    TemplateLimits limits_;
};

}  // namespace nibble
