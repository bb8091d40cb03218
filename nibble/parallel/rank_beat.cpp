#include "parallel/rank_beat.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace nibble {

using Clock = std::chrono::steady_clock;

RankBeat::RankBeat(std::vector<Connection> connections, std::chrono::milliseconds limit)
    : connections_(std::move(connections)) {
    // Without a pipe the thread could not be stopped; then a rank that stands still is not noticed here.
    if (::pipe2(end_, O_CLOEXEC) == 0) thread_ = std::thread([this, limit] { run(limit); });
}

RankBeat::~RankBeat() {
    if (end_[1] >= 0) ::close(end_[1]);
    if (thread_.joinable()) thread_.join();
    if (end_[0] >= 0) ::close(end_[0]);
    for (const Connection& c : connections_)
        if (c.socket >= 0) ::close(c.socket);
}

void RankBeat::run(std::chrono::milliseconds limit) {
    const auto period = limit / 10;
    std::vector<Clock::time_point> heard(connections_.size(), Clock::now());
    auto next = Clock::now();
    std::vector<pollfd> waits;
    while (true) {
        waits.assign(1, {end_[0], POLLIN, 0});
        for (const Connection& c : connections_) waits.push_back({c.socket, POLLIN, 0});  // poll() skips -1
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()).count();
        if (::poll(waits.data(), waits.size(), static_cast<int>(left > 0 ? left + 1 : 0)) < 0 && errno != EINTR) return;
        if (waits[0].revents != 0) return;
        const auto now = Clock::now();
        // This process stood still itself, and has not read what the others sent.
        const bool stood = now - next > limit / 2;
        for (size_t i = 0; i < connections_.size(); ++i) {
            int& socket = connections_[i].socket;
            if (socket < 0) continue;
            char bytes[256];
            const ssize_t n = ::recv(socket, bytes, sizeof bytes, MSG_DONTWAIT);
            if (n > 0 || stood) heard[i] = now;
            if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) ::close(std::exchange(socket, -1));
            if (socket >= 0 && now - heard[i] > limit && silent_ < 0) silent_ = connections_[i].rank;
        }
        if (now < next) continue;
        next = now + period;
        // A full buffer is not an error here: the other end stands still.
        for (const Connection& c : connections_)
            if (c.socket >= 0) (void)::send(c.socket, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

}  // namespace nibble
