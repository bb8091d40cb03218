#include "eval/reference_file.h"

#include "checkpoint/output_place.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace nibble {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

constexpr double levels = 65535;

int64_t reference_row_bytes(int64_t vocab) { return 8 + 2 * vocab; }

// Returns one line of JSON, padded with spaces to a multiple of 64 bytes.
std::string header_of(const ReferenceShape& shape) {
    Json facts = Json::object();
    for (const auto& [name, value] : shape.identity) facts[name] = value;
    int64_t rows = 0;
    for (const int64_t r : shape.rows) rows += r;
    std::string text = Json{{"nibble_reference", 1}, {"vocab", shape.vocab}, {"rows", rows}, {"made_from", facts}}.dump(
        -1, ' ', false, Json::error_handler_t::replace);
    text.resize((text.size() + 64) / 64 * 64 - 1, ' ');
    return text + '\n';
}

int64_t whole_bytes(const ReferenceShape& shape) {
    int64_t bytes = std::ssize(header_of(shape));
    for (const int64_t rows : shape.rows) bytes += rows * reference_row_bytes(shape.vocab);
    return bytes;
}

Error differs(const Json& old_header, const Json& header) {
    for (const auto& [name, value] : header["made_from"].items()) {
        const Json before = old_header.contains("made_from") && old_header["made_from"].is_object()
                                ? old_header["made_from"].value(name, Json())
                                : Json();
        if (before != value)
            return fail("holds another reference: {} was {}, is {}; to start over, remove it", name, before.dump(),
                        value.dump());
    }
    return fail("is not a file of reference log-probabilities of this shape; to start over, remove it");
}

}  // namespace

void encode_row(std::span<const float> row, std::span<std::byte> out) {
    const auto [low, high] = std::ranges::minmax(row);
    const float step = static_cast<float>((double(high) - double(low)) / levels);
    std::memcpy(out.data(), &high, 4);
    std::memcpy(out.data() + 4, &step, 4);
    const double scale = step > 0 ? 1.0 / double(step) : 0.0;
    for (size_t i = 0; i < row.size(); ++i) {
        const auto code =
            static_cast<uint16_t>(std::min(levels, std::nearbyint((double(high) - double(row[i])) * scale)));
        std::memcpy(out.data() + 8 + 2 * i, &code, 2);
    }
}

void decode_row(std::span<const std::byte> in, std::span<float> row) {
    float high = 0, step = 0;
    std::memcpy(&high, in.data(), 4);
    std::memcpy(&step, in.data() + 4, 4);
    for (size_t i = 0; i < row.size(); ++i) {
        uint16_t code = 0;
        std::memcpy(&code, in.data() + 8 + 2 * i, 2);
        row[i] = static_cast<float>(double(high) - double(code) * double(step));
    }
}

int64_t ReferenceFile::offset(int64_t window) const {
    int64_t rows = 0;
    for (int64_t w = 0; w < window; ++w) rows += shape_.rows[static_cast<size_t>(w)];
    return header_ + rows * reference_row_bytes(shape_.vocab);
}

// Only whole windows are written, in order, so the length of the file gives their number.
Result<ReferenceFile> ReferenceFile::open(const std::filesystem::path& path, const ReferenceShape& shape) {
    std::error_code none;
    const auto present = static_cast<int64_t>(std::filesystem::file_size(path, none));
    NIBBLE_CHECK(check_output_file(path, whole_bytes(shape) - (none ? 0 : present)));
    NIBBLE_TRY(FileDescriptor fd, FileDescriptor::open(path, O_RDWR | O_CREAT));
    ReferenceFile file(std::move(fd), shape);
    const std::string header = header_of(shape);
    file.header_ = static_cast<int64_t>(header.size());
    NIBBLE_TRY(const int64_t size, file.file_.size());
    std::string found(static_cast<size_t>(std::min(size, file.header_)), '\0');
    NIBBLE_CHECK(file.file_.read_at(std::as_writable_bytes(std::span(found)), 0));
    if (found != header) {
        const bool torn = header.starts_with(found);  // an empty file, or one whose writer died within the header
        if (!torn) {
            const auto old = parse_json(std::string_view(found).substr(0, found.find_last_not_of(" \n") + 1));
            const auto now = parse_json(std::string_view(header).substr(0, header.find_last_not_of(" \n") + 1));
            return differs(old.ok() && old->is_object() ? *old : Json::object(), *now).within(path.string());
        }
        NIBBLE_CHECK(file.file_.write_at(std::as_bytes(std::span(header)), 0));
        return file;
    }
    while (!file.complete() && file.offset(file.windows_ + 1) <= size) ++file.windows_;
    return file;
}

Status ReferenceFile::append(std::span<const float> log_probs) {
    const auto vocab = static_cast<size_t>(shape_.vocab),
               width = static_cast<size_t>(reference_row_bytes(shape_.vocab));
    const size_t rows = log_probs.size() / vocab;
    for (const float v : log_probs)
        if (!std::isfinite(v)) return fail("{}: a log-probability is not finite", file_.path().string());
    std::vector<std::byte> bytes(rows * width);
    for (size_t r = 0; r < rows; ++r)
        encode_row(log_probs.subspan(r * vocab, vocab), std::span(bytes).subspan(r * width, width));
    NIBBLE_CHECK(file_.write_at(bytes, offset(windows_)));
    ++windows_;
    return Ok{};
}

Status ReferenceFile::read(int64_t window, std::span<float> log_probs) const {
    const auto vocab = static_cast<size_t>(shape_.vocab),
               width = static_cast<size_t>(reference_row_bytes(shape_.vocab));
    const size_t rows = log_probs.size() / vocab;
    std::vector<std::byte> bytes(rows * width);
    NIBBLE_CHECK(file_.read_at(bytes, offset(window)));
    for (size_t r = 0; r < rows; ++r) {
        decode_row(std::span(bytes).subspan(r * width, width), log_probs.subspan(r * vocab, vocab));
        const float first = log_probs[r * vocab];
        float largest = 0, step = 0;
        std::memcpy(&largest, bytes.data() + r * width, 4);
        std::memcpy(&step, bytes.data() + r * width + 4, 4);
        // Rounding may raise a log-probability of 0 by an ulp or two.
        if (!std::isfinite(first) || !(largest <= 1e-3f) || !(step >= 0 && step <= 1e4f))
            return fail("{}: row {} of window {} is damaged; to start over, remove it", file_.path().string(), r,
                        window);
    }
    return Ok{};
}

}  // namespace nibble
