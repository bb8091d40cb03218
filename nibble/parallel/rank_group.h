// The processes of one job, ranks 0 to size - 1, and the exchange of bytes between them over one socket per pair of
// ranks. All ranks make the same calls in the same order.
//
// When a rank ends for any reason, the current and all later calls of the other ranks fail with one line that names it:
// at once if its process is gone, within `silence` if it stands still (a stopped process or machine), within `patience`
// if it hangs. Results do not depend on which rank is faster.
#pragma once

#include "base/error.h"
#include "base/mapped_file.h"
#include "parallel/communicator.h"
#include "parallel/rank_beat.h"
#include "parallel/rank_place.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

class RankGroup : public Communicator {
public:
    struct Options {
        // Must be equal in all ranks (program, config); compared when the ranks meet.
        std::string identity;
        std::chrono::milliseconds meeting{60'000};    // limit for all ranks to connect
        std::chrono::milliseconds patience{600'000};  // limit without a byte from a rank that is waited for
        // If not 0: limit for a rank that stands still, which is noticed between calls, too (parallel/rank_beat.h).
        std::chrono::milliseconds silence{0};
    };
    // Errors: no listener at the address, missing ranks, two ranks with the same number, a different identity (shows
    // the difference).
    static Result<std::unique_ptr<RankGroup>> meet(const RankPlace& place, const Options& options);
    ~RankGroup() override;
    RankGroup(const RankGroup&) = delete;
    RankGroup& operator=(const RankGroup&) = delete;

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    Status gather_into(std::span<const std::byte> own, std::span<const std::span<std::byte>> of) override;
    Status send_record(std::span<const std::byte> record) override;
    Result<RankBytes> next_record() override;

    // Sends to[r] to rank r and returns what every rank sent to this one, by rank. The own entry is passed through.
    Result<std::vector<RankBytes>> exchange(std::vector<RankBytes> to);
    // Returns the bytes of every rank, by rank.
    Result<std::vector<RankBytes>> gather(RankBytes own);
    // Returns rank 0's bytes on all ranks.
    Result<RankBytes> share(RankBytes of_first);
    // Fails if a rank has ended. Sends nothing and does not wait. Call only between other calls.
    Status alive() const override;
    // Returns whether `mine` is true on any rank.
    Result<bool> any(bool mine);

private:
    RankGroup(int rank, int size, const Options& options);
    struct Peer;
    struct Transfer;
    Status meet_first(const RankPlace& place);
    Status meet_others(const RankPlace& place);
    Status adopt(int socket, int rank);
    Status begin_beat(const RankPlace& place);
    enum class Kind : uint8_t { exchange, gather, record, lost };
    // `waits`: whether a rank that is waited for may send nothing for longer than `patience`.
    Status run(Kind kind, std::vector<Transfer>& transfers, bool waits = false);
    // `lost` is set to the rank that has ended if that is the error.
    Status transfer(Kind kind, std::vector<Transfer>& transfers, bool waits, int& lost);
    Error ended(int rank) const;
    Error stands_still(int rank) const;
    // Returns the rank that has ended as a peer noted it in the last bytes that it sent; -1: no such note.
    int noted(int fd) const;
    int silent() const { return beat_ ? beat_->silent() : -1; }
    int first_ended() const;  // -1: none

    int rank_ = 0, size_ = 1;
    Options options_;
    std::vector<Peer> peers_;      // by rank; the own entry has no socket
    std::optional<Error> broken_;  // the first error of an exchange
    std::unique_ptr<RankBeat> beat_;
};

}  // namespace nibble
