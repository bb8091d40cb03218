#include "model/step_record.h"

#include <cstring>
#include <type_traits>

namespace nibble {
namespace {

class Writer {
public:
    template <class T>
    void operator()(const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        const auto* from = reinterpret_cast<const std::byte*>(&value);
        bytes.insert(bytes.end(), from, from + sizeof value);
    }
    void operator()(const std::string& text) { (*this)(std::vector<char>(text.begin(), text.end())); }
    template <class T>
    void operator()(const std::vector<T>& values) {
        (*this)(static_cast<int64_t>(values.size()));
        if constexpr (std::is_arithmetic_v<T>) {
            const auto* from = reinterpret_cast<const std::byte*>(values.data());
            bytes.insert(bytes.end(), from, from + values.size() * sizeof(T));
        } else {
            for (const T& value : values) fields(*this, value);
        }
    }
    RankBytes bytes;
};

class Reader {
public:
    explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
    template <class T>
    void operator()(T& value) {
        if (bytes_.size() < sizeof value) return fail();
        std::memcpy(&value, bytes_.data(), sizeof value);
        bytes_ = bytes_.subspan(sizeof value);
    }
    void operator()(std::string& text) {
        std::vector<char> letters;
        (*this)(letters);
        text.assign(letters.begin(), letters.end());
    }
    template <class T>
    void operator()(std::vector<T>& values) {
        int64_t count = 0;
        (*this)(count);
        // Every element has at least one byte.
        if (count < 0 || count > static_cast<int64_t>(bytes_.size())) return fail();
        values.resize(static_cast<size_t>(count));
        if constexpr (std::is_arithmetic_v<T>) {
            const size_t size = values.size() * sizeof(T);
            if (size > bytes_.size()) return fail();
            if (size > 0) std::memcpy(values.data(), bytes_.data(), size);
            bytes_ = bytes_.subspan(size);
        } else {
            for (T& value : values) fields(*this, value);
        }
    }
    bool whole() const { return !bad_ && bytes_.empty(); }

private:
    void fail() { bad_ = true, bytes_ = {}; }
    std::span<const std::byte> bytes_;
    bool bad_ = false;
};

// One list of fields serves both directions.
template <class Io, class Write>
void fields(Io& io, Write& write) requires std::is_same_v<std::remove_const_t<Write>, PoolWrite> {
    io(write.kind), io(write.pool), io(write.to), io(write.from);
}
template <class Io, class Numbers>
void fields(Io& io, Numbers& numbers) requires std::is_same_v<std::remove_const_t<Numbers>, std::vector<int32_t>> {
    io(numbers);
}
template <class Io, class Rows>
void fields(Io& io, Rows& rows) requires std::is_same_v<std::remove_const_t<Rows>, StepRecord::Rows> {
    io(rows.pool), io(rows.places.position), io(rows.places.pages), io(rows.places.states);
    io(rows.tokens), io(rows.logits_from), io(rows.position);
}
template <class Io, class Record>
void fields(Io& io, Record& record) requires std::is_same_v<std::remove_const_t<Record>, StepRecord> {
    io(record.action), io(record.number), io(record.model), io(record.last_failed), io(record.writes);
    io(record.text);
    io(record.pool), io(record.tokens), io(record.sequences);
    io(record.segments), io(record.again), io(record.rows);
}

}  // namespace

RankBytes encode(const StepRecord& record) {
    Writer writer;
    fields(writer, record);
    return std::move(writer.bytes);
}

Result<StepRecord> decode_record(std::span<const std::byte> bytes) {
    Reader reader(bytes);
    StepRecord record;
    fields(reader, record);
    if (!reader.whole()) return fail("a step's record of {} bytes is damaged", bytes.size());
    return record;
}

}  // namespace nibble
