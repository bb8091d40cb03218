// Limits the memory of request bodies, in total and per peer.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace nibble {

using BytesLeft = std::shared_ptr<std::atomic<int64_t>>;

// Subtracts `bytes` if at least `floor` remains; otherwise changes nothing and returns false.
inline bool take_bytes(std::atomic<int64_t>& left, int64_t bytes, int64_t floor) {
    if ((left -= bytes) >= floor) return true;
    left += bytes;
    return false;
}

// The memory for all request bodies. One peer may use half of it. The last quarter is reserved for small bodies, so
// that ordinary requests are read while large ones fill the rest.
class BodyBudgets {
public:
    explicit BodyBudgets(size_t bytes)
        : bytes_(static_cast<int64_t>(bytes)), all_(std::make_shared<std::atomic<int64_t>>(bytes_)) {}

    // The memory of one body; the destructor returns it.
    class Share {
    public:
        Share(BytesLeft all, BytesLeft peer, int64_t reserve)
            : all_(std::move(all)), peer_(std::move(peer)), reserve_(reserve) {}
        Share(const Share&) = delete;
        Share& operator=(const Share&) = delete;
        ~Share() {
            *all_ += taken_;
            *peer_ += taken_;
        }
        bool take(size_t bytes) {
            const auto n = static_cast<int64_t>(bytes);
            if (!take_bytes(*all_, n, taken_ + n > small_body ? reserve_ : 0)) return false;
            if (!take_bytes(*peer_, n, 0)) {
                *all_ += n;
                return false;
            }
            taken_ += n;
            return true;
        }

    private:
        static constexpr int64_t small_body = 64 << 10;
        BytesLeft all_, peer_;
        int64_t reserve_, taken_ = 0;
    };

    // Returns the bytes that no body holds now.
    int64_t left() const { return *all_; }

    // Creates the share of one body; `peer` is the client's address. Call from one thread only.
    std::shared_ptr<Share> share(const std::string& peer) {
        if (peers_.size() >= purge_at_) {
            std::erase_if(peers_, [](const auto& one) { return one.second.expired(); });
            purge_at_ = std::max<size_t>(1024, 2 * peers_.size());
        }
        std::weak_ptr<std::atomic<int64_t>>& known = peers_[peer];
        BytesLeft left = known.lock();
        if (!left) known = left = std::make_shared<std::atomic<int64_t>>(bytes_ / 2);
        return std::make_shared<Share>(all_, std::move(left), bytes_ / 4);
    }

private:
    int64_t bytes_;
    BytesLeft all_;
    std::unordered_map<std::string, std::weak_ptr<std::atomic<int64_t>>> peers_;
    size_t purge_at_ = 1024;
};

}  // namespace nibble
