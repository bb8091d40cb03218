#include "base/sandbox.h"

#include "base/child_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int filter_fd = 3;

#if defined(__x86_64__)
constexpr uint32_t own_architecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t own_architecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t own_architecture = 0;
#endif

// Blocks system calls: new processes (threads are allowed), sockets, and kernel interfaces that a judged program does
// not need. A blocked call fails with EPERM. clone3, whose flags a filter cannot read, fails with ENOSYS, so the C
// library falls back to clone.
std::vector<sock_filter> system_call_filter() {
    constexpr uint32_t refuse = SECCOMP_RET_ERRNO | EPERM, absent = SECCOMP_RET_ERRNO | ENOSYS;
    constexpr auto load = [](size_t offset) {
        return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
    };
    constexpr auto answer = [](uint32_t value) { return sock_filter BPF_STMT(BPF_RET | BPF_K, value); };
    constexpr auto unless_equal = [](uint32_t value) {  // skips one instruction
        return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    };
    std::vector<sock_filter> p{load(offsetof(seccomp_data, arch)),
                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, own_architecture, 1, 0),
                               answer(SECCOMP_RET_KILL_PROCESS), load(offsetof(seccomp_data, nr))};
#if defined(__x86_64__)
    // The call numbers of x32, a second set of numbers for the same calls.
    p.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1));
    p.push_back(answer(SECCOMP_RET_KILL_PROCESS));
#endif
    p.push_back(unless_equal(SYS_clone3));
    p.push_back(answer(absent));
    for (const long call : {
             SYS_socket, SYS_socketpair, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_unshare,
                 SYS_setns, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_bpf, SYS_perf_event_open,
                 SYS_userfaultfd, SYS_io_uring_setup, SYS_add_key, SYS_request_key, SYS_keyctl, SYS_memfd_create,
                 SYS_shmget, SYS_msgget, SYS_fsopen, SYS_open_tree, SYS_move_mount, SYS_fsmount, SYS_name_to_handle_at,
                 SYS_open_by_handle_at,
#if defined(__x86_64__)
                 SYS_fork, SYS_vfork,
#endif
         }) {
        p.push_back(unless_equal(static_cast<uint32_t>(call)));
        p.push_back(answer(refuse));
    }
    // clone without CLONE_THREAD creates a process.
    p.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(SYS_clone), 0, 3));
    p.push_back(load(offsetof(seccomp_data, args)));
    p.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, static_cast<uint32_t>(CLONE_THREAD), 1, 0));
    p.push_back(answer(refuse));
    p.push_back(answer(SECCOMP_RET_ALLOW));
    return p;
}

// Each run needs its own file, because bubblewrap reads it to the end.
Result<int> filter_file() {
    static const std::vector<sock_filter> filter = system_call_filter();
    const int fd = ::memfd_create("filter", MFD_CLOEXEC);
    const size_t bytes = filter.size() * sizeof(sock_filter);
    if (fd < 0 || ::write(fd, filter.data(), bytes) != static_cast<ssize_t>(bytes) || ::lseek(fd, 0, SEEK_SET) != 0) {
        const int error = errno;
        if (fd >= 0) ::close(fd);
        return fail("sandbox: memfd_create: {}", std::strerror(error));
    }
    return fd;
}

class Child {
public:
    Child(pid_t pid, int input, int output) : pid_(pid), input_(input), output_(output) {}
    Child(const Child&) = delete;
    ~Child() {
        close_input();
        ::close(output_);
        end();
    }
    // Killing bubblewrap also kills everything in its process namespace.
    void kill() { ::kill(-pid_, SIGKILL); }
    int end() {
        int status = 0;
        if (pid_ > 0) {
            while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
            }
            pid_ = -1;
        }
        return status;
    }
    bool ended(int& status) {
        if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
        pid_ = -1;
        return true;
    }
    void close_input() {
        if (input_ >= 0) ::close(input_);
        input_ = -1;
    }
    int input() const { return input_; }
    int output() const { return output_; }

private:
    pid_t pid_;
    int input_, output_;
};

// Writes the program's input and reads its output until it closes the output or reaches a limit.
void converse(Child& child, std::string_view input, const SandboxLimits& limits, Clock::time_point until,
              SandboxRun& run) {
    char buffer[16384];
    while (true) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
        if (left <= 0) {
            run.timed_out = true;
            return child.kill();
        }
        if (input.empty()) child.close_input();
        pollfd watched[2] = {{child.output(), POLLIN, 0}, {child.input(), POLLOUT, 0}};
        if (::poll(watched, child.input() >= 0 ? 2 : 1, static_cast<int>(std::min<long long>(left, 1000))) < 0 &&
            errno != EINTR)
            return child.kill();
        if (child.input() >= 0 && watched[1].revents != 0) {
            const ssize_t sent = ::send(child.input(), input.data(), input.size(), MSG_NOSIGNAL);
            if (sent > 0) input.remove_prefix(static_cast<size_t>(sent));
            if (sent < 0 && errno != EAGAIN && errno != EINTR) input = {};  // the program no longer reads
        }
        if (watched[0].revents == 0) continue;
        const ssize_t got = ::recv(child.output(), buffer, sizeof buffer, 0);
        if (got == 0) return;
        if (got < 0 && errno != EAGAIN && errno != EINTR) return child.kill();
        if (got > 0) run.output.append(buffer, static_cast<size_t>(got));
        if (std::ssize(run.output) > limits.output_bytes) {
            run.flooded = true;
            run.output.resize(static_cast<size_t>(limits.output_bytes));
            return child.kill();
        }
    }
}

Result<std::string> find_bwrap(const fs::path& given) {
    std::vector<fs::path> places{"/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"};
    if (!given.empty()) places = {given};
    for (const fs::path& place : places)
        if (::access(place.c_str(), X_OK) == 0) return place.string();
    return fail("sandbox: there is no {}; install bubblewrap (Debian package bubblewrap)", places[0].string());
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

}  // namespace

Result<Sandbox> Sandbox::open(const fs::path& bwrap) {
    if (own_architecture == 0) return fail("sandbox: not built for this processor");
    Sandbox s;
    NIBBLE_TRY(s.bwrap_, find_bwrap(bwrap));
    s.root_ = {"--ro-bind", "/usr", "/usr"};
    for (const char* name : {"/bin", "/lib", "/lib64", "/sbin"}) {
        std::error_code error;
        if (fs::is_symlink(name, error))
            s.root_.insert(s.root_.end(), {"--symlink", fs::read_symlink(name, error).string(), name});
        else if (fs::is_directory(name, error))
            s.root_.insert(s.root_.end(), {"--ro-bind", name, name});
    }
    for (const char* device : {"/dev/null", "/dev/urandom"})
        s.root_.insert(s.root_.end(), {"--dev-bind", device, device});
    const std::vector<std::string> nothing{"/usr/bin/env", "true"};
    NIBBLE_TRY(const SandboxRun run, s.run(nothing, {}, {.seconds = 5, .output_bytes = 4096}, true));
    if (run.timed_out) return fail("sandbox: {} needed more than 5 seconds for the command `true`", s.bwrap_);
    if (!run.ended_well())
        return fail("sandbox: {} runs no program here: {} (are user namespaces forbidden?)", s.bwrap_,
                    run.output.empty() ? fmt::format("exit status {}", run.exit_status) : first_line(run.output));
    return s;
}

Result<SandboxRun> Sandbox::run(std::span<const std::string> command, std::string_view input,
                                const SandboxLimits& limits) const {
    return run(command, input, limits, false);
}

Result<SandboxRun> Sandbox::run(std::span<const std::string> command, std::string_view input,
                                const SandboxLimits& limits, bool errors) const {
    // The shell sets limits that bubblewrap and the program inherit: address space in KiB, processor time in seconds,
    // file size in blocks of 512 bytes.
    std::vector<std::string> words{
        shell_,
        "-c",
        fmt::format("ulimit -v {} && ulimit -t {} && ulimit -f {} && ulimit -n 64 && ulimit -c 0 && exec \"$@\"",
                    limits.memory_bytes / 1024, static_cast<int64_t>(std::ceil(limits.seconds)) + 1,
                    limits.file_bytes / 512),
        "sh",
        bwrap_,
        "--unshare-all",
        "--unshare-user",
        "--uid",
        "65534",
        "--gid",
        "65534",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL"};
    words.insert(words.end(), root_.begin(), root_.end());
    for (const std::string& word :
         {std::string("--size"), std::to_string(limits.file_bytes), std::string("--tmpfs"), std::string("/tmp")})
        words.push_back(word);
    for (const char* word : {"--remount-ro", "/", "--chdir", "/tmp", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin",
                             "--setenv", "PYTHONHASHSEED", "0", "--setenv", "LANG", "C.UTF-8", "--seccomp", "3", "--"})
        words.emplace_back(word);
    words.insert(words.end(), command.begin(), command.end());

    NIBBLE_TRY(const int filter, filter_file());
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0 ||
        ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out) != 0) {
        const int error = errno;
        for (const int fd : {filter, in[0], in[1]})
            if (fd >= 0) ::close(fd);
        return fail("sandbox: socketpair: {}", std::strerror(error));
    }
    ChildProgram program{.words = std::move(words),
                         .redirections = {{0, in[1]},
                                          {1, out[1]},
                                          {2, errors ? out[1] : ChildProgram::null_device},
                                          {filter_fd, filter}},
                         .own_group = true};
    const auto started = start_child(program);
    for (const int fd : {filter, in[1], out[1]}) ::close(fd);
    if (!started.ok()) {
        ::close(in[0]), ::close(out[0]);
        return fail("sandbox: {}", started.error().message());
    }
    for (const int fd : {in[0], out[0]}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
    Child child(*started, in[0], out[0]);
    SandboxRun run;
    const auto until =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits.seconds));
    converse(child, input, limits, until, run);
    // The program may close its output and continue.
    int status = 0;
    while (!run.timed_out && !run.flooded && !child.ended(status)) {
        if (Clock::now() > until) {
            run.timed_out = true;
            child.kill();
        }
        ::usleep(1000);
    }
    if (run.timed_out || run.flooded) status = child.end();
    // Bubblewrap exits with 128 + n if signal n ended the program.
    run.exit_status = WIFEXITED(status) && WEXITSTATUS(status) <= 128 ? WEXITSTATUS(status) : -1;
    return run;
}

}  // namespace nibble
