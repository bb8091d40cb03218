// What prompts have in common: a tree of tiles of 64 tokens, each with the pages that a model made of them behind the
// tiles before it. A tile is found by its tokens, its parent and the salt at the root, compared whole: a hash decides
// where to look, never what is found. Models with recurrent states go on only where a copy of the states lies, too.
//
// A prompt's tiles enter the tree before they are computed, as promises of the answer that will compute them: others
// wait for them and compute nothing twice. Idle tiles are given back least recently used first.
//
// One thread at a time. The pool outlives the cache.
#pragma once

#include "model/sequence.h"
#include "serve/histogram.h"

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
    // `states`: copies of recurrent states that may be kept.
    PrefixCache(const KvPool& pool, int64_t states) : pool_(&pool), most_states_(states) {}

    struct Tile;
    // An answer's path from the root: its tiles are not idle, and the promised ones are its own.
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
        int64_t tiles() const { return tiles_; }  // computed ones

    private:
        friend class PrefixCache;
        PrefixCache* cache_ = nullptr;
        Tile* last_ = nullptr;  // of the computed ones, or the root
        int64_t tiles_ = 0;
        std::vector<Tile*> promised_;  // that follow
    };

    struct Found {
        bool wait = false;   // another answer is computing the next tile
        int64_t tokens = 0;  // that `sequence` now has behind it
        int64_t state_tile =
            0;  // a model with states would have gone on from here, had states been kept: > tokens / 64
        Path path;
    };
    // The longest usable beginning of `prompt` (never all of it) becomes the past of `sequence`, which is fresh.
    // Promises the tiles that follow it in the prompt. Error: the pool has no states left.
    Result<Found> begin(std::span<const int32_t> prompt, const std::string& salt, Sequence& sequence);
    // `sequence`, which has `path` behind it, has computed further tokens of `tokens`: its whole tiles enter the tree.
    void extend(Path& path, std::span<const int32_t> tokens, const Sequence& sequence);
    // Keeps the states of `sequence` with the last tile of `path`, where both are at the same place.
    Status keep_states(const Path& path, const Sequence& sequence);
    // The same path for a second answer with the same past.
    Path share(const Path& path);

    // Gives an idle tile back. False: there is none.
    bool evict();
    int64_t idle_pages() const { return idle_pages_; }
    int64_t evictions() const { return evictions_; }  // pages given back
    const BlockTimes& block_times() const { return times_; }

private:
    Tile* child(Tile& parent, std::span<const int32_t> tokens) const;
    Tile* add(Tile& parent, std::span<const int32_t> tokens);
    void hold(Tile& tile);
    void drop(Tile& tile);  // one holder less
    void erase(Tile& tile);
    void forget_states(Tile& tile);
    void release(Path& path);
    void finish(Tile& tile, const Sequence& sequence, int64_t number);
    void note_use(Tile& tile, std::chrono::steady_clock::time_point now);

    const KvPool* pool_;
    int64_t most_states_;
    std::map<std::string, std::unique_ptr<Tile>> roots_;
    std::list<Tile*> idle_;         // the least recently used last
    std::list<Tile*> with_states_;  // the same
    int64_t idle_pages_ = 0, evictions_ = 0;
    BlockTimes times_;
};

// A tile of the tree.
struct PrefixCache::Tile {
    Tile* parent = nullptr;  // null: a root
    std::vector<int32_t> tokens;
    std::unordered_multimap<uint64_t, std::unique_ptr<Tile>> children;
    bool ready = false;  // computed
    TilePages pages;
    StateCopy states;
    bool has_states = false;
    int64_t holders = 0;
    std::chrono::steady_clock::time_point born, used;
    std::list<Tile*>::iterator idle, stateful;
};

}  // namespace nibble
