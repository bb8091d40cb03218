#include "io/pickle.h"

#include "io/json_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <unordered_map>

namespace nibble {
namespace {

using Kind = PickleNode::Kind;
constexpr std::string_view ordered_dict = "collections.OrderedDict";

class PickleReader {
public:
    PickleReader(Bytes bytes, std::span<const std::string_view> globals) : bytes_(bytes), globals_(globals) {}

    Result<Pickle> read() {
        for (;;) {
            const size_t at = at_;
            NIBBLE_TRY(const uint8_t op, number<uint8_t>());
            if (op == '.') break;
            NIBBLE_CHECK(step(op).within(fmt::format("byte {}", at)));
        }
        if (stack_.size() != 1 || !marks_.empty()) return fail("{} values are left at the end", stack_.size());
        pickle_.root = stack_.back();
        return std::move(pickle_);
    }

private:
    template <class T>
    Result<T> number() {
        NIBBLE_TRY(const Bytes bytes, take(sizeof(T)));
        T value;
        std::memcpy(&value, bytes.data(), sizeof value);
        return value;
    }

    Result<Bytes> take(uint64_t size) {
        if (size > bytes_.size() - at_) return fail("the pickle is cut short");
        const Bytes part = bytes_.subspan(at_, static_cast<size_t>(size));
        at_ += static_cast<size_t>(size);
        return part;
    }

    Result<std::string_view> text(uint64_t size) {
        NIBBLE_TRY(const Bytes bytes, take(size));
        return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }

    Result<std::string_view> line() {
        const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_, bytes_.size() - at_);
        const size_t end = rest.find('\n');
        if (end == rest.npos) return fail("the pickle is cut short");
        at_ += end + 1;
        return rest.substr(0, end);
    }

    Status push(PickleNode node) {
        if (pickle_.nodes.size() >= size_t{INT32_MAX}) return fail("too many values");
        stack_.push_back(static_cast<int32_t>(pickle_.nodes.size()));
        pickle_.nodes.push_back(std::move(node));
        return Ok{};
    }

    Result<int32_t> pop() {
        if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return fail("a value is missing");
        const int32_t top = stack_.back();
        stack_.pop_back();
        return top;
    }

    // Returns the values after the last mark.
    Result<std::vector<int32_t>> pop_to_mark() {
        if (marks_.empty()) return fail("a mark is missing");
        const auto first = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
        std::vector<int32_t> values(first, stack_.end());
        stack_.erase(first, stack_.end());
        marks_.pop_back();
        return values;
    }

    Status push_values(Kind kind, std::vector<int32_t> values) {
        return push({.kind = kind, .integer = 0, .text = {}, .items = std::move(values)});
    }

    Status tuple_of(size_t count) {
        std::vector<int32_t> values(count);
        for (size_t i = count; i-- > 0;) {
            NIBBLE_TRY(values[i], pop());
        }
        return push_values(Kind::tuple, std::move(values));
    }

    Status push_text(Result<std::string_view> text) {
        if (!text.ok()) return std::move(text).error();
        return push({.kind = Kind::text, .integer = 0, .text = *text, .items = {}});
    }
    Status push_integer(int64_t value, Kind kind = Kind::integer) {
        return push({.kind = kind, .integer = value, .text = {}, .items = {}});
    }

    Status push_global(std::string_view module, std::string_view name) {
        const std::string whole = fmt::format("{}.{}", module, name);
        const auto known = std::ranges::find(globals_, std::string_view(whole));
        if (known == globals_.end())
            return fail("names {}, which is not a part of tensors: the pickle is not read", show_name(whole));
        return push({.kind = Kind::global, .integer = 0, .text = *known, .items = {}});
    }

    Status stack_global() {
        NIBBLE_TRY(const int32_t name, pop());
        NIBBLE_TRY(const int32_t module, pop());
        if (pickle_.at(name).kind != Kind::text || pickle_.at(module).kind != Kind::text)
            return fail("a class without a name");
        return push_global(pickle_.at(module).text, pickle_.at(name).text);
    }

    Status remember(uint64_t key) {
        if (stack_.empty()) return fail("a value is missing");
        memo_[key] = stack_.back();
        return Ok{};
    }

    Status recall(uint64_t key) {
        const auto found = memo_.find(key);
        if (found == memo_.end()) return fail("refers to value {}, which does not exist", key);
        stack_.push_back(found->second);
        return Ok{};
    }

    // Adds values to the list or dictionary on the top of the stack.
    Status add(Kind kind, std::span<const int32_t> values) {
        if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return fail("a value is missing");
        PickleNode& to = pickle_.nodes[static_cast<size_t>(stack_.back())];
        if (to.kind != kind || (kind == Kind::dictionary && values.size() % 2 != 0))
            return fail("values are added to something else than a list or dictionary");
        to.items.insert(to.items.end(), values.begin(), values.end());
        return Ok{};
    }

    Status reduce() {
        NIBBLE_TRY(const int32_t arguments, pop());
        NIBBLE_TRY(const int32_t callable, pop());
        const PickleNode &f = pickle_.at(callable), &a = pickle_.at(arguments);
        if (f.kind != Kind::global || a.kind != Kind::tuple) return fail("a call of something else than a function");
        if (f.text == ordered_dict && a.items.empty()) return push_values(Kind::dictionary, {});
        return push_values(Kind::call, {callable, arguments});
    }

    // Attributes of a dictionary (the _metadata of a state dict) do not matter.
    Status build() {
        NIBBLE_CHECK(pop());
        if (stack_.empty() || pickle_.at(stack_.back()).kind != Kind::dictionary)
            return fail("attributes of something else than a dictionary");
        return Ok{};
    }

    Status long_integer() {
        NIBBLE_TRY(const uint8_t size, number<uint8_t>());
        NIBBLE_TRY(const Bytes bytes, take(size));
        if (size > 8) return fail("an integer of {} bytes", size);
        uint64_t value = size && (static_cast<uint8_t>(bytes.back()) & 0x80u) ? ~uint64_t{0} : 0;
        for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
        return push_integer(static_cast<int64_t>(value));
    }

    template <class T>
    Status sized_text() {
        NIBBLE_TRY(const T size, number<T>());
        return push_text(text(size));
    }

    template <class T>
    Status push_number() {
        NIBBLE_TRY(const T value, number<T>());
        return push_integer(value);
    }

    template <class T>
    Status memo(bool get) {
        NIBBLE_TRY(const T key, number<T>());
        return get ? recall(key) : remember(key);
    }

    Status add_last(Kind kind, size_t count) {
        std::vector<int32_t> values(count);
        for (size_t i = count; i-- > 0;) {
            NIBBLE_TRY(values[i], pop());
        }
        return add(kind, values);
    }

    Status add_marked(Kind kind) {
        NIBBLE_TRY(const auto values, pop_to_mark());
        return add(kind, values);
    }

    Status step(uint8_t op) {
        switch (op) {
            case 0x80: {  // PROTO
                NIBBLE_TRY(const uint8_t version, number<uint8_t>());
                return version <= 5 ? Status(Ok{}) : fail("version {} of pickle", version);
            }
            case 0x95:  // FRAME
                return take(8).ok() ? Status(Ok{}) : fail("the pickle is cut short");
            case '(':
                marks_.push_back(stack_.size());
                return Ok{};
            case '0': {  // POP
                NIBBLE_CHECK(pop());
                return Ok{};
            }
            case 'N':
                return push({});
            case 0x88:
            case 0x89:
                return push_integer(op == 0x88, Kind::boolean);
            case 'J':
                return push_number<int32_t>();
            case 'K':
                return push_number<uint8_t>();
            case 'M':
                return push_number<uint16_t>();
            case 0x8a:
                return long_integer();
            case 'G': {  // BINFLOAT
                NIBBLE_CHECK(take(8));
                return push_integer(0, Kind::number);
            }
            case 'X':
                return sized_text<uint32_t>();
            case 'T': {  // BINSTRING
                NIBBLE_TRY(const int32_t size, number<int32_t>());
                return size < 0 ? fail("a text of {} bytes", size) : push_text(text(static_cast<uint64_t>(size)));
            }
            case 'U':
            case 0x8c:
                return sized_text<uint8_t>();
            case 0x8d:
                return sized_text<uint64_t>();
            case 'c': {  // GLOBAL
                NIBBLE_TRY(const std::string_view module, line());
                NIBBLE_TRY(const std::string_view name, line());
                return push_global(module, name);
            }
            case 0x93:
                return stack_global();
            case '}':
                return push_values(Kind::dictionary, {});
            case ']':
                return push_values(Kind::list, {});
            case ')':
                return push_values(Kind::tuple, {});
            case 0x85:
            case 0x86:
            case 0x87:
                return tuple_of(op - 0x84u);
            case 't': {
                NIBBLE_TRY(auto values, pop_to_mark());
                return push_values(Kind::tuple, std::move(values));
            }
            case 'a':
                return add_last(Kind::list, 1);
            case 'e':
                return add_marked(Kind::list);
            case 's':
                return add_last(Kind::dictionary, 2);
            case 'u':
                return add_marked(Kind::dictionary);
            case 'q':
                return memo<uint8_t>(false);
            case 'r':
                return memo<uint32_t>(false);
            case 0x94:
                return remember(memo_.size());
            case 'h':
                return memo<uint8_t>(true);
            case 'j':
                return memo<uint32_t>(true);
            case 'R':
                return reduce();
            case 'b':
                return build();
            case 'Q': {  // BINPERSID
                NIBBLE_TRY(const int32_t id, pop());
                return push_values(Kind::persistent, {id});
            }
            default:
                return fail("the opcode 0x{:02x} is not one of a dictionary of tensors", op);
        }
    }

    Bytes bytes_;
    std::span<const std::string_view> globals_;
    size_t at_ = 0;
    Pickle pickle_;
    std::vector<int32_t> stack_;
    std::vector<size_t> marks_;  // sizes of the stack
    std::unordered_map<uint64_t, int32_t> memo_;
};

}  // namespace

Result<Pickle> parse_pickle(Bytes bytes, std::span<const std::string_view> globals) {
    return PickleReader(bytes, globals).read();
}

}  // namespace nibble
