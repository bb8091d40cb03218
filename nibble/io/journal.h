// What a long job has finished so far, on disk: an append-only text file in its output folder, one JSON value per line.
// The first line says what job this is; each further line is one finished unit and what came of it (of a quantization:
// the checksums of the stored bytes and its part of the report).
//
// A process may die between any two bytes of a line: a last line that is incomplete is cut off when the file is opened.
#pragma once

#include "base/json.h"

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace nibble {

// Named facts; a job continues another only when all are equal. `hash_text` stands for long ones.
using JobIdentity = std::vector<std::pair<std::string, std::string>>;

std::string hash_text(std::string_view text);  // XXH3, 16 hexadecimal digits

class Journal {
public:
    // Opens or starts the journal in `folder`. Errors: the folder belongs to another job (says which facts differ), a
    // line in the middle is damaged, the file cannot be written.
    static Result<std::unique_ptr<Journal>> open(const std::filesystem::path& folder, const JobIdentity& identity);
    ~Journal();
    Journal(const Journal&) = delete;
    Journal& operator=(const Journal&) = delete;

    // What an earlier run noted last about a unit (the `result` of append), if it finished it.
    std::optional<Json> finished(int64_t unit) const;
    // Whether any run, this one included, finished it. Not while others append.
    bool holds(int64_t unit) const { return noted_.contains(unit); }

    // Adds a line; safe from any thread. When the line cannot be written whole, what was written of it is cut off
    // again.
    Status append(int64_t unit, Json result);

    // Whether the file is a journal with a finished unit in it; false also when it cannot be read.
    static bool holds_units(const std::filesystem::path& file);

    // Files that begin with ".nibble-" are removed when the export is finished (checkpoint/work_folder.h).
    static constexpr std::string_view file_name = ".nibble-journal.jsonl";

private:
    Journal(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
    Status load(const JobIdentity& identity);
    Status write_line(const Json& line);
    Error start_over(const Error& error) const;

    std::filesystem::path path_;
    int fd_;
    int64_t size_ = 0;  // of the whole lines
    std::mutex mutex_;
    std::unordered_map<int64_t, std::string> finished_;  // lines as text: a tenth of the parsed size
    std::unordered_set<int64_t> noted_;
};

}  // namespace nibble
