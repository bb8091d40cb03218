// A record of the finished parts of a long job on disk: an append-only text file in its output folder with one JSON
// value per line. The first line identifies the job. Each further line is one finished unit with its result (for a
// quantization: the checksums of the stored bytes and its part of the report).
//
// A process may be killed while it writes a line, so an incomplete last line is removed when the file is opened.
#pragma once

#include "base/json.h"

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace nibble {

// Named facts about a job. A job continues another only if all facts are equal. Long facts are replaced by their
// hash_text().
using JobIdentity = std::vector<std::pair<std::string, std::string>>;

std::string hash_text(std::string_view text);  // returns XXH3 as 16 hexadecimal digits

class Journal {
public:
    // Opens or starts the journal in `folder`. Errors: the folder belongs to another job (the message lists the facts
    // that differ), a damaged line before the last one, the file cannot be written.
    static Result<std::unique_ptr<Journal>> open(const std::filesystem::path& folder, const JobIdentity& identity,
                                                 std::string_view name = file_name);
    // Reads a journal that another process may be writing; append() fails. Errors: as above; there is no file.
    static Result<std::unique_ptr<Journal>> read(const std::filesystem::path& path, const JobIdentity& identity);
    ~Journal();
    Journal(const Journal&) = delete;
    Journal& operator=(const Journal&) = delete;

    // Returns what an earlier run last recorded for a unit (the `result` of append); no value: it did not finish it.
    std::optional<Json> finished(int64_t unit) const;
    // Returns true if any run, including this one, has finished the unit. Not thread-safe with append().
    bool holds(int64_t unit) const { return noted_.contains(unit); }

    // Adds a line; thread-safe. If the line cannot be written completely, its written part is removed.
    Status append(int64_t unit, Json result);

    // Returns true if the file is a journal with a finished unit; false also if it cannot be read.
    static bool holds_units(const std::filesystem::path& file);

    // Files that begin with ".nibble-" are removed when the export is finished (checkpoint/work_folder.h).
    static constexpr std::string_view file_name = ".nibble-journal.jsonl";

private:
    Journal(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
    Status load(const JobIdentity& identity);
    Status begin(const JobIdentity& identity);
    Status write_line(const Json& line);
    Error start_over(const Error& error) const;

    std::filesystem::path path_;
    int fd_;
    int64_t size_ = 0;  // bytes of the complete lines
    std::mutex mutex_;
    std::unordered_map<int64_t, std::string> finished_;  // lines as text, which needs a tenth of the memory of parsed
                                                         // JSON
    std::unordered_set<int64_t> noted_;
};

}  // namespace nibble
