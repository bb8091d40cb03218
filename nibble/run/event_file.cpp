#include "run/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace nibble {
namespace {

constexpr uint32_t castagnoli = 0x82F63B78;  // the polynomial, bit-reversed

constexpr std::array<uint32_t, 256> crc_table = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit) c = c & 1 ? c >> 1 ^ castagnoli : c >> 1;
        table[i] = c;
    }
    return table;
}();

template <class T>
void append_little_endian(std::string& out, T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out.append(bytes, sizeof(T));
}

void append_varint(std::string& out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
    out += static_cast<char>(value);
}

// Fields by protobuf number. Wire types: 0 varint, 1 eight bytes, 2 bytes with a length, 5 four bytes.
void append_key(std::string& out, uint32_t field, uint32_t wire) { append_varint(out, field << 3 | wire); }

void append_bytes(std::string& out, uint32_t field, std::string_view bytes) {
    append_key(out, field, 2);
    append_varint(out, bytes.size());
    out += bytes;
}

std::string event_with_time(double wall_time) {
    std::string event;
    append_key(event, 1, 1);
    append_little_endian(event, wall_time);
    return event;
}

std::string framed(std::string_view event) {
    std::string out;
    append_little_endian(out, static_cast<uint64_t>(event.size()));
    append_little_endian(out, masked_crc32c(out));
    out += event;
    append_little_endian(out, masked_crc32c(event));
    return out;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
    uint32_t c = ~uint32_t{0};
    for (const char b : bytes) c = crc_table[(c ^ static_cast<unsigned char>(b)) & 0xFF] ^ c >> 8;
    return ~c;
}

uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }

std::string event_header(double wall_time) {
    std::string event = event_with_time(wall_time);
    append_bytes(event, 3, "brain.Event:2");
    return framed(event);
}

std::string event_record(double wall_time, int64_t step, std::span<const EventScalar> scalars) {
    std::string event = event_with_time(wall_time), summary;
    append_key(event, 2, 0);
    append_varint(event, static_cast<uint64_t>(step));
    for (const EventScalar& scalar : scalars) {
        std::string value;
        append_bytes(value, 1, scalar.tag);
        append_key(value, 2, 5);
        append_little_endian(value, scalar.value);
        append_bytes(summary, 1, value);
    }
    append_bytes(event, 5, summary);
    return framed(event);
}

Result<EventFile> EventFile::create(const std::filesystem::path& folder, std::string_view name, double wall_time) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return fail("{}: cannot create: {}", folder.string(), error.message());
    const auto path = folder / fmt::format("events.out.tfevents.{}", name);
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return fail("{}: cannot create: {}", path.string(), std::strerror(errno));
    EventFile file(path, fd);
    NIBBLE_CHECK(file.write(event_header(wall_time)));
    return file;
}

EventFile::EventFile(EventFile&& other) noexcept : file_(std::move(other.file_)), fd_(std::exchange(other.fd_, -1)) {}

EventFile::~EventFile() {
    if (fd_ >= 0) ::close(fd_);
}

Status EventFile::write(std::string_view record) {
    const ssize_t written = ::write(fd_, record.data(), record.size());
    if (written == static_cast<ssize_t>(record.size())) return Ok{};
    return fail("{}: cannot write: {}", file_.string(), written < 0 ? std::strerror(errno) : "the disk is full");
}

Status EventFile::add(double wall_time, int64_t step, std::span<const EventScalar> scalars) {
    return write(event_record(wall_time, step, scalars));
}

}  // namespace nibble
