#include "parallel/lease.h"

#include "base/fields.h"
#include "base/mapped_file.h"
#include "parallel/rank_place.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <sstream>
#include <thread>

namespace nibble {
namespace {

namespace fs = std::filesystem;

// Returns a string that is equal in processes whose process numbers can be compared.
std::string process_space() {
    std::array<char, 64> space{};
    const ssize_t n = ::readlink("/proc/self/ns/pid", space.data(), space.size() - 1);
    return machine_name() + " " + (n > 0 ? space.data() : "");
}

std::string host_name() {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    return host.data();
}

// Returns the start time of a running process, which tells it from a later process with the same number; -1: it has
// ended. No value: its state cannot be read (for example, without a free file descriptor).
std::optional<int64_t> start_time(int64_t process) {
    // Reading fails with ESRCH, after opening succeeded, when the process ends in between.
    const auto text = read_text_file(fmt::format("/proc/{}/stat", process));
    if (!text.ok()) {
        const bool ended = ::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
        return ended ? std::optional<int64_t>(-1) : std::nullopt;
    }
    const size_t name_end = text->rfind(')');
    if (name_end == std::string::npos) return std::nullopt;
    std::istringstream fields(text->substr(name_end + 1));
    std::string word;
    fields >> word;
    if (word == "Z" || word == "X") return -1;  // it has ended, and its parent has not asked for its status
    constexpr int words_before = 19;
    for (int i = 0; i < words_before; ++i) fields >> word;
    int64_t time = -1;
    std::istringstream(word) >> time;
    return time;
}

std::string read_text(int fd) {
    std::string text(size_t{1} << 20, '\0');
    const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
}

bool write_text(int fd, const std::string& text) {
    return ::ftruncate(fd, 0) == 0 && ::pwrite(fd, text.data(), text.size(), 0) == std::ssize(text);
}

constexpr std::string_view released = "released\n";

}  // namespace

// Renews the files of the leases that this process holds.
struct Leases::Renewal {
    explicit Renewal(std::chrono::milliseconds period) : thread([this, period] { run(period); }) {}
    ~Renewal() {
        {
            std::lock_guard lock(mutex);
            ends = true;
        }
        wake.notify_all();
        thread.join();
    }

    void run(std::chrono::milliseconds period) {
        std::unique_lock lock(mutex);
        while (!wake.wait_for(lock, period, [&] { return ends; }))
            for (const auto& [name, fd] : held) ::futimens(fd, nullptr);
    }

    std::mutex mutex;
    std::condition_variable wake;
    bool ends = false;
    std::map<std::string, int> held;  // open files
    std::thread thread;
};

struct Leases::State {
    bool exists = false, released = false;
    LeaseHolder holder;
};

std::unique_ptr<Leases> Leases::open(const fs::path& folder, const Options& options) {
    return std::unique_ptr<Leases>(new Leases(folder, options));
}

Leases::Leases(fs::path folder, Options options)
    : folder_(std::move(folder)),
      options_(std::move(options)),
      renewal_(std::make_unique<Renewal>(options_.expiry / 6)) {}

Leases::~Leases() {
    while (!renewal_->held.empty()) release(renewal_->held.begin()->first);
}

fs::path Leases::file(const std::string& name, int number) const {
    return folder_ / fmt::format("{}.{}", name, number);
}

// Returns the largest N whose file exists, or -1.
int Leases::last(const std::string& name) {
    int& number = last_.try_emplace(name, -1).first->second;
    for (struct stat info{}; ::stat(file(name, number + 1).c_str(), &info) == 0;) ++number;
    return number;
}

Leases::State Leases::look(const std::string& name, int number) {
    State state;
    // Opening a file makes network file systems read its current time.
    const int fd = ::open(file(name, number).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return state;
    state.exists = true;
    struct stat info {};
    ::fstat(fd, &info);
    const std::string text = read_text(fd);
    ::close(fd);
    state.released = text == released;
    state.holder.text = "another process";
    std::string machine;
    std::chrono::milliseconds expiry = options_.expiry;  // the holder's if that is longer: it renews less often
    if (const auto json = parse_json(text); json.ok() && json->is_object()) {
        std::string who, host;
        int64_t process = 0, started = 0, expiry_ms = 0;
        Fields fields(*json);
        if (fields.need("who", who).ok() && fields.need("host", host).ok() && fields.need("machine", machine).ok() &&
            fields.need("process", process).ok() && fields.need("started", started).ok() &&
            fields.need("expiry_ms", expiry_ms).ok()) {
            expiry = std::max(expiry, std::chrono::milliseconds(expiry_ms));
            state.holder.text = fmt::format("{} (process {} on {})", who, process, host);
            state.holder.facts = json->value("facts", Json::object());
            state.holder.here = machine == process_space();
            // Only a start time that was read is evidence, here (`now`) and in the holder (0: it could not read it).
            const auto now = state.holder.here ? start_time(process) : std::nullopt;
            state.holder.ended = now && (*now < 0 || (started > 0 && *now != started));
        }
    }
    const auto now = std::chrono::steady_clock::now();
    const int64_t time = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    Seen& seen = seen_[{name, number}];
    if (seen.time != time) seen = {time, now};
    if (now - seen.since > expiry) state.holder.ended = true;
    return state;
}

Result<std::optional<int>> Leases::take(const std::string& name, const Json& facts) {
    for (;;) {
        const int number = last(name);
        if (number >= 0) {
            const State state = look(name, number);
            if (!state.exists) return fail(ErrorKind::file, "{}: is gone", file(name, number).string());
            if (!state.released && !state.holder.ended) return std::optional<int>();
        }
        const fs::path path = file(name, number + 1);
        const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) return fail(ErrorKind::file, "{}: cannot create: {}", path.string(), std::strerror(errno));
        const Json text{{"who", options_.who},
                        {"host", host_name()},
                        {"machine", process_space()},
                        {"process", int64_t{::getpid()}},
                        {"started", start_time(::getpid()).value_or(0)},
                        {"expiry_ms", int64_t{options_.expiry.count()}},
                        {"facts", facts}};
        if (!write_text(fd, text.dump(-1, ' ', false, Json::error_handler_t::replace))) {
            const int why = errno;
            write_text(fd, std::string(released));
            ::close(fd);
            return fail(ErrorKind::file, "{}: cannot write: {}", path.string(), std::strerror(why));
        }
        std::lock_guard lock(renewal_->mutex);
        renewal_->held[name] = fd;
        return std::optional(number + 1);
    }
}

void Leases::release(const std::string& name) {
    std::lock_guard lock(renewal_->mutex);
    const auto held = renewal_->held.find(name);
    if (held == renewal_->held.end()) return;
    write_text(held->second, std::string(released));
    ::close(held->second);
    renewal_->held.erase(held);
}

std::optional<LeaseHolder> Leases::holder(const std::string& name) {
    const int number = last(name);
    if (number < 0) return std::nullopt;
    State state = look(name, number);
    if (!state.exists || state.released) return std::nullopt;
    return std::move(state.holder);
}

}  // namespace nibble
