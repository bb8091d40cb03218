#include "chat/channel_reader.h"

#include "chat/tool_format.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

using PartKind = AnswerPart::Kind;
constexpr std::string_view header_blanks = " \t\r\n", header_end = "<|message|>", channel_begin = "<|channel|>",
                           message_begin = "<|start|>";
constexpr std::array<std::string_view, 5> message_ends{"<|end|>", "<|call|>", "<|return|>", message_begin,
                                                       channel_begin};

bool is_name_part(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
}

// Returns the word after `key`; empty: the header has no such key.
std::string_view word_after(std::string_view header, std::string_view key) {
    const size_t at = header.find(key);
    if (at == header.npos) return {};
    const std::string_view rest = header.substr(at + key.size());
    const auto end = std::ranges::find_if_not(rest, is_name_part);
    return rest.substr(0, size_t(end - rest.begin()));
}

// Returns the number of bytes at the end of `text` that may begin one of the tags.
size_t begun_tag(std::string_view text) {
    size_t most = 0;
    for (const std::string_view tag : message_ends)
        for (size_t n = std::min(text.size(), tag.size() - 1); n > most; --n)
            if (text.ends_with(tag.substr(0, n))) most = n;
    return most;
}

}  // namespace

ChannelReader::ChannelReader(bool calls, bool reasoning)
    : calls_(calls), inside_(reasoning), kind_(reasoning ? PartKind::reasoning : PartKind::content) {}

void ChannelReader::read(std::string& text, bool last, std::vector<AnswerPart>& parts) {
    while (inside_ ? message(text, last, parts) : header(text, last, parts)) {
    }
}

// Returns false if more text is needed.
bool ChannelReader::header(std::string& text, bool last, std::vector<AnswerPart>& parts) {
    const std::string_view rest =
        std::string_view(text).substr(std::min(text.find_first_not_of(header_blanks), text.size()));
    if (rest.empty()) return false;
    bool begins = false, may_begin = false;
    for (const std::string_view tag : {message_begin, channel_begin, std::string_view("to=")}) {
        begins |= rest.starts_with(tag);
        may_begin |= rest.size() < tag.size() && tag.starts_with(rest);
    }
    if (may_begin && !last) return false;
    kind_ = PartKind::content;
    said_ = false;
    if (!begins) {
        inside_ = true;
        return true;
    }
    const size_t end = text.find(header_end);
    if (end == text.npos) {
        if (last) text.clear();
        return false;
    }
    const std::string_view head = std::string_view(text).substr(0, end);
    const std::string_view name = word_after(head, "to=functions.");
    if (calls_ && !name.empty()) {
        kind_ = PartKind::tool_arguments;
        parts.push_back({.kind = PartKind::tool_begin, .index = count_++, .name = std::string(name)});
    } else if (word_after(head, channel_begin) == "analysis") {
        kind_ = PartKind::reasoning;
    }
    inside_ = true;
    text.erase(0, end + header_end.size());
    return true;
}

bool ChannelReader::message(std::string& text, bool last, std::vector<AnswerPart>& parts) {
    size_t end = text.npos;
    for (const std::string_view tag : message_ends) end = std::min(end, text.find(tag));
    std::string_view piece = std::string_view(text).substr(0, end);
    if (end == text.npos && !last) piece.remove_suffix(begun_tag(piece));
    say(kind_, piece, parts);
    if (end == text.npos && !last) {
        text.erase(0, piece.size());
        return false;
    }
    if (kind_ == PartKind::tool_arguments) {
        if (!said_ && end != text.npos) say(kind_, "{}", parts);
        parts.push_back({.kind = PartKind::tool_end, .index = count_ - 1});
    }
    said_reasoning_ |= kind_ == PartKind::reasoning && said_;
    said_content_ |= kind_ == PartKind::content && said_;
    inside_ = false;
    text.erase(0, end);
    for (const std::string_view tag : {message_ends[0], message_ends[1], message_ends[2]})
        if (text.starts_with(tag)) text.erase(0, tag.size());
    return !text.empty();
}

// Separates messages of one kind by a line break.
void ChannelReader::say(PartKind kind, std::string_view text, std::vector<AnswerPart>& parts) {
    if (text.empty()) return;
    const bool again =
        !said_ && ((kind == PartKind::reasoning && said_reasoning_) || (kind == PartKind::content && said_content_));
    said_ = true;
    parts.push_back({.kind = kind,
                     .text = (again ? "\n" : "") + std::string(text),
                     .index = kind == PartKind::tool_arguments ? count_ - 1 : 0});
}

}  // namespace nibble
