#include "data/batch_source.h"

#include "base/philox.h"

#include <nlohmann/json.hpp>

#include <numeric>
#include <utility>

namespace nibble {
namespace {

constexpr uint64_t synthetic_role = uint64_t{0x5E} << 56, window_role = uint64_t{0x5F} << 56;

// A source whose position is the number of rows returned so far.
class RowSource : public BatchSource {
public:
    explicit RowSource(int64_t seq) : seq_(seq) {}
    Result<TrainBatch> next(int64_t rows) override {
        std::vector<int32_t> tokens;
        tokens.reserve(static_cast<size_t>(rows * (seq_ + 1)));
        for (int64_t r = 0; r < rows; ++r) append(row_++, tokens);
        return next_token_batch(std::move(tokens), rows, seq_);
    }
    Json place() const override { return {{"row", row_}}; }
    Status set_place(const Json& place) override {
        const auto row = place.find("row");
        if (row == place.end() || !row->is_number_integer() || row->get<int64_t>() < 0)
            return fail("the position in the data has no 'row'");
        row_ = row->get<int64_t>();
        return Ok{};
    }

protected:
    virtual void append(int64_t row, std::vector<int32_t>& tokens) = 0;  // appends seq + 1 tokens
    int64_t seq_;

private:
    int64_t row_ = 0;
};

class Synthetic : public RowSource {
public:
    Synthetic(int64_t vocab, int64_t seq, uint64_t seed)
        : RowSource(seq), vocab_(vocab), stream_{seed, synthetic_role} {}

private:
    void append(int64_t row, std::vector<int32_t>& tokens) override {
        for (int64_t t = 0; t <= seq_; ++t) {
            const auto index = static_cast<uint64_t>(row * (seq_ + 1) + t);
            const uint32_t word = stream_.block(index / 4).word[index % 4];
            tokens.push_back(static_cast<int32_t>(uint64_t{word} * static_cast<uint64_t>(vocab_) >> 32));
        }
    }
    int64_t vocab_;
    PhiloxStream stream_;
};

class Windows : public RowSource {
public:
    Windows(std::vector<int32_t> tokens, int64_t seq, uint64_t seed, bool shuffle)
        : RowSource(seq),
          text_(std::move(tokens)),
          count_((std::ssize(text_) - 1) / seq),
          seed_(seed),
          shuffle_(shuffle),
          order_(static_cast<size_t>(count_)) {}

private:
    void append(int64_t row, std::vector<int32_t>& tokens) override {
        draw_order(row / count_);
        const int64_t from = order_[static_cast<size_t>(row % count_)] * seq_;
        tokens.insert(tokens.end(), text_.begin() + from, text_.begin() + from + seq_ + 1);
    }
    // Fisher-Yates shuffle with one 64-bit random number per swap.
    void draw_order(int64_t pass) {
        if (pass == pass_) return;
        pass_ = pass;
        std::iota(order_.begin(), order_.end(), 0);
        if (!shuffle_) return;
        const PhiloxStream stream{seed_, window_role | static_cast<uint64_t>(pass)};
        for (int64_t i = count_ - 1; i > 0; --i) {
            const PhiloxBlock b = stream.block(static_cast<uint64_t>(i));
            const uint64_t bits = uint64_t{b.word[0]} << 32 | b.word[1];
            std::swap(order_[static_cast<size_t>(i)], order_[bits % static_cast<uint64_t>(i + 1)]);
        }
    }

    std::vector<int32_t> text_;
    int64_t count_;
    uint64_t seed_;
    bool shuffle_;
    std::vector<int64_t> order_;
    int64_t pass_ = -1;
};

}  // namespace

std::unique_ptr<BatchSource> synthetic_source(int64_t vocab, int64_t seq, uint64_t seed) {
    return std::make_unique<Synthetic>(vocab, seq, seed);
}

Result<std::unique_ptr<BatchSource>> window_source(std::vector<int32_t> tokens, int64_t seq, uint64_t seed,
                                                   bool shuffle) {
    if (std::ssize(tokens) < seq + 1)
        return fail("the text has {} tokens, but a row needs {} and one more for its last label", tokens.size(), seq);
    return std::unique_ptr<BatchSource>(std::make_unique<Windows>(std::move(tokens), seq, seed, shuffle));
}

}  // namespace nibble
