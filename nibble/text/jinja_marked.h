// Text that records which bytes the template wrote and which are data from messages, tools and other variables of the
// caller. Only text written by the template may become control tokens. Every string of the engine has this type, and
// creating one from a plain string requires naming its origin.
#pragma once

#include "text/text_range.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace nibble::jinja {

class Marked {
public:
    Marked() = default;
    static Marked written(std::string text);  // by the template
    static Marked from_data(std::string text);

    const std::string& text() const { return text_; }
    const TextRanges& data() const { return data_; }
    size_t size() const { return text_.size(); }
    bool empty() const { return text_.empty(); }
    int64_t cost() const { return int64_t(64 + text_.size() + data_.size() * sizeof(TextRange)); }

    // Appended plain text counts as written by the template.
    Marked& operator+=(char c) { return text_ += c, *this; }
    Marked& operator+=(std::string_view text) { return text_ += text, *this; }
    Marked& operator+=(const Marked& more) { return add(more, more.text_); }
    // Appends `part`, a view into from.text(). `from` must be another object.
    Marked& add(const Marked& from, std::string_view part);
    Marked& add_data(std::string_view text);
    // Wraps `text`, derived from this text: it is data if any byte of this text is data.
    Marked changed(std::string text) const {
        return data_.empty() ? written(std::move(text)) : from_data(std::move(text));
    }
    Marked part(std::string_view part) const { return Marked().add(*this, part); }

private:
    void mark(size_t begin, size_t end);
    std::string text_;
    TextRanges data_;
};

}  // namespace nibble::jinja
