#include "text/bpe.h"

#include "text/piece_cache.h"
#include "text/unicode.h"

#include <algorithm>
#include <queue>

namespace nibble {
namespace {

constexpr uint32_t none = ~uint32_t{0};
constexpr std::string_view blank = "\u2581";

uint64_t pair_key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

struct Bpe::Scratch : ModelScratch {
    struct Symbol {
        uint32_t id, previous, next;
        uint32_t
            rank;  // rank of the pair with the next symbol; `none` if there is no merge or the symbol was merged away
        uint32_t merged;
    };
    PieceCache cache;
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank << 32 | position
    bool in_unknown = false;
};

Bpe::Bpe(const Vocabulary& vocabulary, const BpeOptions& options)
    : options_(options), made_(vocabulary.size()), tokens_(static_cast<uint32_t>(vocabulary.size())) {
    const ByteAlphabet alphabet;
    ids_.reserve(vocabulary.size());
    for (uint32_t id = 0; id < vocabulary.size(); ++id) {
        if (!vocabulary.has(id)) continue;
        const std::string& text = vocabulary.text(id);
        longest_ = std::max(longest_, text.size());
        if (options.byte_level) {
            // An added token has characters outside the alphabet and never results from bytes.
            if (auto bytes = alphabet.bytes(text)) {
                if (bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = id;
                ids_.emplace(*std::move(bytes), id);
            }
        } else {
            if (const auto byte = byte_token(text); byte && options.byte_fallback) byte_ids_[*byte] = id;
            ids_.emplace(text, id);
        }
    }
}

Status Bpe::add_merge(uint32_t left, uint32_t right, uint32_t rank, uint32_t id) {
    merges_.insert(pair_key(left, right), {rank, id});  // if a pair has two merges, the first counts
    if (id < made_.size()) made_[id] = true;
    return Ok{};
}

Result<std::unique_ptr<Bpe>> Bpe::from_merges(const Vocabulary& vocabulary, const BpeOptions& options,
                                              const std::vector<std::pair<std::string, std::string>>& merges) {
    std::unique_ptr<Bpe> bpe(new Bpe(vocabulary, options));
    std::vector<std::string_view> made;
    for (size_t rank = 0; rank < merges.size(); ++rank) {
        const auto& [left, right] = merges[rank];
        const auto a = vocabulary.find(left), b = vocabulary.find(right), c = vocabulary.find(left + right);
        if (!a || !b || !c) return fail("model.merges: entry {} joins or makes what is no token", rank);
        NIBBLE_CHECK(bpe->add_merge(*a, *b, static_cast<uint32_t>(rank), *c));
        made.push_back(vocabulary.text(*c));
    }
    bpe->find_boundaries(made);
    return bpe;
}

Result<std::unique_ptr<Bpe>> Bpe::from_scores(const Vocabulary& vocabulary, const BpeOptions& options,
                                              const std::vector<bool>& mergeable, const std::vector<float>& scores) {
    std::unique_ptr<Bpe> bpe(new Bpe(vocabulary, options));
    // Ranks follow falling scores. Equal scores share a rank, so the leftmost pair merges first.
    std::vector<float> order;
    std::vector<std::string_view> made;
    for (uint32_t id = 0; id < vocabulary.size(); ++id)
        if (mergeable[id]) order.push_back(scores[id]);
    std::sort(order.begin(), order.end(), std::greater<>());
    order.erase(std::unique(order.begin(), order.end()), order.end());
    TextIds& ids = bpe->ids_;
    std::erase_if(ids, [&](const auto& entry) { return !mergeable[entry.second]; });
    uint32_t next_virtual = static_cast<uint32_t>(vocabulary.size());
    // Characters that occur in pieces but are not pieces themselves become symbols with ids after the vocabulary.
    for (uint32_t id = 0; id < vocabulary.size(); ++id) {
        if (!mergeable[id]) continue;
        const std::string_view text = vocabulary.text(id);
        if (text.size() > 1024) return fail("piece {} of {} bytes is too long", id, text.size());
        for (size_t i = 0; i < text.size();) {
            const Utf8Step step = utf8_step(text, i);
            if (ids.try_emplace(std::string(text.substr(i, step.size)), next_virtual).second) {
                bpe->virtual_texts_.push_back(step.code);
                ++next_virtual;
            }
            i += step.size;
        }
    }
    for (uint32_t id = 0; id < vocabulary.size(); ++id) {
        if (!mergeable[id]) continue;
        const std::string_view text = vocabulary.text(id);
        const auto rank = static_cast<uint32_t>(
            std::lower_bound(order.begin(), order.end(), scores[id], std::greater<>()) - order.begin());
        for (size_t i = utf8_step(text, 0).size; i < text.size(); i += utf8_step(text, i).size) {
            const auto left = ids.find(text.substr(0, i)), right = ids.find(text.substr(i));
            if (left == ids.end() || right == ids.end()) continue;
            NIBBLE_CHECK(bpe->add_merge(left->second, right->second, rank, id));
            made.push_back(text);
        }
    }
    bpe->find_boundaries(made);
    return bpe;
}

// If no token contains U+2581 after another character, the text can be cut before each such U+2581. The parts are
// words, which the cache can hold.
void Bpe::find_boundaries(const std::vector<std::string_view>& made) {
    cut_at_blanks_ = !options_.byte_level && !options_.ignore_merges && !options_.fuse_unknown;
    if (options_.fuse_unknown && options_.byte_fallback && !options_.byte_level && !options_.ignore_merges)
        cut_at_blanks_ = std::ranges::all_of(byte_ids_, [](const auto& id) { return id.has_value(); });
    for (const std::string_view text : made)
        for (size_t at = text.find(blank, 1); cut_at_blanks_ && at != text.npos; at = text.find(blank, at + 1))
            if (!text.substr(0, at).ends_with(blank)) cut_at_blanks_ = false;
}

std::unique_ptr<ModelScratch> Bpe::make_scratch() const { return std::make_unique<Scratch>(); }

Status Bpe::encode(std::string_view piece, ModelScratch& scratch, Meter& meter, std::vector<uint32_t>& out) const {
    auto& own = static_cast<Scratch&>(scratch);
    size_t begin = 0;
    if (cut_at_blanks_) {
        for (size_t at = piece.find(blank, 1); at != piece.npos; at = piece.find(blank, at + blank.size())) {
            if (piece.substr(0, at).ends_with(blank)) continue;
            NIBBLE_CHECK(encode_part(piece.substr(begin, at - begin), own, meter, out));
            begin = at;
        }
    }
    return encode_part(piece.substr(begin), own, meter, out);
}

Status Bpe::encode_part(std::string_view part, Scratch& scratch, Meter& meter, std::vector<uint32_t>& out) const {
    if (part.size() > PieceCache::max_piece) return merge(part, scratch, meter, out);
    if (!meter.pay_steps(1)) return meter.error();
    if (const auto* ids = scratch.cache.find(part)) {
        out.insert(out.end(), ids->begin(), ids->end());
        return Ok{};
    }
    const size_t before = out.size();
    NIBBLE_CHECK(merge(part, scratch, meter, out));
    scratch.cache.insert(part, std::span(out).subspan(before));
    return Ok{};
}

void Bpe::add_unknown(std::string_view character, Scratch& scratch) const {
    const auto push = [&](uint32_t id) { scratch.symbols.push_back({id, none, none, none, none}); };
    if (options_.byte_fallback) {
        const bool all =
            std::ranges::all_of(character, [&](char c) { return byte_ids_[static_cast<uint8_t>(c)].has_value(); });
        if (all) {
            for (const char c : character) push(*byte_ids_[static_cast<uint8_t>(c)]);
            return;
        }
    }
    if (!options_.unknown) return;
    if (!scratch.in_unknown || !options_.fuse_unknown) push(*options_.unknown);
    scratch.in_unknown = true;
}

void Bpe::add_symbols(std::string_view part, Scratch& scratch) const {
    scratch.symbols.clear();
    scratch.in_unknown = false;
    const auto push = [&](uint32_t id) {
        scratch.symbols.push_back({id, none, none, none, none});
        scratch.in_unknown = false;
    };
    for (size_t i = 0; i < part.size();) {
        if (options_.byte_level) {
            const auto id = byte_ids_[static_cast<uint8_t>(part[i])];
            id ? push(*id) : add_unknown({}, scratch);
            ++i;
            continue;
        }
        const std::string_view character = part.substr(i, utf8_step(part, i).size);
        const auto id = ids_.find(character);
        id != ids_.end() ? push(id->second) : add_unknown(character, scratch);
        i += character.size();
    }
}

Status Bpe::merge(std::string_view part, Scratch& scratch, Meter& meter, std::vector<uint32_t>& out) const {
    constexpr size_t bytes_a_symbol = sizeof(Scratch::Symbol) + sizeof(uint64_t) + sizeof(uint32_t);
    if (!meter.pay_bytes(static_cast<int64_t>(part.size() * bytes_a_symbol))) return meter.error();
    if (options_.ignore_merges) {
        if (const auto id = ids_.find(part); id != ids_.end()) {
            out.push_back(id->second);
            return Ok{};
        }
    }
    add_symbols(part, scratch);
    auto& symbols = scratch.symbols;
    if (!meter.allow_tokens(std::ssize(out) + static_cast<int64_t>(symbols.size() / longest_))) return meter.error();
    auto& heap = scratch.heap;
    heap.clear();
    const auto rate = [&](uint32_t at) {
        auto& s = symbols[at];
        const Merge* m = s.next == none ? nullptr : merges_.find(pair_key(s.id, symbols[s.next].id));
        s.rank = m ? m->rank : none;
        s.merged = m ? m->id : none;
        return m != nullptr;
    };
    const auto n = static_cast<uint32_t>(symbols.size());
    for (uint32_t i = 0; i < n; ++i) {
        symbols[i].previous = i == 0 ? none : i - 1;
        symbols[i].next = i + 1 == n ? none : i + 1;
    }
    for (uint32_t i = 0; i < n; ++i)
        if (rate(i)) heap.push_back(uint64_t{symbols[i].rank} << 32 | i);
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    const auto push = [&](uint32_t at) {
        if (!rate(at)) return;
        heap.push_back(uint64_t{symbols[at].rank} << 32 | at);
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    while (!heap.empty()) {
        if (!meter.pay_steps(4)) return meter.error();
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        const uint64_t top = heap.back();
        heap.pop_back();
        const auto at = static_cast<uint32_t>(top);
        auto& s = symbols[at];
        if (s.rank != static_cast<uint32_t>(top >> 32)) continue;  // outdated entry of this symbol
        auto& gone = symbols[s.next];
        s.id = s.merged;
        s.next = gone.next;
        if (gone.next != none) symbols[gone.next].previous = at;
        gone.rank = none;
        gone.id = none;
        push(at);
        if (s.previous != none) push(s.previous);
    }
    const size_t before = out.size();
    for (uint32_t i = 0; i < n && i != none; i = symbols[i].next) {
        if (symbols[i].id < tokens_) {
            out.push_back(symbols[i].id);
            continue;
        }
        // A character that occurs only inside pieces and was not merged is unknown.
        std::string character;
        utf8_append(character, virtual_texts_[symbols[i].id - tokens_]);
        scratch.in_unknown = options_.fuse_unknown && out.size() > before && out.back() == options_.unknown;
        const size_t end = symbols.size();
        add_unknown(character, scratch);
        for (size_t k = end; k < symbols.size(); ++k) out.push_back(symbols[k].id);
    }
    return Ok{};
}

}  // namespace nibble
