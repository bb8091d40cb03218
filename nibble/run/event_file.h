// Writes TensorBoard event files: scalars by tag and step. A file is a sequence of TFRecords (uint64 length, masked
// CRC32C of the length, the record, masked CRC32C of the record; all little-endian). Each record is an Event in
// protobuf encoding: wall_time = 1 (double), step = 2 (int64), file_version = 3 ("brain.Event:2", first record only),
// summary = 5 with values = 1, each with tag = 1 and simple_value = 2 (float).
#pragma once

#include "base/error.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct EventScalar {
    std::string tag;  // such as "train/loss"
    float value = 0;
};

// CRC-32C (Castagnoli), and its masked form in TFRecords.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

// Return the bytes of one record. `wall_time`: seconds since 1970.
std::string event_header(double wall_time);
std::string event_record(double wall_time, int64_t step, std::span<const EventScalar> scalars);

class EventFile {
public:
    // Creates FOLDER/events.out.tfevents.NAME with its header, and the folder if necessary.
    static Result<EventFile> create(const std::filesystem::path& folder, std::string_view name, double wall_time);
    EventFile(EventFile&& other) noexcept;
    EventFile& operator=(EventFile&&) = delete;
    ~EventFile();

    Status add(double wall_time, int64_t step, std::span<const EventScalar> scalars);
    const std::filesystem::path& file() const { return file_; }

private:
    EventFile(std::filesystem::path file, int fd) : file_(std::move(file)), fd_(fd) {}
    Status write(std::string_view record);

    std::filesystem::path file_;
    int fd_ = -1;
};

}  // namespace nibble
