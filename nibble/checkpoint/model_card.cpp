#include "checkpoint/model_card.h"

#include "base/mapped_file.h"
#include "base/utf8.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t longest_card = 1 << 20;

// Metadata keys that describe the source's own files.
constexpr std::array<std::string_view, 8> replaced_keys{"base_model",  "base_model_relation", "library_name",
                                                        "tags",        "model-index",         "model_name",
                                                        "new_version", "quantized_by"};

struct HeadEntry {
    std::string key;
    std::vector<std::string> lines;  // the line of the key and its continuation lines
};

struct SourceCard {
    std::vector<HeadEntry> head;
    std::string body;
};

std::vector<std::string> card_lines(std::string_view text) {
    std::vector<std::string> lines;
    while (!text.empty()) {
        const size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        if (line.ends_with('\r')) line.remove_suffix(1);
        lines.emplace_back(line);
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
}

// Returns "license" for "license: mit"; empty: the line continues another one.
std::string_view key_of(std::string_view line) {
    const auto name_end = std::ranges::find_if_not(line, [](unsigned char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    });
    const auto length = static_cast<size_t>(name_end - line.begin());
    if (length == 0 || line.front() == '-' || length >= line.size() || line[length] != ':') return {};
    return line.substr(0, length);
}

SourceCard parse_card(std::string_view text) {
    constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
    if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
    SourceCard card;
    const std::vector<std::string> lines = card_lines(text);
    size_t at = 0;
    if (!lines.empty() && lines[0] == "---") {
        const auto end = std::find(lines.begin() + 1, lines.end(), "---");
        if (end != lines.end()) {
            for (auto line = lines.begin() + 1; line != end; ++line) {
                const std::string_view key = key_of(*line);
                if (!key.empty()) card.head.push_back({std::string(key), {}});
                if (!card.head.empty()) card.head.back().lines.push_back(*line);
            }
            at = static_cast<size_t>(end - lines.begin()) + 1;
        }
    }
    while (at < lines.size() && lines[at].empty()) ++at;
    for (; at < lines.size(); ++at) card.body += lines[at] + "\n";
    return card;
}

std::string_view without_blanks(std::string_view text) {
    constexpr std::string_view space = " \t";
    text.remove_prefix(std::min(text.find_first_not_of(space), text.size()));
    const size_t last = text.find_last_not_of(space);
    return last == text.npos ? std::string_view{} : text.substr(0, last + 1);
}

std::string unquoted(std::string_view text) {
    text = without_blanks(text);
    if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front())
        text = text.substr(1, text.size() - 2);
    return std::string(text);
}

// Returns the values of "tags: [a, b]", "tags: a" or of a list in the lines below.
std::vector<std::string> tag_values(const HeadEntry& entry) {
    std::vector<std::string> values;
    const auto add = [&](std::string_view text) {
        if (std::string value = unquoted(text); !value.empty()) values.push_back(std::move(value));
    };
    std::string_view first = without_blanks(std::string_view(entry.lines[0]).substr(entry.key.size() + 1));
    if (first.starts_with('[') && first.ends_with(']')) {
        first = first.substr(1, first.size() - 2);
        while (!first.empty()) {
            const size_t comma = std::min(first.find(','), first.size());
            add(first.substr(0, comma));
            first.remove_prefix(std::min(comma + 1, first.size()));
        }
    } else {
        add(first);
    }
    for (size_t i = 1; i < entry.lines.size(); ++i)
        if (const std::string_view line = without_blanks(entry.lines[i]); line.starts_with("- ")) add(line.substr(2));
    return values;
}

const HeadEntry* head_entry(const SourceCard& card, std::string_view key) {
    const auto found = std::ranges::find(card.head, key, &HeadEntry::key);
    return found == card.head.end() ? nullptr : &*found;
}

// Returns a YAML scalar: unquoted if no character is special, else in double quotes.
std::string yaml_text(std::string_view text) {
    const auto plain = [](unsigned char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
               c == '/' || c == '-';
    };
    const bool letter = !text.empty() && ((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z'));
    constexpr std::array<std::string_view, 8> words{"true", "false", "null", "yes", "no", "on", "off", "y"};
    std::string lower(text);
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    // Spaces between words are allowed ("Model Optimizer").
    if (letter && std::ranges::all_of(text, [&](unsigned char c) { return plain(c) || c == ' '; }) &&
        !text.ends_with(' ') && std::ranges::find(words, lower) == words.end() && lower != "n")
        return std::string(text);
    std::string quoted = "\"";
    for (const char c : printable(std::string(text))) {
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += c;
    }
    return quoted + "\"";
}

// Escapes a cell of a Markdown table.
std::string table_cell(std::string_view text) {
    std::string out;
    for (const char c : printable(std::string(text))) {
        if (c == '|' || c == '<' || c == '\\') out += '\\';
        out += c;
    }
    return out;
}

// Returns a code block whose fence is longer than every run of backticks in the text.
std::string code_block(std::string_view text) {
    size_t run = 0, longest = 2;
    for (const char c : text) {
        run = c == '`' ? run + 1 : 0;
        longest = std::max(longest, run);
    }
    const std::string fence(longest + 1, '`');
    return fmt::format("{}\n{}\n{}\n", fence, printable(std::string(text)), fence);
}

std::string head_text(const ModelCard& card, const SourceCard& source) {
    std::string head = "---\n";
    const auto keep = [&](const HeadEntry& entry) {
        for (const std::string& line : entry.lines) head += line + "\n";
    };
    const HeadEntry* base = card.keeps_base ? head_entry(source, "base_model") : nullptr;
    if (base)
        keep(*base);
    else if (!card.base_model.empty())
        head += fmt::format("base_model: {}\n", yaml_text(card.base_model));
    if (!card.relation.empty() && (base || !card.base_model.empty()))
        head += fmt::format("base_model_relation: {}\n", card.relation);
    if (!card.library.empty()) head += fmt::format("library_name: {}\n", yaml_text(card.library));
    std::vector<std::string> tags;
    if (const HeadEntry* theirs = head_entry(source, "tags")) tags = tag_values(*theirs);
    for (const std::string& tag : card.tags)
        if (std::ranges::find(tags, tag) == tags.end()) tags.push_back(tag);
    if (!tags.empty()) head += "tags:\n";
    for (const std::string& tag : tags) head += fmt::format("- {}\n", yaml_text(tag));
    for (const HeadEntry& entry : source.head)
        if (std::ranges::find(replaced_keys, entry.key) == replaced_keys.end()) keep(entry);
    return head + "---\n";
}

}  // namespace

std::string hub_name(const fs::path& checkpoint) {
    constexpr std::string_view mark = "models--";
    std::error_code ignored;
    const fs::path whole = fs::absolute(checkpoint, ignored).lexically_normal();
    for (const fs::path& part : whole) {
        std::string name = part.string();
        if (!name.starts_with(mark)) continue;
        name.erase(0, mark.size());
        if (const size_t at = name.find("--"); at != name.npos) name.replace(at, 2, "/");
        return name;
    }
    return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

std::string_view card_library(Dialect dialect) {
    return dialect == Dialect::modelopt ? "Model Optimizer" : "transformers";
}

void note_formats(ModelCard& card, const Checkpoint& source, const ExportSpec& spec) {
    std::vector<std::string> formats;
    for (const ExportTensor& t : spec.tensors)
        if (const std::string name(format_name(t.format));
            t.format != Format::none && std::ranges::find(formats, name) == formats.end())
            formats.push_back(name);
    const bool was_quantized =
        std::ranges::any_of(source.tensors(), [](const CheckpointTensor& t) { return t.quantized(); });
    card.keeps_base &= was_quantized;
    if (card.relation.empty() && (was_quantized || !formats.empty())) card.relation = "quantized";
    if (card.library.empty()) card.library = card_library(spec.dialect);
    card.facts.emplace_back("weights", formats.empty() ? "not quantized" : fmt::format("{}", fmt::join(formats, ", ")));
    card.tags.insert(card.tags.begin(), "nibble");
    if (!formats.empty()) card.tags.emplace_back(dialect_name(spec.dialect));
    card.tags.insert(card.tags.end(), formats.begin(), formats.end());
}

std::string model_card_text(const ModelCard& card, std::string_view text) {
    const SourceCard source = parse_card(text);
    std::string page = head_text(card, source) + fmt::format("\n# {}\n\n", table_cell(card.title));
    if (!card.facts.empty()) page += "| | |\n|---|---|\n";
    for (const auto& [name, value] : card.facts) page += fmt::format("| {} | {} |\n", name, table_cell(value));
    if (!card.command.empty()) page += fmt::format("\nCommand:\n\n{}", code_block(card.command));
    if (!card.text.empty()) page += "\n" + card.text;
    if (!source.body.empty()) page += fmt::format("\n---\n\nThe model card of the source:\n\n{}", source.body);
    return page;
}

Result<std::string> take_model_card(std::vector<Checkpoint::SideFile>& files) {
    const auto found = std::ranges::find(files, model_card_name, &Checkpoint::SideFile::name);
    if (found == files.end()) return std::string();
    std::string text = found->content;
    if (!found->copy_from.empty()) {
        std::error_code error;
        const auto size = fs::file_size(found->copy_from, error);
        if (error) return fail("{}: {}", found->copy_from.string(), error.message());
        if (size > longest_card) {
            found->name = "README.source.md";
            return std::string();
        }
        NIBBLE_TRY(text, read_text_file(found->copy_from, longest_card));
    }
    files.erase(found);
    return text;
}

}  // namespace nibble
