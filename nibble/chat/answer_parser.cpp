#include "chat/answer_parser.h"

#include "chat/answer_scanner.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view blank = " \t\r\n";

// Returns the number of bytes at the end of `text` that may be the beginning of a tag.
size_t tag_begins(std::string_view text, std::string_view tag) {
    for (size_t n = std::min(text.size(), tag.empty() ? 0 : tag.size() - 1); n > 0; --n)
        if (text.ends_with(tag.substr(0, n))) return n;
    return 0;
}

// Returns the length of `text` without trailing white space.
size_t without_end(std::string_view text) {
    const size_t last = text.find_last_not_of(blank);
    return last == text.npos ? 0 : last + 1;
}

}  // namespace

AnswerScanner::AnswerScanner(AnswerFormat format) : format_(std::move(format)) {
    if (format_.think_begin.empty()) state_ = State::content;
    if (format_.thinking) state_ = State::reasoning;
    if (!format_.thinking && state_ == State::content && format_.tools && format_.tools->begin.empty())
        state_ = State::content_begin;
    if (!format_.channels) return;
    channels_.emplace(format_.tools != nullptr, format_.thinking);
    state_ = State::channels;
}

void AnswerScanner::push(std::string_view text, std::vector<AnswerPart>& parts) {
    pending_ += text;
    while (advance(parts, false)) {
    }
}

void AnswerScanner::finish(std::vector<AnswerPart>& parts, bool cut_off) {
    cut_off_ = cut_off;
    while (advance(parts, true)) {
    }
}

// Makes one step. Returns false if more text is needed or, at the end, nothing is left.
bool AnswerScanner::advance(std::vector<AnswerPart>& parts, bool last) {
    switch (state_) {
        case State::begin: {  // reasoning, if the answer begins with its tag
            const size_t at = pending_.find_first_not_of(blank);
            const std::string_view text = at == std::string::npos ? "" : std::string_view(pending_).substr(at);
            if (text.starts_with(format_.think_begin)) {
                pending_.erase(0, at + format_.think_begin.size());
                state_ = State::reasoning;
                return true;
            }
            if (!last && std::string_view(format_.think_begin).starts_with(text)) return false;
            state_ = format_.tools && format_.tools->begin.empty() ? State::content_begin : State::content;
            return true;
        }
        case State::reasoning:
            return reason(parts, last);
        case State::content_begin: {  // calls, if the content begins with a brace
            const size_t at = pending_.find_first_not_of(blank);
            if (at == std::string::npos && !last) return false;
            const std::string_view lead = format_.tools->lead;
            const std::string_view text = at == std::string::npos ? "" : std::string_view(pending_).substr(at);
            if ((!last || (cut_off_ && !text.empty())) && text.size() < lead.size() && lead.starts_with(text))
                return false;
            state_ = text.starts_with('{') || (!lead.empty() && text.starts_with(lead)) ? State::calls : State::content;
            return true;
        }
        case State::content:
            return talk(parts, last);
        case State::calls:
            return call(parts, last);
        case State::channels: {
            std::vector<AnswerPart> said;
            channels_->read(pending_, last, said);
            for (AnswerPart& part : said) number(std::move(part), parts);
            return false;
        }
    }
    return false;
}

bool AnswerScanner::reason(std::vector<AnswerPart>& parts, bool last) {
    if (!said_) {
        pending_.erase(0, std::min(pending_.find_first_not_of(blank), pending_.size()));
    }
    const size_t end = pending_.find(format_.think_end);
    const std::string_view text = std::string_view(pending_).substr(0, end);
    size_t give = text.size();
    if (end == std::string::npos && !last) give -= tag_begins(text, format_.think_end);
    give = without_end(text.substr(0, give));
    if (give > 0) {
        parts.push_back({.kind = AnswerPart::Kind::reasoning, .text = std::string(text.substr(0, give))});
        said_ = true;
    }
    if (end == std::string::npos) {
        pending_.erase(0, last ? pending_.size() : give);
        return false;
    }
    pending_.erase(0, end + format_.think_end.size());
    // White space between reasoning and content is dropped.
    said_ = false;
    format_.thinking = true;
    state_ = format_.tools && format_.tools->begin.empty() ? State::content_begin : State::content;
    return true;
}

bool AnswerScanner::talk(std::vector<AnswerPart>& parts, bool last) {
    if (!said_ && format_.thinking) pending_.erase(0, std::min(pending_.find_first_not_of(blank), pending_.size()));
    const std::string_view tag = format_.tools ? format_.tools->begin : std::string_view();
    const size_t begin = tag.empty() ? std::string::npos : pending_.find(tag);
    const std::string_view text = std::string_view(pending_).substr(0, begin);
    size_t give = text.size();
    if (begin != std::string::npos) {
        give = without_end(text);
    } else if (const size_t held = tag_begins(text, tag); !last && !tag.empty()) {
        give = without_end(text.substr(0, give - held));
    } else if (cut_off_ && held > 0) {
        give = without_end(text.substr(0, give - held));
        pending_.resize(give);
    }
    if (give > 0) {
        parts.push_back({.kind = AnswerPart::Kind::content, .text = std::string(text.substr(0, give))});
        said_ = true;
    }
    if (begin == std::string::npos) {
        pending_.erase(0, give);
        return false;
    }
    pending_.erase(0, begin);
    state_ = State::calls;
    return true;
}

// pending_ begins with the tag that opens calls, or with text of calls that is not parsed yet.
bool AnswerScanner::call(std::vector<AnswerPart>& parts, bool last) {
    if (!reader_) {
        reader_ = std::make_unique<ToolCallReader>(*format_.tools, format_.tool_list);
        calls_before_ = calls_;
    }
    std::vector<AnswerPart> said;
    ToolCallReader::Outcome outcome = reader_->read(pending_, last && !cut_off_, said);
    const bool broken_off = last && cut_off_ && outcome == ToolCallReader::Outcome::more;
    const bool dropped = broken_off && begins_call();
    if (broken_off) outcome = reader_->read(pending_, true, said);
    for (AnswerPart& part : said) number(std::move(part), parts);
    if (outcome == ToolCallReader::Outcome::more) return false;
    if (dropped) pending_.clear();
    reader_.reset();
    state_ = State::content;
    if (outcome == ToolCallReader::Outcome::over) {
        // White space around calls is not content.
        said_ = false;
        format_.thinking = true;
    } else if (const size_t tag = format_.tools->begin.size(); tag > 0 && !dropped) {
        parts.push_back({.kind = AnswerPart::Kind::content, .text = pending_.substr(0, tag)});
        pending_.erase(0, tag);
        said_ = true;
    }
    return true;
}

// Appends a part with the number of its call in the answer and, at the beginning of a call, its id.
void AnswerScanner::number(AnswerPart part, std::vector<AnswerPart>& parts) {
    part.index += calls_before_;
    if (part.kind == AnswerPart::Kind::tool_begin) {
        part.id = id_of(part.index, part.name);
        ++calls_;
    }
    parts.push_back(std::move(part));
}

// Returns whether pending_ is the beginning of a call. In formats without an opening tag, an object is one if its first
// key can be "name".
bool AnswerScanner::begins_call() const {
    if (!format_.tools->begin.empty() || calls_ > 0 ||
        (!format_.tools->lead.empty() && pending_.find(format_.tools->lead) != std::string::npos))
        return true;
    std::string text;
    for (const char c : pending_)
        if (blank.find(c) == blank.npos) text += c;
    constexpr std::string_view begin = "{\"name\"";
    return begin.starts_with(text) || text.starts_with(begin);
}

std::string AnswerScanner::id_of(size_t index, std::string_view name) const {
    if (format_.tools->ids == CallIds::numbered)
        return fmt::format("functions.{}:{}", name, format_.earlier_calls + index);
    const bool nine = format_.tools->ids == CallIds::nine;
    uint64_t h = 0xCBF29CE484222325u ^ index;  // FNV-1a
    for (const char c : format_.id_seed) h = (h ^ uint8_t(c)) * 0x100000001B3u;
    std::string out = nine ? "" : "call_";
    for (int i = 0; i < (nine ? 9 : 24); ++i) {
        h = (h ^ (h >> 31)) * 0x9E3779B97F4A7C15u;
        out += "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[(h >> 32) % 62];
    }
    return out;
}

AnswerParser::AnswerParser(std::unique_ptr<AnswerScanner> scanner) : scanner_(std::move(scanner)) {}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;
AnswerParser& AnswerParser::operator=(AnswerParser&&) noexcept = default;

std::vector<AnswerPart> AnswerParser::push(std::string_view text) {
    std::vector<AnswerPart> parts;
    scanner_->push(text, parts);
    return noted(std::move(parts));
}

std::vector<AnswerPart> AnswerParser::finish(bool cut_off) {
    std::vector<AnswerPart> parts;
    scanner_->finish(parts, cut_off);
    return noted(std::move(parts));
}

std::vector<AnswerPart> AnswerParser::noted(std::vector<AnswerPart> parts) {
    for (const AnswerPart& part : parts) {
        switch (part.kind) {
            case AnswerPart::Kind::reasoning:
                answer_.reasoning += part.text;
                break;
            case AnswerPart::Kind::content:
                answer_.content += part.text;
                break;
            case AnswerPart::Kind::tool_begin:
                answer_.tool_calls.push_back({part.id, part.name, ""});
                break;
            case AnswerPart::Kind::tool_arguments:
                answer_.tool_calls.back().arguments += part.text;
                break;
            case AnswerPart::Kind::tool_end:
                break;
        }
    }
    return parts;
}

}  // namespace nibble
