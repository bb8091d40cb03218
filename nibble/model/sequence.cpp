#include "model/sequence.h"

#include "base/checked.h"
#include "kernels/attention.h"

#include <algorithm>

namespace nibble {
namespace {

int64_t tiles(int64_t tokens) { return (tokens + kv_page_tokens - 1) / kv_page_tokens; }

}  // namespace

Sequence::Sequence(KvPool& pool) : pool_(&pool), pages_(pool.layouts_.size()) {}

Sequence::Sequence(Sequence&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      position_(other.position_),
      pages_(std::move(other.pages_)),
      states_(other.states_) {}

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
    if (states_) pool_->give_states(states_);
}

Result<Sequence> Sequence::fork() const {
    const bool partial = position_ % kv_page_tokens != 0;
    const auto tables = std::ranges::count_if(pages_, [](const auto& table) { return !table.empty(); });
    if (partial && pool_->free_pages() < tables)
        return fail("the KV cache is full: {} pages needed, {} free", tables, pool_->free_pages());
    Sequence copy(*pool_);
    copy.position_ = position_;
    if (states_) {
        copy.states_ = pool_->take_states();
        if (!copy.states_) return fail("the pool has no recurrent state left for another sequence");
        NIBBLE_CHECK(pool_->memory_->copy(copy.states_, states_, pool_->state_bytes_));
    }
    for (size_t i = 0; i < pages_.size(); ++i) {
        // A failed forward pass may have left pages after the position; they are not shared.
        auto& table = copy.pages_[i];
        const int64_t count = std::min<int64_t>(tiles(position_), std::ssize(pages_[i]));
        for (int64_t t = 0; t < count; ++t) {
            std::byte* const mine = pages_[i][static_cast<size_t>(t)];
            if (mine && partial && t + 1 == count) {
                table.push_back(pool_->take());
                NIBBLE_CHECK(pool_->memory_->copy(table.back(), mine, pool_->page_bytes_));
            } else {
                if (mine) pool_->share(mine);
                table.push_back(mine);
            }
        }
    }
    return copy;
}

int64_t Sequence::missing_pages(int64_t tokens) const {
    const int64_t wanted = tiles(position_ + tokens);
    int64_t missing = 0;
    for (size_t i = 0; i < pages_.size(); ++i)
        if (pool_->layouts_[i].page_bytes > 0) missing += std::max<int64_t>(0, wanted - std::ssize(pages_[i]));
    return missing;
}

TilePages Sequence::share(int64_t tile) const {
    TilePages out;
    out.pool_ = pool_;
    for (const auto& table : pages_) {
        std::byte* const page = table.empty() ? nullptr : table[static_cast<size_t>(tile)];
        if (page) pool_->share(page);
        out.pages_.push_back(page);
    }
    return out;
}

void Sequence::adopt(const TilePages& tile) {
    for (size_t i = 0; i < pages_.size(); ++i) {
        if (pool_->layouts_[i].page_bytes == 0) continue;
        if (tile.pages_[i]) pool_->share(tile.pages_[i]);
        pages_[i].push_back(tile.pages_[i]);
    }
    position_ += kv_page_tokens;
}

Result<StateCopy> Sequence::copy_states() const {
    StateCopy copy;
    copy.position_ = position_;
    if (!states_) return copy;
    copy.states_ = pool_->take_states();
    if (!copy.states_) return fail("the pool has no recurrent state left for a copy");
    copy.pool_ = pool_;
    NIBBLE_CHECK(pool_->memory_->copy(copy.states_, states_, pool_->state_bytes_));
    return copy;
}

Status Sequence::restore(const StateCopy& copy) {
    position_ = copy.position_;
    if (!copy.states_) return Ok{};
    if (!states_ && !(states_ = pool_->take_states()))
        return fail("the pool has no recurrent state left for another sequence");
    return pool_->memory_->copy(states_, copy.states_, pool_->state_bytes_);
}

TilePages::~TilePages() {
    for (std::byte* page : pages_)
        if (page) pool_->give(page);
}

int64_t TilePages::count() const {
    return std::ranges::count_if(pages_, [](const std::byte* p) { return p; });
}

bool TilePages::serves(int64_t ahead) const {
    for (size_t i = 0; i < pages_.size(); ++i) {
        const StateLayout& layout = pool_->layouts_[i];
        if (layout.page_bytes == 0 || pages_[i]) continue;
        if (layout.window == 0 || ahead < layout.window - 1 + most_rewind) return false;
    }
    return true;
}

StateCopy::~StateCopy() {
    if (states_) pool_->give_states(states_);
}

Status Sequence::reserve(int64_t tokens) {
    const int64_t wanted = tiles(position_ + tokens);
    const int64_t missing = missing_pages(tokens);
    if (missing > pool_->free_pages())
        return fail("the KV cache is full: {} pages needed for {} more tokens, {} of {} free", missing, tokens,
                    pool_->free_pages(), pool_->pages());
    if (!states_ && pool_->state_bytes_ > 0) {
        std::byte* states = pool_->take_states();
        if (!states) return fail("the pool has no recurrent state left for another sequence");
        states_ = states;
        NIBBLE_CHECK(pool_->memory_->zero(states_, pool_->state_bytes_));
    }
    for (size_t i = 0; i < pages_.size(); ++i)
        if (pool_->layouts_[i].page_bytes > 0)
            while (std::ssize(pages_[i]) < wanted) pages_[i].push_back(pool_->take());
    return Ok{};
}

void Sequence::advance(int64_t tokens) {
    position_ += tokens;
    for (size_t i = 0; i < pages_.size(); ++i) {
        const int64_t window = pool_->layouts_[i].window;
        if (window == 0) continue;
        // The first position that the next query, or an earlier query after a rewind, can read.
        const int64_t first = std::max<int64_t>(0, position_ - most_rewind - window + 1) / kv_page_tokens;
        for (int64_t t = std::min<int64_t>(first, std::ssize(pages_[i])) - 1; t >= 0; --t) {
            std::byte*& page = pages_[i][static_cast<size_t>(t)];
            if (!page) break;
            pool_->give(std::exchange(page, nullptr));
        }
    }
}

int64_t Sequence::position() const { return position_; }
std::span<std::byte* const> Sequence::pages(int index) const { return pages_[static_cast<size_t>(index)]; }
float* Sequence::state(int index) {
    return reinterpret_cast<float*>(states_ + pool_->state_offsets_[static_cast<size_t>(index)]);
}

KvPool::KvPool(std::vector<StateLayout> layouts, int64_t tokens, int64_t sequences)
    : layouts_(std::move(layouts)), sequences_(sequences) {
    int64_t tables = 0;
    for (const StateLayout& layout : layouts_) {
        tables += layout.page_bytes > 0;
        page_bytes_ = std::max(page_bytes_, round_up(layout.page_bytes, StateMemory::alignment));
        state_offsets_.push_back(state_bytes_);
        state_bytes_ += round_up(layout.floats * int64_t{sizeof(float)}, StateMemory::alignment);
    }
    references_.resize(static_cast<size_t>(tables * tiles(tokens)));
    for (auto i = static_cast<int32_t>(references_.size()) - 1; i >= 0; --i) free_.push_back(i);
    if (state_bytes_ > 0)
        for (auto i = static_cast<int32_t>(sequences) - 1; i >= 0; --i) free_states_.push_back(i);
}

KvPool::~KvPool() = default;

int64_t KvPool::pages_for(int64_t tokens, int64_t piece) const {
    int64_t pages = 0;
    for (const StateLayout& layout : layouts_) {
        if (layout.page_bytes == 0) continue;
        int64_t held = tokens;
        if (layout.window > 0) held = std::min(held, layout.window + piece + most_rewind + kv_page_tokens);
        pages += tiles(held);
    }
    return pages;
}

int64_t pool_bytes(std::span<const StateLayout> layouts, int64_t tokens, int64_t sequences) {
    int64_t tables = 0, page = 0, states = 0;
    for (const StateLayout& layout : layouts) {
        tables += layout.page_bytes > 0;
        page = std::max(page, round_up(layout.page_bytes, StateMemory::alignment));
        states += round_up(layout.floats * int64_t{sizeof(float)}, StateMemory::alignment);
    }
    return tables * tiles(tokens) * page + sequences * states;
}

Sequence KvPool::sequence() { return Sequence(*this); }
int64_t KvPool::pages() const { return std::ssize(references_); }
int64_t KvPool::free_pages() const { return std::ssize(free_); }
int64_t KvPool::page_bytes() const { return page_bytes_; }
int64_t KvPool::bytes() const { return pages() * page_bytes_ + sequences_ * state_bytes_; }

std::byte* KvPool::take() {
    if (free_.empty()) return nullptr;
    const int32_t number = free_.back();
    free_.pop_back();
    references_[static_cast<size_t>(number)] = 1;
    return page(number);
}

void KvPool::share(const std::byte* page) { ++references_[static_cast<size_t>(number(page))]; }

void KvPool::give(std::byte* page) {
    if (mirror_) return;
    const auto at = static_cast<int32_t>(number(page));
    if (--references_[static_cast<size_t>(at)] == 0) free_.push_back(at);
}

std::byte* KvPool::states(int32_t number) const { return base() + pages() * page_bytes_ + number * state_bytes_; }

std::byte* KvPool::take_states() {
    if (free_states_.empty()) return nullptr;
    const int32_t number = free_states_.back();
    free_states_.pop_back();
    return states(number);
}

void KvPool::give_states(const std::byte* states) {
    if (!mirror_) free_states_.push_back(states_number(states));
}

int32_t KvPool::states_number(const std::byte* states) const {
    return static_cast<int32_t>((states - this->states(0)) / state_bytes_);
}

SequencePlaces Sequence::places() const {
    SequencePlaces places{.position = position_, .pages = {}};
    for (const auto& table : pages_) {
        auto& numbers = places.pages.emplace_back();
        for (const std::byte* page : table) numbers.push_back(page ? static_cast<int32_t>(pool_->number(page)) : -1);
    }
    if (states_) places.states = pool_->states_number(states_);
    return places;
}

Result<Sequence> KvPool::at(const SequencePlaces& places) {
    Sequence sequence(*this);
    if (places.pages.size() != layouts_.size())
        return fail("page tables of {} blocks for a pool of {}", places.pages.size(), layouts_.size());
    sequence.position_ = places.position;
    for (size_t i = 0; i < places.pages.size(); ++i)
        for (const int32_t number : places.pages[i]) {
            if (number < -1 || number >= pages()) return fail("page {} of a pool of {}", number, pages());
            sequence.pages_[i].push_back(number < 0 ? nullptr : page(number));
        }
    if (places.states >= 0) {
        NIBBLE_CHECK(check_states(places.states));
        sequence.states_ = states(places.states);
    }
    return sequence;
}

Status KvPool::check_states(int32_t number) const {
    if (number >= 0 && number < sequences_ && state_bytes_ > 0) return Ok{};
    return fail("states {} of a pool with {}", number, state_bytes_ > 0 ? sequences_ : 0);
}

Status KvPool::zero_states(int32_t number) {
    NIBBLE_CHECK(check_states(number));
    return memory_->zero(states(number), state_bytes_);
}

Status KvPool::copy_states(int32_t to, int32_t from) {
    NIBBLE_CHECK(check_states(to));
    NIBBLE_CHECK(check_states(from));
    return memory_->copy(states(to), states(from), state_bytes_);
}

Status KvPool::copy_page(int32_t to, int32_t from) {
    if (std::min(to, from) < 0 || std::max(to, from) >= pages())
        return fail("pages {} and {} of a pool of {}", to, from, pages());
    return memory_->copy(page(to), page(from), page_bytes_);
}

}  // namespace nibble
