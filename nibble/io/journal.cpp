#include "io/journal.h"

#include "base/fields.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>

#include <cerrno>
#include <cstring>

namespace nibble {
namespace {

constexpr int journal_version = 3;

Json identity_line(const JobIdentity& identity) {
    Json facts = Json::object();
    for (const auto& [name, value] : identity) facts[name] = value;
    return Json{{"nibble_journal", journal_version}, {"job", std::move(facts)}};
}

// Returns the facts that differ: "recipe and plan: 3f.. was 77..".
std::string differences(const Json& old_facts, const JobIdentity& identity) {
    std::string text;
    const auto add = [&](std::string_view name, std::string_view before, std::string_view now) {
        text += fmt::format("{}{} (was {}, is {})", text.empty() ? "" : "; ", name, before, now);
    };
    for (const auto& [name, value] : identity) {
        std::string before = "absent";
        if (const auto found = old_facts.find(name); found != old_facts.end() && !json_value(*found, before))
            before = "damaged";
        if (before != value) add(name, before, value);
    }
    for (const auto& [name, value] : old_facts.items()) {
        const auto same = [&name = name](const auto& fact) { return fact.first == name; };
        std::string before = "damaged";
        json_value(value, before);
        if (std::none_of(identity.begin(), identity.end(), same)) add(name, before, "absent");
    }
    return text;
}

Status check_identity(const Json& line, const JobIdentity& identity) {
    int version = 0;
    Fields fields(line);
    NIBBLE_CHECK(fields.need("nibble_journal", version));
    if (version != journal_version)
        return fail(ErrorKind::file, "written by another version of nibble (journal version {})", version);
    NIBBLE_TRY(const Json* facts, fields.object("job"));
    const std::string text = differences(*facts, identity);
    if (!text.empty()) return fail(ErrorKind::file, "the unfinished work belongs to another job: {}", text);
    return Ok{};
}

}  // namespace

std::string hash_text(std::string_view text) { return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size())); }

Journal::~Journal() { ::close(fd_); }

Result<std::unique_ptr<Journal>> Journal::open(const std::filesystem::path& folder, const JobIdentity& identity,
                                               std::string_view name) {
    const std::filesystem::path path = folder / name;
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return fail(ErrorKind::file, "{}: cannot open: {}", path.string(), std::strerror(errno));
    std::unique_ptr<Journal> journal(new Journal(path, fd));
    NIBBLE_CHECK(journal->load(identity).within(path.string()));
    NIBBLE_CHECK(journal->begin(identity).within(path.string()));
    return journal;
}

Result<std::unique_ptr<Journal>> Journal::read(const std::filesystem::path& path, const JobIdentity& identity) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(ErrorKind::file, "{}: cannot open: {}", path.string(), std::strerror(errno));
    std::unique_ptr<Journal> journal(new Journal(path, fd));
    NIBBLE_CHECK(journal->load(identity).within(path.string()));
    return journal;
}

bool Journal::holds_units(const std::filesystem::path& file) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    std::string text(size_t{1} << 16, '\0');
    int lines = 0;
    while (lines < 2) {
        const ssize_t n = ::read(fd, text.data(), text.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        lines += static_cast<int>(std::count(text.begin(), text.begin() + n, '\n'));
    }
    ::close(fd);
    return lines >= 2;
}

Error Journal::start_over(const Error& error) const {
    return fail(ErrorKind::file, "{}; to start over, remove {}", error.message(), path_.parent_path().string());
}

// Reads line by line, because the file of a model with 100,000 tensors is large.
Status Journal::load(const JobIdentity& identity) {
    std::string text, buffer(size_t{1} << 20, '\0');
    int64_t line = 0, line_end = 0;
    std::optional<Error> damaged;  // an error only if complete lines follow
    for (;;) {
        const ssize_t n = ::read(fd_, buffer.data(), buffer.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(ErrorKind::file, "cannot read: {}", std::strerror(errno));
        if (n == 0) break;
        text.append(buffer.data(), static_cast<size_t>(n));
        size_t begin = 0;
        for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
            ++line;
            line_end += static_cast<int64_t>(end + 1 - begin);
            if (damaged) return start_over(*damaged);
            auto json = parse_json(std::string_view(text).substr(begin, end - begin));
            int64_t unit = 0;
            if (!json.ok() || (line > 1 && !(Fields(*json).need("unit", unit).ok() && json->contains("result")))) {
                damaged = fail(ErrorKind::file, "line {} is damaged", line);
                continue;
            }
            if (line == 1) {
                const Status same = check_identity(*json, identity);
                if (!same.ok()) return start_over(same.error());
            } else {
                finished_.insert_or_assign(unit, text.substr(begin, end - begin));
                noted_.insert(unit);
            }
            size_ = line_end;
        }
        text.erase(0, begin);
    }
    return Ok{};
}

// Removes what follows the last complete line, and writes the first line of a new journal.
Status Journal::begin(const JobIdentity& identity) {
    if (::ftruncate(fd_, size_) != 0)
        return fail(ErrorKind::file, "cannot remove an incomplete last line: {}", std::strerror(errno));
    return size_ == 0 ? write_line(identity_line(identity)) : Ok{};
}

std::optional<Json> Journal::finished(int64_t unit) const {
    const auto found = finished_.find(unit);
    if (found == finished_.end()) return std::nullopt;
    auto line = parse_json(found->second);  // cannot fail: it was parsed when it was read
    return line.ok() ? std::optional<Json>(std::move((*line)["result"])) : std::nullopt;
}

Status Journal::append(int64_t unit, Json result) {
    const Json line{{"unit", unit}, {"result", std::move(result)}};
    std::lock_guard lock(mutex_);
    NIBBLE_CHECK(write_line(line).within(path_.string()));
    noted_.insert(unit);
    return Ok{};
}

Status Journal::write_line(const Json& line) {
    const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    for (size_t done = 0; done < text.size();) {
        const ssize_t n = ::pwrite(fd_, text.data() + done, text.size() - done, size_ + static_cast<off_t>(done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            const int why = n < 0 ? errno : ENOSPC;
            if (::ftruncate(fd_, size_) != 0)
                return fail(ErrorKind::file, "cannot write, and cannot remove what was written: {}",
                            std::strerror(why));
            return fail(ErrorKind::file, "cannot write: {}", std::strerror(why));
        }
        done += static_cast<size_t>(n);
    }
    size_ += static_cast<int64_t>(text.size());
    return Ok{};
}

}  // namespace nibble
