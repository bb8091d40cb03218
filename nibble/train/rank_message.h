// Serializes numbers for messages between ranks: arrays with their lengths, in the machine's byte order (all ranks run
// the same program).
#pragma once

#include "parallel/rank_group.h"

#include <cstring>
#include <span>
#include <vector>

namespace nibble {

inline void put_bytes(RankBytes& out, std::span<const std::byte> bytes) {
    const size_t end = out.size();
    out.resize(end + bytes.size());
    if (!bytes.empty()) std::memcpy(out.data() + end, bytes.data(), bytes.size());
}
inline void put_number(RankBytes& out, int64_t number) { put_bytes(out, std::as_bytes(std::span(&number, 1))); }
template <class T>
void put_numbers(RankBytes& out, std::span<const T> numbers) {
    put_number(out, std::ssize(numbers));
    put_bytes(out, std::as_bytes(numbers));
}
template <class T>
void put_numbers(RankBytes& out, const std::vector<T>& numbers) {
    put_numbers(out, std::span<const T>(numbers));
}

// Reads values in the order in which they were written. Values beyond the end are 0 or empty.
class RankReader {
public:
    RankReader(const RankBytes& bytes) : rest_(bytes) {}
    int64_t number() {
        int64_t value = 0;
        copy(std::as_writable_bytes(std::span(&value, 1)));
        return value;
    }
    template <class T>
    std::vector<T> numbers() {
        const int64_t count = number();
        std::vector<T> values(
            count > 0 && static_cast<size_t>(count) <= rest_.size() / sizeof(T) ? static_cast<size_t>(count) : 0);
        copy(std::as_writable_bytes(std::span(values)));
        return values;
    }

private:
    void copy(std::span<std::byte> to) {
        if (to.size() > rest_.size()) return;
        if (!to.empty()) std::memcpy(to.data(), rest_.data(), to.size());
        rest_ = rest_.subspan(to.size());
    }
    std::span<const std::byte> rest_;
};

}  // namespace nibble
