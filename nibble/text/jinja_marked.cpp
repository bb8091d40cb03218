#include "text/jinja_marked.h"

#include <algorithm>

namespace nibble::jinja {

Marked Marked::written(std::string text) {
    Marked out;
    out.text_ = std::move(text);
    return out;
}

Marked Marked::from_data(std::string text) {
    Marked out;
    out.mark(0, text.size());
    out.text_ = std::move(text);
    return out;
}

void Marked::mark(size_t begin, size_t end) {
    if (begin >= end) return;
    if (!data_.empty() && data_.back().end == begin)
        data_.back().end = end;
    else
        data_.push_back({begin, end});
}

Marked& Marked::add(const Marked& from, std::string_view part) {
    const size_t begin = size_t(part.data() - from.text_.data()), end = begin + part.size(), at = text_.size();
    auto range =
        std::partition_point(from.data_.begin(), from.data_.end(), [&](const TextRange& r) { return r.end <= begin; });
    for (; range != from.data_.end() && range->begin < end; ++range)
        mark(at + std::max(range->begin, begin) - begin, at + std::min(range->end, end) - begin);
    text_ += part;
    return *this;
}

Marked& Marked::add_data(std::string_view text) {
    mark(text_.size(), text_.size() + text.size());
    text_ += text;
    return *this;
}

}  // namespace nibble::jinja
