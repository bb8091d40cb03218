#include "rl/environment_process.h"

#include "base/child_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nibble {

Result<EnvironmentProcess> EnvironmentProcess::start(std::span<const std::string> command) {
    if (command.empty() || command[0].empty()) return fail("environment: the command is empty");
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return fail("environment {}: socketpair: {}", command[0], std::strerror(errno));
    // The program gets a process group of its own, so that its children are killed with it and Ctrl-C reaches nibble
    // alone.
    const auto child = start_child(
        {.words = {command.begin(), command.end()}, .redirections = {{0, ends[1]}, {1, ends[1]}}, .own_group = true});
    ::close(ends[1]);
    if (!child.ok()) {
        ::close(ends[0]);
        return fail("environment {}: {}", command[0], child.error().message());
    }
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return EnvironmentProcess(*child, ends[0]);
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
