// Caches prefixes that prompts share: a tree of tiles of 64 tokens, each with the pages that a model computed for them
// after the tiles before. A tile is found by its parent, its tokens and the salt at the root. Tokens are compared
// completely; hashes only speed up the search. Models with recurrent states can continue only at tiles with a copy of
// the states.
//
// A prompt's tiles enter the tree before they are computed, as promises of the answer that will compute them. Other
// answers wait for them, so nothing is computed twice. Idle tiles are evicted in least-recently-used order.
//
// Not thread-safe. The pool must outlive the cache.
#pragma once

#include "engine/histogram.h"
#include "model/sequence.h"

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

class PrefixCache {
public:
    // `states`: most copies of recurrent states.
    PrefixCache(const KvPool& pool, int64_t states) : pool_(&pool), most_states_(states) {}

    struct Tile;
    // An answer's path from the root. Its tiles are in use, and it must compute the promised ones.
    class Path {
    public:
        Path() = default;
        Path(Path&& other) noexcept { *this = std::move(other); }
        Path& operator=(Path&& other) noexcept {
            std::swap(cache_, other.cache_);
            std::swap(last_, other.last_);
            std::swap(tiles_, other.tiles_);
            std::swap(promised_, other.promised_);
            return *this;
        }
        ~Path();
        bool attached() const { return cache_ != nullptr; }
        int64_t tiles() const { return tiles_; }  // number of computed tiles

    private:
        friend class PrefixCache;
        PrefixCache* cache_ = nullptr;
        Tile* last_ = nullptr;  // last computed tile, or the root
        int64_t tiles_ = 0;
        std::vector<Tile*> promised_;  // promised tiles that follow `last_`
    };

    struct Found {
        bool wait = false;       // another answer is computing the next tile
        int64_t tokens = 0;      // number of tokens that `sequence` now holds
        int64_t state_tile = 0;  // tile at which a model with states could have continued if states had been kept
                                 // there: > tokens / 64; 0: none
        Path path;
    };
    // Looks up the longest usable prefix of `prompt` (never all of it) and makes it the past of `sequence`, which must
    // be new. Promises the tiles that follow it in the prompt. Error: the pool has no free states.
    Result<Found> begin(std::span<const int32_t> prompt, const std::string& salt, Sequence& sequence);
    // Adds the whole tiles that `sequence`, whose past begins with `path`, has computed of `tokens` to the tree.
    void extend(Path& path, std::span<const int32_t> tokens, const Sequence& sequence);
    // Keeps the states of `sequence` with the last tile of `path`, if both are at the same position. Error: the pool
    // has no free states.
    Status keep_states(const Path& path, const Sequence& sequence);
    // Returns the same path for a second answer with the same past.
    Path share(const Path& path);

    // Frees an idle tile. Returns false if there is none.
    bool evict();
    int64_t idle_pages() const { return idle_pages_; }
    int64_t evictions() const { return evictions_; }  // number of freed pages
    const BlockTimes& block_times() const { return times_; }

private:
    Tile* child(Tile& parent, std::span<const int32_t> tokens) const;
    Tile* add(Tile& parent, std::span<const int32_t> tokens);
    void hold(Tile& tile);
    void drop(Tile& tile);  // removes one holder
    void erase(Tile& tile);
    void forget_states(Tile& tile);
    void release(Path& path);
    void finish(Tile& tile, const Sequence& sequence, int64_t number);
    void note_use(Tile& tile, std::chrono::steady_clock::time_point now);

    const KvPool* pool_;
    int64_t most_states_;
    std::map<std::string, std::unique_ptr<Tile>> roots_;
    std::list<Tile*> idle_;         // least recently used last
    std::list<Tile*> with_states_;  // least recently used last
    int64_t idle_pages_ = 0, evictions_ = 0;
    BlockTimes times_;
};

// A node of the tree.
struct PrefixCache::Tile {
    Tile* parent = nullptr;  // null: the tile is a root
    std::vector<int32_t> tokens;
    std::unordered_multimap<uint64_t, std::unique_ptr<Tile>> children;
    bool ready = false;  // the tile is computed
    TilePages pages;
    StateCopy states;
    bool has_states = false;
    int64_t holders = 0;
    std::chrono::steady_clock::time_point born, used;
    std::list<Tile*>::iterator idle, stateful;
};

}  // namespace nibble
