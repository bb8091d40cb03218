#include "data/loader.h"

#include "base/fields.h"
#include "data/permutation.h"

namespace nibble {
namespace {

constexpr uint64_t order_role = 0x6F72646572000000;  // "order"; the low bits are the epoch

Status check_loader(const LoaderOptions& options) {
    if (options.seq < 1) return fail("a row must have at least 1 token, not {}", options.seq);
    if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks)
        return fail("rank {} does not exist among {} ranks", options.rank, options.ranks);
    return Ok{};
}

}  // namespace

Result<DataLoader> DataLoader::create(std::shared_ptr<const TokenSet> tokens, const LoaderOptions& options) {
    NIBBLE_CHECK(check_loader(options));
    const int64_t count = tokens->tokens();
    if (count <= options.seq)
        return fail("the data has {} tokens, but a row of {} needs {}", count, options.seq, options.seq + 1);
    DataLoader loader(std::move(tokens), options);
    loader.windows_ = (count - 1) / options.seq;
    return loader;
}

Result<TrainBatch> DataLoader::next(int64_t rows) {
    if (rows < 1 || rows % options_.ranks != 0)
        return fail("a batch of {} rows cannot be divided between {} rank{}", rows, options_.ranks,
                    options_.ranks == 1 ? "" : "s");
    const int64_t mine = rows / options_.ranks, first = row_ + mine * options_.rank;
    TrainBatch batch{.rows = mine, .seq = options_.seq};
    for (int64_t r = 0; r < mine; ++r) NIBBLE_CHECK(add_row(first + r, batch));
    row_ += rows;
    return batch;
}

Status DataLoader::set_place(const Json& place) {
    int64_t row = 0;
    NIBBLE_CHECK(Fields(place).need("row", row).within("the position in the data"));
    if (row < 0) return fail("the position in the data: row {} is negative", row);
    row_ = row;
    return Ok{};
}

Status DataLoader::add_row(int64_t number, TrainBatch& batch) const {
    const int64_t seq = options_.seq, epoch = number / windows_;
    int64_t window = number % windows_, shift = 0;
    if (options_.shuffle) {
        const PhiloxStream stream{options_.seed, order_role + static_cast<uint64_t>(epoch)};
        window = static_cast<int64_t>(Permutation(static_cast<uint64_t>(windows_), stream).at(uint64_t(window)));
        const int64_t spare = (tokens_->tokens() - 1) % seq;
        shift = static_cast<int64_t>(stream.block(~uint64_t{0}).word[0] % static_cast<uint64_t>(spare + 1));
    }
    TokenSet::Slice slice;
    NIBBLE_CHECK(tokens_->read(shift + window * seq, seq + 1, slice));
    const int64_t base = std::ssize(batch.tokens);
    for (int64_t t = 0; t < seq; ++t) {
        batch.tokens.push_back(static_cast<int32_t>(slice.ids[size_t(t)]));
        batch.labels.push_back(slice.learned[size_t(t + 1)] ? static_cast<int32_t>(slice.ids[size_t(t + 1)]) : -1);
    }
    batch.documents.push_back(base);
    if (!options_.cut_documents) return Ok{};
    for (const int64_t start : slice.starts) {
        if (start == 0) continue;
        batch.labels[static_cast<size_t>(base + start - 1)] = -1;  // the label would be the next document's first token
        if (start < seq) batch.documents.push_back(base + start);
    }
    return Ok{};
}

}  // namespace nibble
