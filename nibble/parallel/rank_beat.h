// Notices ranks that stand still. The processes of a group exchange one byte per period on connections of their own, by
// a thread that waits for nothing else: a rank that computes or loads for long is not taken for one that stands still.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace nibble {

class RankBeat {
public:
    struct Connection {
        int rank = 0;     // at the other end
        int socket = -1;  // owned
    };
    // `limit`: without a byte from a rank, after which it stands still.
    RankBeat(std::vector<Connection> connections, std::chrono::milliseconds limit);
    ~RankBeat();
    RankBeat(const RankBeat&) = delete;
    RankBeat& operator=(const RankBeat&) = delete;

    // Returns the first rank that stood still, -1 if none did. A rank whose process ended closes its connection, and
    // does not stand still.
    int silent() const { return silent_; }

private:
    void run(std::chrono::milliseconds limit);
    std::vector<Connection> connections_;
    int end_[2] = {-1, -1};  // a pipe: closing one end stops the thread
    std::atomic<int> silent_ = -1;
    std::thread thread_;
};

}  // namespace nibble
