// Chat templates: the Jinja templates of tokenizers, rendered like transformers does (immutable sandbox, trim_blocks,
// lstrip_blocks, loop controls, the generation tag, tojson without HTML escapes). Templates are untrusted, so work and
// memory are bounded. Errors are one line, "line 12: ...". Some things that Jinja2 accepts are errors here: integers
// beyond 64 bits, printing a value that Python prints as an address (generators, functions) or as range(...), string
// methods such as format, and tags that load other templates.
#pragma once

#include "base/json.h"
#include "text/meter.h"
#include "text/text_range.h"

#include <ctime>
#include <memory>
#include <optional>

namespace nibble {

struct TemplateLimits {
    int64_t max_steps = 20'000'000;      // one step: an evaluation, or about 64 bytes of data read
    int64_t max_made_bytes = 256 << 20;  // total of all strings and lists created: bounds the memory
    int64_t max_output_bytes = 64 << 20;
    int64_t max_source_bytes = 4 << 20;
};

struct Rendering {
    std::string text;
    TextRanges data;  // bytes that come from data; the template wrote the others
};

class ChatTemplate {
public:
    static Result<ChatTemplate> parse(std::string_view source, const TemplateLimits& limits = {});
    // Opens a folder with chat_template.jinja or with chat_template in tokenizer_config.json (from a list, the template
    // named "default"), or a template file.
    static Result<ChatTemplate> open(const std::filesystem::path& path, const TemplateLimits& limits = {});
    // Reads the template of a parsed tokenizer_config.json; returns nothing if it has none.
    static Result<std::optional<ChatTemplate>> from_tokenizer_config(const Json& config,
                                                                     const TemplateLimits& limits = {});

    // Renders with `variables`, an object: messages, tools, add_generation_prompt, bos_token, ... strftime_now formats
    // `now`.
    Result<std::string> render(const Json& variables, const std::optional<std::tm>& now = {}) const;
    // As above; the meter's steps and bytes replace those of TemplateLimits.
    Result<std::string> render(const Json& variables, const std::optional<std::tm>& now, Meter& meter) const;

    // Renders with two kinds of variables. `own` are the model's (bos_token ...) and count as written by the template.
    // `data` overrides `own` variables of the same name. Every character keeps its origin through all operations of the
    // template. The result of upper(), tojson and similar functions is data if any of their input is data.
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

// Checks that `messages` is a non-empty list of objects with a 'role', as chat templates expect.
Status check_messages(const Json& messages);

}  // namespace nibble
