#include "engine/prefix_cache.h"

#include "base/clock.h"
#include "kernels/attention.h"

#include <algorithm>

namespace nibble {
namespace {

uint64_t tile_hash(std::span<const int32_t> tokens) {
    uint64_t h = 0xCBF29CE484222325u;
    for (const int32_t t : tokens) h = (h ^ static_cast<uint32_t>(t)) * 0x100000001B3u;
    return h;
}

std::span<const int32_t> tile_of(std::span<const int32_t> tokens, int64_t tile) {
    return tokens.subspan(static_cast<size_t>(tile * kv_page_tokens), size_t{kv_page_tokens});
}

}  // namespace

PrefixCache::Path::~Path() {
    if (cache_) cache_->release(*this);
}

PrefixCache::Tile* PrefixCache::child(Tile& parent, std::span<const int32_t> tokens) const {
    const auto [first, last] = parent.children.equal_range(tile_hash(tokens));
    for (auto i = first; i != last; ++i)
        if (std::ranges::equal(i->second->tokens, tokens)) return i->second.get();
    return nullptr;
}

PrefixCache::Tile* PrefixCache::add(Tile& parent, std::span<const int32_t> tokens) {
    auto tile = std::make_unique<Tile>();
    tile->parent = &parent;
    tile->tokens.assign(tokens.begin(), tokens.end());
    return parent.children.emplace(tile_hash(tokens), std::move(tile))->second.get();
}

void PrefixCache::hold(Tile& tile) {
    if (tile.holders++ > 0 || !tile.parent) return;
    if (tile.ready) {
        idle_.erase(tile.idle);
        idle_pages_ -= tile.pages.count();
    }
}

// Children are released before their parents, so the last idle tile is a leaf.
void PrefixCache::drop(Tile& tile) {
    if (--tile.holders > 0 || !tile.parent) return;
    idle_.push_front(&tile);
    tile.idle = idle_.begin();
    idle_pages_ += tile.pages.count();
}

void PrefixCache::forget_states(Tile& tile) {
    if (!tile.has_states) return;
    with_states_.erase(tile.stateful);
    tile.states = StateCopy();
    tile.has_states = false;
}

void PrefixCache::erase(Tile& tile) {
    forget_states(tile);
    Tile& parent = *tile.parent;
    const auto [first, last] = parent.children.equal_range(tile_hash(tile.tokens));
    for (auto i = first; i != last; ++i)
        if (i->second.get() == &tile) {
            parent.children.erase(i);
            break;
        }
    if (!parent.parent && parent.children.empty() && parent.holders == 0)
        std::erase_if(roots_, [&](const auto& root) { return root.second.get() == &parent; });
}

void PrefixCache::release(Path& path) {
    for (size_t i = path.promised_.size(); i-- > 0;) erase(*path.promised_[i]);
    path.promised_.clear();
    Tile* tile = path.last_;
    while (tile) {
        Tile* const parent = tile->parent;
        drop(*tile);
        if (!parent && tile->children.empty() && tile->holders == 0)
            std::erase_if(roots_, [&](const auto& root) { return root.second.get() == tile; });
        tile = parent;
    }
    path.cache_ = nullptr;
}

Result<PrefixCache::Found> PrefixCache::begin(std::span<const int32_t> prompt, const std::string& salt,
                                              Sequence& sequence) {
    Found found;
    std::unique_ptr<Tile>& root = roots_[salt];
    if (!root) root = std::make_unique<Tile>();
    const int64_t whole = std::ssize(prompt) / kv_page_tokens;
    const int64_t usable = (std::ssize(prompt) - 1) / kv_page_tokens;  // at least one token must be computed
    std::vector<Tile*> path;
    for (Tile* at = root.get(); std::ssize(path) < usable;) {
        at = child(*at, tile_of(prompt, std::ssize(path)));
        if (!at) break;
        if (!at->ready) {
            found.wait = true;
            return found;
        }
        path.push_back(at);
    }
    // Finds the longest prefix whose pages and states all exist.
    int64_t tiles = std::ssize(path);
    const auto serves = [&](int64_t n) {
        if (n == 0) return true;
        if (pool_->recurrent() && !path[static_cast<size_t>(n - 1)]->has_states) return false;
        for (int64_t i = 0; i < n; ++i)
            if (!path[static_cast<size_t>(i)]->pages.serves((n - 1 - i) * kv_page_tokens)) return false;
        return true;
    };
    found.state_tile = tiles;
    while (!serves(tiles)) --tiles;
    for (int64_t i = 0; i < tiles; ++i) sequence.adopt(path[static_cast<size_t>(i)]->pages);
    if (tiles > 0 && pool_->recurrent()) {
        Tile& last = *path[static_cast<size_t>(tiles - 1)];
        NIBBLE_CHECK(sequence.restore(last.states));
        with_states_.splice(with_states_.begin(), with_states_, last.stateful);
    }
    found.tokens = tiles * kv_page_tokens;
    found.path.cache_ = this;
    found.path.tiles_ = tiles;
    found.path.last_ = tiles > 0 ? path[static_cast<size_t>(tiles - 1)] : root.get();
    const auto now = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < tiles; ++i) {
        hold(*path[static_cast<size_t>(i)]);
        note_use(*path[static_cast<size_t>(i)], now);
    }
    hold(*root);
    // Tiles of the tree that cannot be used are computed again and stay unchanged; new tiles after them are promised.
    if (tiles == std::ssize(path)) {
        Tile* at = found.path.last_;
        for (int64_t i = tiles; i < whole && !child(*at, tile_of(prompt, i)); ++i) {
            at = add(*at, tile_of(prompt, i));
            found.path.promised_.push_back(at);
        }
    }
    return found;
}

void PrefixCache::finish(Tile& tile, const Sequence& sequence, int64_t number) {
    tile.pages = sequence.share(number);
    tile.ready = true;
    tile.born = tile.used = std::chrono::steady_clock::now();
}

void PrefixCache::note_use(Tile& tile, std::chrono::steady_clock::time_point now) {
    times_.reuse_gap.add(to_seconds(now - tile.used));
    tile.used = now;
}

void PrefixCache::extend(Path& path, std::span<const int32_t> tokens, const Sequence& sequence) {
    if (!path.cache_) return;
    const int64_t whole = std::min(sequence.position(), std::ssize(tokens)) / kv_page_tokens;
    while (path.tiles_ < whole) {
        Tile* next = nullptr;
        if (!path.promised_.empty()) {
            next = path.promised_.front();
            path.promised_.erase(path.promised_.begin());
            finish(*next, sequence, path.tiles_);
            next->holders = 1;
        } else if ((next = child(*path.last_, tile_of(tokens, path.tiles_)))) {
            if (!next->ready) return;  // another answer has promised this tile; this answer's tiles stay private
            const bool idle = next->holders == 0;
            hold(*next);
            // One copy is enough: a cache that holds only this answer must not also hold the older copy.
            if (idle) next->pages = sequence.share(path.tiles_);
        } else {
            next = add(*path.last_, tile_of(tokens, path.tiles_));
            finish(*next, sequence, path.tiles_);
            next->holders = 1;
        }
        path.last_ = next;
        ++path.tiles_;
    }
}

Status PrefixCache::keep_states(const Path& path, const Sequence& sequence) {
    if (!path.cache_ || most_states_ == 0 || path.tiles_ == 0) return Ok{};
    if (path.tiles_ * kv_page_tokens != sequence.position() || path.last_->has_states) return Ok{};
    while (std::ssize(with_states_) >= most_states_) forget_states(*with_states_.back());
    NIBBLE_TRY(path.last_->states, sequence.copy_states());
    path.last_->has_states = true;
    with_states_.push_front(path.last_);
    path.last_->stateful = with_states_.begin();
    return Ok{};
}

PrefixCache::Path PrefixCache::share(const Path& path) {
    Path copy;
    if (!path.cache_) return copy;
    copy.cache_ = this;
    copy.last_ = path.last_;
    copy.tiles_ = path.tiles_;
    for (Tile* tile = path.last_; tile; tile = tile->parent) hold(*tile);
    return copy;
}

bool PrefixCache::evict() {
    if (idle_.empty()) return false;
    Tile& tile = *idle_.back();
    idle_.pop_back();
    const int64_t pages = tile.pages.count();
    idle_pages_ -= pages;
    evictions_ += pages;
    const auto now = std::chrono::steady_clock::now();
    times_.lifetime.add(to_seconds(now - tile.born));
    times_.idle_before_evict.add(to_seconds(now - tile.used));
    erase(tile);
    return true;
}

}  // namespace nibble
