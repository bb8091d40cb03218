#include "parallel/communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

namespace nibble {
namespace {

class Meeting {
public:
    explicit Meeting(int size) : size_(size), own_(size_t(size)), records_(size_t(size)) {}

    Status gather(int rank, std::span<const std::byte> own, std::span<const std::span<std::byte>> of) {
        own_[size_t(rank)] = own;
        NIBBLE_CHECK(wait_for_all());
        Status same = Ok{};
        for (size_t r = 0; r < own_.size(); ++r) {
            if (r == size_t(rank)) continue;
            if (own_[r].size() != of[r].size())
                same = fail("rank {} of {} is at another exchange than rank {}", r, size_, rank);
            else if (!own_[r].empty())
                std::memcpy(of[r].data(), own_[r].data(), own_[r].size());
        }
        NIBBLE_CHECK(wait_for_all());
        return same;
    }

    Status send(std::span<const std::byte> record) {
        const std::lock_guard lock(mutex_);
        NIBBLE_CHECK(whole());
        for (size_t r = 1; r < records_.size(); ++r) records_[r].emplace_back(record.begin(), record.end());
        changed_.notify_all();
        return Ok{};
    }

    Result<RankBytes> next(int rank) {
        std::unique_lock lock(mutex_);
        std::deque<RankBytes>& mine = records_[size_t(rank)];
        changed_.wait(lock, [&] { return !mine.empty() || ended_rank_ >= 0; });
        if (mine.empty()) return whole().error();
        RankBytes record = std::move(mine.front());
        mine.pop_front();
        return record;
    }

    void end(int rank) {
        const std::lock_guard lock(mutex_);
        if (ended_rank_ < 0) ended_rank_ = rank;
        changed_.notify_all();
    }

    Status alive() {
        const std::lock_guard lock(mutex_);
        return whole();
    }
    int size() const { return size_; }

private:
    Status whole() const {
        if (ended_rank_ < 0) return Ok{};
        return fail("rank {} of {} has ended; its own message has the reason", ended_rank_, size_);
    }

    Status wait_for_all() {
        std::unique_lock lock(mutex_);
        const int64_t mine = round_;
        if (++there_ == size_) {
            there_ = 0, ++round_;
            changed_.notify_all();
            return Ok{};
        }
        changed_.wait(lock, [&] { return round_ != mine || ended_rank_ >= 0; });
        return round_ != mine ? Status(Ok{}) : whole();
    }

    const int size_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int there_ = 0;      // ranks that wait for the others
    int64_t round_ = 0;  // number of times that all ranks were there
    int ended_rank_ = -1;
    std::vector<std::span<const std::byte>> own_;
    std::vector<std::deque<RankBytes>> records_;
};

class ThreadRank : public Communicator {
public:
    ThreadRank(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}
    ~ThreadRank() override { meeting_->end(rank_); }
    int rank() const override { return rank_; }
    int size() const override { return meeting_->size(); }
    Status gather_into(std::span<const std::byte> own, std::span<const std::span<std::byte>> of) override {
        return meeting_->gather(rank_, own, of);
    }
    Status send_record(std::span<const std::byte> record) override { return meeting_->send(record); }
    Result<RankBytes> next_record() override { return meeting_->next(rank_); }
    Status alive() const override { return meeting_->alive(); }

private:
    std::shared_ptr<Meeting> meeting_;
    int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> thread_ranks(int size) {
    const auto meeting = std::make_shared<Meeting>(size);
    std::vector<std::unique_ptr<Communicator>> ranks;
    for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<ThreadRank>(meeting, r));
    return ranks;
}

}  // namespace nibble
