#include "grammar/nfa.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace nibble {
namespace {

using Bytes = std::vector<std::pair<uint8_t, uint8_t>>;  // one range per byte of a character

// Adds the byte ranges of code points first ... last, whose encodings have equal length. Splits where the bytes after
// the first differing one do not cover all of 80 ... BF.
void add_equally_long(char32_t first, char32_t last, int more, Bytes& head, std::vector<Bytes>& out) {
    static constexpr uint8_t lead[]{0x00, 0xC0, 0xE0, 0xF0};
    const bool leading = head.empty();
    const auto byte = [&](char32_t code) {
        const uint32_t bits = uint32_t(code) >> (6 * more);
        return leading ? uint8_t(lead[more] | bits) : uint8_t(0x80 | (bits & 0x3F));
    };
    if (more == 0) {
        head.emplace_back(byte(first), byte(last));
        out.push_back(head);
        head.pop_back();
        return;
    }
    const char32_t unit = char32_t(1) << (6 * more);
    for (char32_t at = first; at <= last;) {
        const char32_t block_end = at | (unit - 1);
        if (at % unit == 0 && block_end <= last) {  // whole blocks
            const char32_t blocks = (last + 1 - at) / unit;
            head.emplace_back(byte(at), byte(at + (blocks - 1) * unit));
            const size_t size = head.size();
            for (int i = 0; i < more; ++i) head.emplace_back(0x80, 0xBF);
            out.push_back(head);
            head.resize(size - 1);
            at += blocks * unit;
        } else {
            const char32_t end = std::min(block_end, last);
            head.emplace_back(byte(at), byte(at));
            add_equally_long(at, end, more - 1, head, out);
            head.pop_back();
            at = end + 1;
        }
    }
}

std::vector<Bytes> byte_ranges(const CodeSet& codes) {
    std::vector<Bytes> out;
    static constexpr std::pair<char32_t, char32_t> lengths[]{
        {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, 0x10FFFF}};
    const CodeSet valid = codes.both(CodeSet::all());
    for (const auto& [low, high] : valid.ranges())
        for (int more = 0; more < 4; ++more) {
            const char32_t first = std::max(low, lengths[more].first), last = std::min(high, lengths[more].second);
            Bytes head;
            if (first <= last) add_equally_long(first, last, more, head, out);
        }
    return out;
}

std::string escaped(char32_t code) {
    switch (code) {
        case '"':
            return "\\\"";
        case '\\':
            return "\\\\";
        case '\b':
            return "\\b";
        case '\f':
            return "\\f";
        case '\n':
            return "\\n";
        case '\r':
            return "\\r";
        case '\t':
            return "\\t";
        default:
            return fmt::format("\\u{:04x}", uint32_t(code));
    }
}

class Emitter {
public:
    Emitter(Nfa& out, GrammarBudget& budget) : out_(out), budget_(budget) {}

    Status emit(const GrammarExpression& e, uint32_t from, uint32_t to, int depth) {
        if (depth > budget_.limits.max_depth * 8) return fail("nested too deeply");
        if (out_.states > budget_.limits.max_parts)
            return fail("the expression is too large: it needs more than {} states", budget_.limits.max_parts);
        switch (e.kind) {
            case GrammarExpression::Kind::text:
                text(e.text, from, to);
                return Ok{};
            case GrammarExpression::Kind::set:
                set(e, from, to);
                return Ok{};
            case GrammarExpression::Kind::sequence: {
                for (size_t i = 0; i + 1 < e.items.size(); ++i) {
                    const uint32_t next = state();
                    NIBBLE_CHECK(emit(*e.items[i], from, next, depth + 1));
                    from = next;
                }
                if (e.items.empty()) return jump(from, to);
                return emit(*e.items.back(), from, to, depth + 1);
            }
            case GrammarExpression::Kind::choice:
                for (const ExprPtr& item : e.items) NIBBLE_CHECK(emit(*item, from, to, depth + 1));
                return Ok{};
            case GrammarExpression::Kind::repeat:
                return repeat(e, from, to, depth);
            case GrammarExpression::Kind::rule:
                out_.calls.push_back({from, e.rule, to});
                return Ok{};
            case GrammarExpression::Kind::automaton:
                return automaton(*e.automaton, from, to);
            case GrammarExpression::Kind::graph: {
                const uint32_t first = out_.states;
                out_.states += e.nodes;
                NIBBLE_CHECK(jump(from, first));
                for (const auto& arc : e.arcs)
                    NIBBLE_CHECK(emit(*arc.item, first + arc.from, first + arc.to, depth + 1));
                return jump(first + 1, to);
            }
        }
        return fail("an expression of no kind");
    }

    uint32_t state() { return out_.states++; }

private:
    Status jump(uint32_t from, uint32_t to) {
        out_.jumps.push_back({from, to});
        return Ok{};
    }

    void text(const std::string& bytes, uint32_t from, uint32_t to) {
        if (bytes.empty()) out_.jumps.push_back({from, to});
        for (size_t i = 0; i < bytes.size(); ++i) {
            const uint32_t next = i + 1 < bytes.size() ? state() : to;
            out_.edges.push_back({from, uint8_t(bytes[i]), uint8_t(bytes[i]), next});
            from = next;
        }
    }

    void set(const GrammarExpression& e, uint32_t from, uint32_t to) {
        CodeSet plain = e.set;
        if (e.spelling == Spelling::json) {
            static const CodeSet special{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
            const CodeSet found = e.set.both(special);
            for (const auto& [first, last] : found.ranges())
                for (char32_t code = first; code <= last; ++code) text(escaped(code), from, to);
            plain = e.set.both(special.inverse());
        }
        std::map<Bytes, uint32_t> places;  // by the remaining byte ranges
        places[{}] = to;
        for (Bytes bytes : byte_ranges(plain)) {
            uint32_t next = to;
            for (size_t left = 1; left <= bytes.size(); ++left) {
                const auto& [first, last] = bytes[bytes.size() - left];
                if (left == bytes.size()) {
                    out_.edges.push_back({from, first, last, next});
                    break;
                }
                const auto [it, fresh] = places.try_emplace(Bytes(bytes.end() - std::ptrdiff_t(left), bytes.end()), 0);
                if (fresh) {
                    it->second = state();
                    out_.edges.push_back({it->second, first, last, next});
                }
                next = it->second;
            }
        }
    }

    Status repeat(const GrammarExpression& e, uint32_t from, uint32_t to, int depth) {
        const bool endless = e.most == GrammarExpression::unlimited;
        const size_t copies = endless ? e.least : e.most;
        for (size_t i = 0; i < copies; ++i) {
            if (i >= e.least) out_.jumps.push_back({from, to});
            const uint32_t next = state();
            NIBBLE_CHECK(emit(*e.items[0], from, next, depth + 1));
            from = next;
        }
        if (!endless) return jump(from, to);
        const uint32_t loop = state();
        out_.jumps.push_back({from, loop});
        const uint32_t end = state();
        NIBBLE_CHECK(emit(*e.items[0], loop, end, depth + 1));
        out_.jumps.push_back({end, loop});
        return jump(loop, to);
    }

    Status automaton(const Dfa& dfa, uint32_t from, uint32_t to) {
        if (dfa.empty()) return Ok{};
        const uint32_t first = out_.states;
        out_.states += uint32_t(dfa.states().size());
        out_.jumps.push_back({from, first});
        for (uint32_t i = 0; i < dfa.states().size(); ++i) {
            const Dfa::State& s = dfa.states()[i];
            for (const auto& edge : s.edges) {
                if (edge.first >= uint8_t(expression::begin_mark) && edge.last <= uint8_t(expression::end_mark))
                    out_.jumps.push_back({first + i, first + edge.to});
                else
                    out_.edges.push_back({first + i, edge.first, edge.last, first + edge.to});
            }
            for (const auto& call : s.calls) out_.calls.push_back({first + i, call.rule, first + call.to});
            if (s.accepts) out_.jumps.push_back({first + i, to});
        }
        return Ok{};
    }

    Nfa& out_;
    GrammarBudget& budget_;
};

}  // namespace

Result<Nfa> Nfa::of(const GrammarExpression& expression, GrammarBudget& budget) {
    Nfa out;
    Emitter emitter(out, budget);
    out.start = emitter.state();
    out.end = emitter.state();
    NIBBLE_CHECK(emitter.emit(expression, out.start, out.end, 0));
    NIBBLE_CHECK(budget.pay_work(out.states + out.edges.size()));
    const auto by_from = [](const auto& a, const auto& b) { return a.from < b.from; };
    std::stable_sort(out.edges.begin(), out.edges.end(), by_from);
    std::stable_sort(out.jumps.begin(), out.jumps.end(), by_from);
    std::stable_sort(out.calls.begin(), out.calls.end(), by_from);
    return out;
}

}  // namespace nibble
