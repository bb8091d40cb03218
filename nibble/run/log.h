// The log of a run: a file of JSON lines. The first line says what run it is, lines with "step" follow as it goes.
#pragma once

#include "base/json.h"

#include <filesystem>
#include <vector>

namespace nibble {

inline constexpr std::string_view run_log_name = "train.jsonl";

class RunLog {
public:
    // A new log with this first line.
    static Result<RunLog> create(const std::filesystem::path& file, const Json& first);
    // Goes on: keeps the lines up to `step` and the first one, and a last line that a kill cut off goes. Without a
    // file: a new one.
    static Result<RunLog> resume(const std::filesystem::path& file, const Json& first, int64_t step);
    RunLog(RunLog&& other) noexcept;
    RunLog& operator=(RunLog&&) = delete;
    ~RunLog();

    // One line, written at once. Error: it could not be written whole; the file is as before then.
    Status add(const Json& line);
    // Writes `line` in place of the last one, which is not the first.
    Status replace_last(const Json& line);

    const std::filesystem::path& file() const { return file_; }

private:
    RunLog(std::filesystem::path file, int fd, int64_t size) : file_(std::move(file)), fd_(fd), size_(size) {}
    static Result<RunLog> open(const std::filesystem::path& file);

    std::filesystem::path file_;
    int fd_ = -1;
    int64_t size_ = 0;  // of whole lines
};

// All whole lines. Errors: a line that is no JSON object, with its number.
Result<std::vector<Json>> read_run_log(const std::filesystem::path& file);

}  // namespace nibble
