// Sequences in progress and their memory. A pool owns pages that hold K and V of 64 tokens of one block. A sequence
// holds a page table per block, and the recurrent states of blocks that have states. Pages are reference-counted, so
// sequences with a common prefix share its full pages (fork); only pages with one owner are written. The code is the
// same for host and device memory (model/state_memory.h).
//
// A pool and its sequences may be used by one thread at a time. The pool must outlive its sequences.
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

// Most tokens by which a sequence may be rewound (Sequence::rewind). Pages that leave a window are kept for this many
// more tokens.
inline constexpr int64_t most_rewind = 16;

// The state that a block keeps per sequence: pages of K and V, and/or `floats` numbers (convolution and SSM states),
// initially zero.
struct StateLayout {
    int64_t page_bytes = 0;  // size of a page of K and V; 0: the block has no pages
    int64_t window = 0;      // window of the attention: pages that no later query reads are freed; 0: no window
    int64_t floats = 0;
};

// Returns the bytes of a pool (KvPool::create) for `tokens` tokens and the states of `sequences` sequences.
int64_t pool_bytes(std::span<const StateLayout> layouts, int64_t tokens, int64_t sequences);

// The numbers of a sequence's pages and states in its pool.
struct SequencePlaces {
    int64_t position = 0;
    std::vector<std::vector<int32_t>> pages;  // page numbers of every block, by tile; -1: none
    int32_t states = -1;                      // -1: none
};

// References to the pages of one tile of 64 tokens in every block with pages. They keep the pages allocated. A page
// that had already left a window is absent. The pool must outlive it.
class TilePages {
public:
    TilePages() = default;
    TilePages(TilePages&& other) noexcept { swap(other); }
    TilePages& operator=(TilePages&& other) noexcept {
        swap(other);
        return *this;
    }
    ~TilePages();
    int64_t count() const;  // number of pages that are present
    // Returns true if the tile has all pages that a sequence reads which continues `ahead` tokens after the tile's end.
    bool serves(int64_t ahead) const;

private:
    friend class Sequence;
    void swap(TilePages& other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(pages_, other.pages_);
    }
    KvPool* pool_ = nullptr;
    std::vector<std::byte*> pages_;  // by block; null: absent
};

// A copy of the recurrent states of all blocks at one position. The pool must outlive it.
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
    ~Sequence();  // returns its pages and states to the pool

    int64_t position() const;  // number of tokens that went through the model
    // Creates a second sequence with the same past. Shares full pages; copies the last page of each block and the
    // states. Error: the pool has no free page or states.
    Result<Sequence> fork() const;
    // Returns the number of pages, over all blocks, that the next `tokens` tokens need beyond those the sequence has.
    int64_t missing_pages(int64_t tokens) const;

    // Returns references to tile `tile` (64 tokens), so that later sequences can adopt() it. All its tokens must have
    // gone through the model.
    TilePages share(int64_t tile) const;
    // Appends a shared tile. position() must be the tile's first token. Blocks with states require restore() after the
    // last tile.
    void adopt(const TilePages& tile);
    // Copies the states. Error: the pool has no free states.
    Result<StateCopy> copy_states() const;
    // Restores the states of the copy's position. Error: the pool has no free states.
    Status restore(const StateCopy& copy);
    // Forgets the last tokens, at most most_rewind. Recurrent states match `position` only after restore().
    void rewind(int64_t position) { position_ = position; }

    // Called by models: allocates pages for the next `tokens` tokens in every block, and states. Error: the pool has
    // too few; nothing changes.
    Status reserve(int64_t tokens);
    // Called by models after `tokens` tokens went through. Frees pages that no window reaches any more.
    void advance(int64_t tokens);
    // Called by mixers after reserve(): returns the pages of block `index` (BlockConfig::index) by tile; null before
    // the window.
    std::span<std::byte* const> pages(int index) const;
    // Called by mixers after reserve(): returns the block's `StateLayout::floats` numbers.
    float* state(int index);
    const KvPool& pool() const { return *pool_; }
    SequencePlaces places() const;

private:
    friend class KvPool;
    explicit Sequence(KvPool& pool);
    KvPool* pool_ = nullptr;
    int64_t position_ = 0;
    std::vector<std::vector<std::byte*>> pages_;
    std::byte* states_ = nullptr;  // states of all blocks; null before the first token
};

class KvPool {
public:
    // `layouts`: one per block, in order. The pool holds `tokens` tokens in every block with K and V, and the states of
    // `sequences` sequences. make(bytes) returns a Result<std::unique_ptr<StateMemory>>. Error: that of make().
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
    // Makes this a pool whose pages and states are allocated by a pool of the same layout on another rank. sequence()
    // may not be called.
    void mirror() { mirror_ = true; }
    // Returns a sequence with the pages and states at these places. Requires mirror(). Error: there are no such places.
    Result<Sequence> at(const SequencePlaces& places);
    // Returns the number of states. The functions below write by number; a number that does not exist is an error.
    int32_t states_number(const std::byte* states) const;
    Status zero_states(int32_t number);
    Status copy_page(int32_t to, int32_t from);
    Status copy_states(int32_t to, int32_t from);
    int64_t pages() const;       // pages of all blocks together
    int64_t free_pages() const;  // currently free
    int64_t page_bytes() const;
    int64_t sequences() const { return sequences_; }  // most sequences with states at the same time
    bool recurrent() const { return state_bytes_ > 0; }
    // Returns the most pages that a sequence of `tokens` tokens holds when it is processed in pieces of `piece` tokens.
    int64_t pages_for(int64_t tokens, int64_t piece) const;
    int64_t bytes() const;  // bytes of the memory: pages, then states
    // Gives the memory back to the system until pages are written again. No page may be in use.
    void forget() { memory_->forget(); }
    // base() is the first page; pages are numbered in memory order.
    std::byte* base() const { return memory_->base(); }
    int64_t number(const std::byte* page) const { return (page - base()) / page_bytes_; }

private:
    friend class Sequence;
    friend class TilePages;
    friend class StateCopy;
    KvPool(std::vector<StateLayout> layouts, int64_t tokens, int64_t sequences);
    std::byte* page(int32_t number) const { return base() + number * page_bytes_; }
    std::byte* take();  // nullptr when no page is free; the contents are arbitrary
    void share(const std::byte* page);
    void give(std::byte* page);
    std::byte* states(int32_t number) const;
    Status check_states(int32_t number) const;
    std::byte* take_states();  // nullptr when no states are free; the contents are arbitrary
    void give_states(const std::byte* states);

    std::vector<StateLayout> layouts_;
    std::vector<int64_t> state_offsets_;  // offset of every block in a sequence's states
    int64_t sequences_ = 0, page_bytes_ = 0, state_bytes_ = 0;
    std::unique_ptr<StateMemory> memory_;
    std::vector<int32_t> references_, free_, free_states_;
    bool mirror_ = false;
};

}  // namespace nibble
