// Sequences in progress and the memory behind them. A pool owns pages of 64 tokens of one block's K and V; a sequence
// holds a page table per block, and the recurrent states of the blocks that have some. Pages are reference-counted, so
// sequences with a common prefix share its full pages (fork); a page is written only by its one owner. Where the memory
// lies, host or device, changes nothing here (model/state_memory.h).
//
// One thread at a time uses a pool and its sequences; the pool outlives them.
#pragma once

#include "base/error.h"
#include "model/state_memory.h"

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace nibble {

class KvPool;

// A sequence may go back by so many tokens (Sequence::rewind): pages that a window leaves stay as much longer.
inline constexpr int64_t most_rewind = 16;

// What a block keeps per sequence: pages of K and V, and/or `floats` numbers (conv and SSM states), zero at the start.
struct StateLayout {
    int64_t page_bytes = 0;  // of a page of K and V; 0: none are kept
    int64_t window = 0;      // of the attention: pages that no later query sees are freed; 0: none are
    int64_t floats = 0;
};

// Bytes of a pool (KvPool::create) for `tokens` tokens and the states of `sequences` sequences.
int64_t pool_bytes(std::span<const StateLayout> layouts, int64_t tokens, int64_t sequences);

// The pages of one tile of 64 tokens, of every block that has pages, kept from being given back. A page that a window
// had left when the tile was shared is absent. The pool outlives it.
class TilePages {
public:
    TilePages() = default;
    TilePages(TilePages&& other) noexcept { swap(other); }
    TilePages& operator=(TilePages&& other) noexcept {
        swap(other);
        return *this;
    }
    ~TilePages();
    int64_t count() const;  // of pages that are there
    // Whether a sequence that goes on `ahead` tokens behind the tile's end finds all it reads of this tile.
    bool serves(int64_t ahead) const;

private:
    friend class Sequence;
    void swap(TilePages& other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(pages_, other.pages_);
    }
    KvPool* pool_ = nullptr;
    std::vector<std::byte*> pages_;  // by block; null: none
};

// The recurrent states of all blocks at one position. The pool outlives it.
class StateCopy {
public:
    StateCopy() = default;
    StateCopy(StateCopy&& other) noexcept { *this = std::move(other); }
    StateCopy& operator=(StateCopy&& other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(states_, other.states_);
        std::swap(position_, other.position_);
        return *this;
    }
    ~StateCopy();
    int64_t position() const { return position_; }

private:
    friend class Sequence;
    KvPool* pool_ = nullptr;
    std::byte* states_ = nullptr;
    int64_t position_ = 0;
};

class Sequence {
public:
    Sequence(Sequence&&) noexcept;
    Sequence& operator=(Sequence&&) noexcept;
    ~Sequence();  // gives its pages and states back

    int64_t position() const;  // tokens that went through the model
    // A second sequence with the same past. Shares full pages, copies the last one of each block and the states.
    // Error: the pool has no page or no states left.
    Result<Sequence> fork() const;
    // Pages of every block that the next `tokens` tokens need beyond those it has.
    int64_t missing_pages(int64_t tokens) const;

    // The past in tiles of 64 tokens, for sequences to come. Tile `tile` has gone through the model whole.
    TilePages share(int64_t tile) const;
    // Goes on behind a shared tile: position() is the tile's first token. Blocks with states need restore() after the
    // last tile.
    void adopt(const TilePages& tile);
    // Error: the pool has no states left.
    Result<StateCopy> copy_states() const;
    // States as they were at the copy's position. Error: the pool has no states left.
    Status restore(const StateCopy& copy);
    // Forgets the last tokens, up to most_rewind of them. States are those of `position` only after restore().
    void rewind(int64_t position) { position_ = position; }

    // For models: pages for the next `tokens` tokens of every block, and states. Error: the pool has too few; nothing
    // changed.
    Status reserve(int64_t tokens);
    // For models: `tokens` tokens went through; pages that no window reaches any more are freed.
    void advance(int64_t tokens);
    // For mixers, after reserve: pages of block `index` (BlockConfig::index), by tile; null before the window.
    std::span<std::byte* const> pages(int index) const;
    // For mixers, after reserve: the block's `StateLayout::floats` numbers.
    float* state(int index);
    const KvPool& pool() const { return *pool_; }

private:
    friend class KvPool;
    explicit Sequence(KvPool& pool);
    KvPool* pool_ = nullptr;
    int64_t position_ = 0;
    std::vector<std::vector<std::byte*>> pages_;
    std::byte* states_ = nullptr;  // of all blocks; null before the first token
};

class KvPool {
public:
    // `layouts`: of every block in order. Room for `tokens` tokens in every block with K and V, and for the states of
    // `sequences` sequences. make(bytes): a Result<std::unique_ptr<StateMemory>>.
    template <class Make>
    static Result<std::unique_ptr<KvPool>> create(std::vector<StateLayout> layouts, int64_t tokens, int64_t sequences,
                                                  const Make& make) {
        std::unique_ptr<KvPool> pool(new KvPool(std::move(layouts), tokens, sequences));
        NIBBLE_TRY(pool->memory_, make(pool->bytes()).within("the KV cache"));
        return pool;
    }
    KvPool(KvPool&&) = delete;
    ~KvPool();

    Sequence sequence();
    int64_t pages() const;       // of all blocks together
    int64_t free_pages() const;  // now
    int64_t page_bytes() const;
    int64_t sequences() const { return sequences_; }  // that may have states
    bool recurrent() const { return state_bytes_ > 0; }
    // Pages that a sequence of `tokens` tokens holds at most, fed in pieces of `piece`.
    int64_t pages_for(int64_t tokens, int64_t piece) const;
    int64_t bytes() const;  // of the memory: pages, then states
    // Pages are numbered as they lie in memory.
    std::byte* base() const { return memory_->base(); }
    int64_t number(const std::byte* page) const { return (page - base()) / page_bytes_; }

private:
    friend class Sequence;
    friend class TilePages;
    friend class StateCopy;
    KvPool(std::vector<StateLayout> layouts, int64_t tokens, int64_t sequences);
    std::byte* page(int32_t number) const { return base() + number * page_bytes_; }
    std::byte* take();  // nullptr when none is left; holds anything
    void share(const std::byte* page);
    void give(std::byte* page);
    std::byte* states(int32_t number) const;
    std::byte* take_states();  // nullptr when none are left; hold anything
    void give_states(const std::byte* states);

    std::vector<StateLayout> layouts_;
    std::vector<int64_t> state_offsets_;  // of every block in a sequence's states
    int64_t sequences_ = 0, page_bytes_ = 0, state_bytes_ = 0;
    std::unique_ptr<StateMemory> memory_;
    std::vector<int32_t> references_, free_, free_states_;
};

}  // namespace nibble
