#include "run/log.h"

#include "base/fields.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace nibble {
namespace {

std::string line_text(const Json& line) { return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace

Result<std::vector<Json>> read_run_log(const std::filesystem::path& file) {
    NIBBLE_TRY(const std::string text, read_text_file(file, size_t{4} << 30));
    std::vector<Json> lines;
    for (size_t at = 0; at < text.size();) {
        const size_t end = text.find('\n', at);
        if (end == text.npos) break;  // an incomplete last line of a killed process
        NIBBLE_TRY(Json line, parse_json(std::string_view(text).substr(at, end - at))
                                  .within(fmt::format("{}: line {}", file.string(), lines.size() + 1)));
        if (!line.is_object()) return fail("{}: line {}: is not a JSON object", file.string(), lines.size() + 1);
        lines.push_back(std::move(line));
        at = end + 1;
    }
    return lines;
}

Result<RunLog> RunLog::open(const std::filesystem::path& file) {
    const int fd = ::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    struct stat info {};
    if (fd < 0 || ::fstat(fd, &info) != 0) {
        const int problem = errno;
        if (fd >= 0) ::close(fd);
        return fail("{}: cannot open: {}", file.string(), std::strerror(problem));
    }
    return RunLog(file, fd, info.st_size);
}

Result<RunLog> RunLog::create(const std::filesystem::path& file, const Json& first) {
    NIBBLE_CHECK(write_file_atomically(file, line_text(first)));
    return open(file);
}

Result<RunLog> RunLog::resume(const std::filesystem::path& file, const Json& first, int64_t step) {
    std::error_code error;
    if (!std::filesystem::exists(file, error)) return create(file, first);
    NIBBLE_TRY(const auto lines, read_run_log(file));
    std::string kept = line_text(first);
    for (size_t i = 1; i < lines.size(); ++i) {
        int64_t of = 0;
        if (lines[i].contains("step")) NIBBLE_CHECK(Fields(lines[i]).need("step", of).within(file.string()));
        if (of <= step) kept += line_text(lines[i]);
    }
    NIBBLE_CHECK(write_file_atomically(file, kept));
    return open(file);
}

RunLog::RunLog(RunLog&& other) noexcept
    : file_(std::move(other.file_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

RunLog::~RunLog() {
    if (fd_ >= 0) ::close(fd_);
}

Status RunLog::replace_last(const Json& line) {
    NIBBLE_TRY(const std::string text, read_text_file(file_, size_t{4} << 30));
    const size_t end = text.empty() ? text.npos : text.rfind('\n', text.size() - 2);
    if (end == text.npos) return fail("{}: has no line to replace", file_.string());
    if (::ftruncate(fd_, static_cast<off_t>(end + 1)) != 0)
        return fail("{}: cannot be shortened: {}", file_.string(), std::strerror(errno));
    size_ = static_cast<int64_t>(end + 1);
    return add(line);
}

Status RunLog::add(const Json& line) {
    const std::string text = line_text(line);
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written == static_cast<ssize_t>(text.size())) {
        size_ += written;
        return Ok{};
    }
    const std::string why = written < 0 ? std::strerror(errno) : "the disk is full";
    if (::ftruncate(fd_, size_) != 0)
        return fail("{}: cannot be written, and the incomplete line cannot be removed", file_.string());
    return fail("{}: cannot write: {}", file_.string(), why);
}

}  // namespace nibble
