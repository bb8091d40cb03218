// Sequences in progress and the memory behind them. A pool owns pages of 64 tokens of one block's K and V; a sequence
// holds a page table per block, and the recurrent states of the blocks that have some. Pages are reference-counted, so
// sequences with a common prefix share its full pages (fork); a page is written only by its one owner.
//
// One thread at a time uses a pool and its sequences; the pool outlives them.
#pragma once

#include "base/error.h"
#include "model/block.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace nibble {

class KvPool;

class Sequence {
public:
    Sequence(Sequence&&) noexcept;
    Sequence& operator=(Sequence&&) noexcept;
    ~Sequence();  // gives its pages back

    int64_t position() const;  // tokens that went through the model
    // A second sequence with the same past. Shares full pages, copies the last one of each block and the states.
    // Error: the pool has no page left.
    Result<Sequence> fork() const;

    // For Model: pages for the next `tokens` tokens of every block. Error: the pool has too few; nothing changed.
    Status reserve(int64_t tokens);
    // For Model: `tokens` tokens went through; pages that no window reaches any more are freed.
    void advance(int64_t tokens);
    // For mixers: pages of block `index` (BlockConfig::index), by tile; null before the window.
    std::span<std::byte* const> pages(int index) const;
    // For mixers: the block's `StateLayout::floats` numbers.
    std::span<float> state(int index);

private:
    friend class KvPool;
    explicit Sequence(KvPool& pool);
    KvPool* pool_ = nullptr;
    int64_t position_ = 0;
    std::vector<std::vector<std::byte*>> pages_;
    std::vector<std::vector<float>> states_;
};

class KvPool {
public:
    // `layouts`: of every block in order. Room for `tokens` tokens in every block with K and V; memory that the system
    // refuses leaves a pool without pages.
    KvPool(std::vector<StateLayout> layouts, int64_t tokens);
    KvPool(KvPool&&) = delete;
    ~KvPool();

    Sequence sequence();
    int64_t pages() const;       // of all blocks together
    int64_t free_pages() const;  // now
    int64_t page_bytes() const;

private:
    friend class Sequence;
    std::byte* take();  // nullptr when none is left; holds anything
    void share(const std::byte* page);
    void give(std::byte* page);
    size_t slot(const std::byte* page) const;

    std::vector<StateLayout> layouts_;
    int64_t page_bytes_ = 0;
    std::unique_ptr<std::byte, void (*)(std::byte*)> memory_;
    std::byte* base_ = nullptr;  // 64-byte aligned
    std::vector<int32_t> references_;
    std::vector<std::byte*> free_;
};

}  // namespace nibble
