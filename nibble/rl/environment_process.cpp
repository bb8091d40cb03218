#include "rl/environment_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace nibble {

Result<EnvironmentProcess> EnvironmentProcess::start(std::span<const std::string> command) {
    if (command.empty() || command[0].empty()) return fail("environment: the command is empty");
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return fail("environment {}: socketpair: {}", command[0], std::strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    // The program gets a process group of its own, so that its children are killed with it and Ctrl-C reaches nibble
    // alone. Signals that nibble ignores or blocks have their defaults in the program.
    sigset_t none, defaults;
    sigemptyset(&none), sigemptyset(&defaults), sigaddset(&defaults, SIGPIPE), sigaddset(&defaults, SIGINT);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_t pid = -1;
    const int error = posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    ::close(ends[1]);
    if (error != 0) {
        ::close(ends[0]);
        return fail("environment {}: {}", command[0], std::strerror(error));
    }
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return EnvironmentProcess(pid, ends[0]);
}

EnvironmentProcess::EnvironmentProcess(EnvironmentProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      socket_(std::exchange(other.socket_, -1)),
      received_(std::move(other.received_)) {}

EnvironmentProcess& EnvironmentProcess::operator=(EnvironmentProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(socket_, other.socket_);
    std::swap(received_, other.received_);
    return *this;
}

EnvironmentProcess::~EnvironmentProcess() {
    if (socket_ >= 0) ::close(socket_);
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
}

Status EnvironmentProcess::send(std::string_view& rest) {
    while (!rest.empty()) {
        const ssize_t sent = ::send(socket_, rest.data(), rest.size(), MSG_NOSIGNAL);
        if (sent > 0)
            rest.remove_prefix(static_cast<size_t>(sent));
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        else if (errno != EINTR)
            return fail("the environment stopped reading: {}", std::strerror(errno));
    }
    return Ok{};
}

Result<bool> EnvironmentProcess::receive(int64_t most_bytes) {
    char buffer[16384];
    while (received_.find('\n') == received_.npos) {
        if (std::ssize(received_) > most_bytes)
            return fail("the environment's reply is longer than {} bytes", most_bytes);
        const ssize_t got = ::recv(socket_, buffer, sizeof buffer, 0);
        if (got > 0)
            received_.append(buffer, static_cast<size_t>(got));
        else if (got == 0)
            return fail("the environment ended without a reply");
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return false;
        else if (errno != EINTR)
            return fail("the environment cannot be read: {}", std::strerror(errno));
    }
    return true;
}

bool EnvironmentProcess::has_spoken() const {
    char one = 0;
    return !received_.empty() || ::recv(socket_, &one, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

std::string EnvironmentProcess::take_line() {
    const size_t end = received_.find('\n');
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
}

}  // namespace nibble
