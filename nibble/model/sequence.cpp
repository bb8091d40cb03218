#include "model/sequence.h"

#include "base/large_pages.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace nibble {
namespace {

int64_t tiles(int64_t tokens) { return (tokens + kv_page_tokens - 1) / kv_page_tokens; }

}  // namespace

Sequence::Sequence(KvPool& pool) : pool_(&pool), pages_(pool.layouts_.size()), states_(pool.layouts_.size()) {
    for (size_t i = 0; i < states_.size(); ++i) states_[i].resize(static_cast<size_t>(pool.layouts_[i].floats));
}

Sequence::Sequence(Sequence&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      position_(other.position_),
      pages_(std::move(other.pages_)),
      states_(std::move(other.states_)) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(position_, other.position_);
    std::swap(pages_, other.pages_);
    std::swap(states_, other.states_);
    return *this;
}

Sequence::~Sequence() {
    if (!pool_) return;
    for (const auto& table : pages_)
        for (std::byte* page : table)
            if (page) pool_->give(page);
}

Result<Sequence> Sequence::fork() const {
    const bool partial = position_ % kv_page_tokens != 0;
    const auto tables = std::ranges::count_if(pages_, [](const auto& table) { return !table.empty(); });
    if (partial && pool_->free_pages() < tables)
        return fail("the KV cache is full: {} pages needed, {} free", tables, pool_->free_pages());
    Sequence copy(*pool_);
    copy.position_ = position_;
    copy.states_ = states_;
    for (size_t i = 0; i < pages_.size(); ++i) {
        // A failed forward pass may have left pages beyond the position: they are not shared.
        auto& table = copy.pages_[i];
        table.assign(pages_[i].begin(), pages_[i].begin() + std::min<int64_t>(tiles(position_), std::ssize(pages_[i])));
        for (size_t t = 0; t < table.size(); ++t) {
            if (!table[t]) continue;
            if (partial && t + 1 == table.size()) {
                std::byte* page = pool_->take();
                std::memcpy(page, table[t], static_cast<size_t>(pool_->page_bytes_));
                table[t] = page;
            } else {
                pool_->share(table[t]);
            }
        }
    }
    return copy;
}

Status Sequence::reserve(int64_t tokens) {
    const int64_t wanted = tiles(position_ + tokens);
    int64_t missing = 0;
    for (size_t i = 0; i < pages_.size(); ++i)
        if (pool_->layouts_[i].kv) missing += std::max<int64_t>(0, wanted - std::ssize(pages_[i]));
    if (missing > pool_->free_pages())
        return fail("the KV cache is full: {} pages needed for {} more tokens, {} of {} free", missing, tokens,
                    pool_->free_pages(), pool_->pages());
    for (size_t i = 0; i < pages_.size(); ++i)
        if (pool_->layouts_[i].kv)
            while (std::ssize(pages_[i]) < wanted) pages_[i].push_back(pool_->take());
    return Ok{};
}

void Sequence::advance(int64_t tokens) {
    position_ += tokens;
    for (size_t i = 0; i < pages_.size(); ++i) {
        const int64_t window = pool_->layouts_[i].window;
        if (window == 0) continue;
        const int64_t first = std::max<int64_t>(0, position_ - window + 1) / kv_page_tokens;  // the next query's
        for (int64_t t = std::min<int64_t>(first, std::ssize(pages_[i])) - 1; t >= 0; --t) {
            std::byte*& page = pages_[i][static_cast<size_t>(t)];
            if (!page) break;
            pool_->give(std::exchange(page, nullptr));
        }
    }
}

int64_t Sequence::position() const { return position_; }
std::span<std::byte* const> Sequence::pages(int index) const { return pages_[static_cast<size_t>(index)]; }
std::span<float> Sequence::state(int index) { return states_[static_cast<size_t>(index)]; }

KvPool::KvPool(std::vector<StateLayout> layouts, int64_t tokens)
    : layouts_(std::move(layouts)), memory_(nullptr, [](std::byte* p) { std::free(p); }) {
    int64_t tables = 0;
    for (const StateLayout& layout : layouts_)
        if (layout.kv) {
            ++tables;
            page_bytes_ = std::max(page_bytes_, (kv_page_bytes(*layout.kv) + 63) / 64 * 64);
        }
    const int64_t pages = tables * tiles(tokens);
    // calloc: the system hands out zeroed memory when a page is first touched.
    memory_.reset(static_cast<std::byte*>(std::calloc(static_cast<size_t>(pages * page_bytes_ + 64), 1)));
    if (memory_) prefer_large_pages(memory_.get(), pages * page_bytes_);
    references_.resize(memory_ ? static_cast<size_t>(pages) : 0);
    const auto at = reinterpret_cast<uintptr_t>(memory_.get());
    base_ = memory_.get() + (64 - at % 64) % 64;
    for (int64_t i = std::ssize(references_) - 1; i >= 0; --i) free_.push_back(base_ + i * page_bytes_);
}

KvPool::~KvPool() = default;

Sequence KvPool::sequence() { return Sequence(*this); }
int64_t KvPool::pages() const { return std::ssize(references_); }
int64_t KvPool::free_pages() const { return std::ssize(free_); }
int64_t KvPool::page_bytes() const { return page_bytes_; }

size_t KvPool::slot(const std::byte* page) const { return static_cast<size_t>((page - base_) / page_bytes_); }

std::byte* KvPool::take() {
    if (free_.empty()) return nullptr;
    std::byte* page = free_.back();
    free_.pop_back();
    references_[slot(page)] = 1;
    return page;
}

void KvPool::share(const std::byte* page) { ++references_[slot(page)]; }

void KvPool::give(std::byte* page) {
    if (--references_[slot(page)] == 0) free_.push_back(page);
}

}  // namespace nibble
