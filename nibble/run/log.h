// The log of a run: a JSON Lines file. The first line describes the run; lines with "step" follow.
#pragma once

#include "base/json.h"

#include <filesystem>
#include <vector>

namespace nibble {

inline constexpr std::string_view run_log_name = "train.jsonl";

class RunLog {
public:
    // Creates a log with this first line.
    static Result<RunLog> create(const std::filesystem::path& file, const Json& first);
    // Resumes a log: keeps its first line and the lines up to `step`, and removes an incomplete last line. Creates the
    // log if there is no file.
    static Result<RunLog> resume(const std::filesystem::path& file, const Json& first, int64_t step);
    RunLog(RunLog&& other) noexcept;
    RunLog& operator=(RunLog&&) = delete;
    ~RunLog();

    // Writes one line at once. Error: it could not be written completely; the file is then unchanged.
    Status add(const Json& line);
    // Replaces the last line, which must not be the first one, by `line`.
    Status replace_last(const Json& line);

    const std::filesystem::path& file() const { return file_; }

private:
    RunLog(std::filesystem::path file, int fd, int64_t size) : file_(std::move(file)), fd_(fd), size_(size) {}
    static Result<RunLog> open(const std::filesystem::path& file);

    std::filesystem::path file_;
    int fd_ = -1;
    int64_t size_ = 0;  // bytes of complete lines
};

// Returns all complete lines. Error: the number of a line that is not a JSON object.
Result<std::vector<Json>> read_run_log(const std::filesystem::path& file);

}  // namespace nibble
