#include "data/parquet_rows.h"

#include "base/child_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

namespace nibble {
namespace {

constexpr size_t most_line_bytes = size_t{256} << 20;

// Prints one line of JSON per row. A line that begins with "!" is an error. The working folder is removed from the
// module path.
constexpr const char* reader_program = R"py(
import sys
sys.path = [p for p in sys.path if p]
import json
def stop(why):
    sys.stdout.write("!" + " ".join(str(why).split()) + "\n"); sys.exit(0)
try:
    import pyarrow.parquet as parquet
except ImportError:
    stop("pyarrow")
try:
    file = parquet.ParquetFile(sys.argv[1])
    names = file.schema_arrow.names
    wanted = [n for n in names if n in sys.argv[2:]]
    if not wanted:
        stop("has the columns " + ", ".join(names) + "; none of them is known: " + ", ".join(sys.argv[2:]))
    for batch in file.iter_batches(batch_size=256, columns=wanted):
        for row in batch.to_pylist():
            sys.stdout.write(json.dumps(row, default=str, separators=(",", ":")) + "\n")
except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as e:
    stop(e)
)py";

constexpr std::string_view install =
    "is a Parquet file, which pyarrow reads: install it for python3 (pip install pyarrow), or write the rows as .jsonl";

}  // namespace

Result<ParquetRows> ParquetRows::open(const std::filesystem::path& file, std::span<const std::string_view> keys) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail("pipe: {}", std::strerror(errno));
    std::vector<std::string> words{"python3", "-c", reader_program, std::filesystem::absolute(file).string()};
    words.insert(words.end(), keys.begin(), keys.end());
    // Ctrl-C reaches nibble alone, which ends the reader.
    const auto reader =
        start_child({.words = std::move(words),
                     .redirections = {{0, ChildProgram::null_device}, {1, ends[1]}, {2, ChildProgram::null_device}},
                     .own_group = true});
    ::close(ends[1]);
    if (reader.ok()) return ParquetRows(*reader, ends[0]);
    ::close(ends[0]);
    return fail("{}; python3: {}", install, reader.error().message());
}

ParquetRows::ParquetRows(ParquetRows&& other) noexcept
    : reader_(std::exchange(other.reader_, -1)),
      pipe_(std::exchange(other.pipe_, -1)),
      buffer_(std::move(other.buffer_)),
      begin_(other.begin_) {}

ParquetRows& ParquetRows::operator=(ParquetRows&& other) noexcept {
    std::swap(reader_, other.reader_);
    std::swap(pipe_, other.pipe_);
    std::swap(buffer_, other.buffer_);
    std::swap(begin_, other.begin_);
    return *this;
}

ParquetRows::~ParquetRows() {
    if (pipe_ >= 0) ::close(pipe_);
    if (reader_ <= 0) return;
    ::kill(-reader_, SIGKILL);
    while (::waitpid(reader_, nullptr, 0) < 0 && errno == EINTR) {
    }
}

Result<bool> ParquetRows::fill() {
    buffer_.erase(0, begin_);
    begin_ = 0;
    if (buffer_.size() > most_line_bytes) return fail("a row has more than 256 MiB");
    const size_t have = buffer_.size(), more = size_t{1} << 16;
    buffer_.resize(have + more);
    ssize_t got = 0;
    do got = ::read(pipe_, buffer_.data() + have, more);
    while (got < 0 && errno == EINTR);
    buffer_.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0) return fail("cannot be read: {}", std::strerror(errno));
    return got > 0;
}

// Checks the reader's exit status, because it may have been killed before the end.
Status ParquetRows::finish() {
    int status = 0;
    while (::waitpid(std::exchange(reader_, -1), &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0 || begin_ < buffer_.size())
        return fail("the Python that reads it ended with status {}", WIFEXITED(status) ? WEXITSTATUS(status) : status);
    return Ok{};
}

Result<std::optional<std::string>> ParquetRows::next() {
    for (size_t look = begin_;;) {
        const size_t end = buffer_.find('\n', look);
        if (end != buffer_.npos) {
            std::string line = buffer_.substr(begin_, end - begin_);
            begin_ = end + 1;
            if (line == "!pyarrow") return fail("{}", install);
            if (line.starts_with('!')) return fail("{}", line.substr(1));
            return std::optional(std::move(line));
        }
        look = buffer_.size() - begin_;
        if (pipe_ < 0 || reader_ < 0) return std::optional<std::string>();
        NIBBLE_TRY(const bool more, fill());
        if (more) continue;
        NIBBLE_CHECK(finish());
        return std::optional<std::string>();
    }
}

}  // namespace nibble
