#include "cuda/models/compare.h"

#include "io/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

namespace nibble::bench {
namespace {

double spread(std::span<const float> row) {
    double mean = 0, sum = 0;
    for (const float x : row) mean += x;
    mean /= static_cast<double>(row.size());
    for (const float x : row) sum += (x - mean) * (x - mean);
    return std::sqrt(sum / static_cast<double>(row.size()));
}

// Returns the distance of each row.
std::vector<double> distances(std::span<const float> a, std::span<const float> reference, size_t vocab) {
    std::vector<double> out;
    for (size_t row = 0; row < a.size(); row += vocab) {
        double sum = 0;
        for (size_t i = row; i < row + vocab; ++i) sum += double(a[i] - reference[i]) * double(a[i] - reference[i]);
        out.push_back(std::sqrt(sum / static_cast<double>(vocab)) / spread(reference.subspan(row, vocab)));
    }
    return out;
}

RowDistances summary(std::vector<double> rows, double limit) {
    RowDistances d;
    d.far = std::ranges::count_if(rows, [&](double r) { return r > limit; });
    std::ranges::nth_element(rows, rows.begin() + std::ssize(rows) / 2);
    d.median = rows[rows.size() / 2];
    return d;
}

size_t top(std::span<const float> row) { return size_t(std::ranges::max_element(row) - row.begin()); }

double divergence(std::span<const float> p, std::span<const float> q) {
    const double top_p = *std::ranges::max_element(p), top_q = *std::ranges::max_element(q);
    double zp = 0, zq = 0, sum = 0;
    for (size_t i = 0; i < p.size(); ++i) zp += std::exp(p[i] - top_p), zq += std::exp(q[i] - top_q);
    for (size_t i = 0; i < p.size(); ++i) {
        const double lp = p[i] - top_p - std::log(zp), lq = q[i] - top_q - std::log(zq);
        sum += std::exp(lp) * (lp - lq);
    }
    return sum;
}

class Rows {
public:
    Rows(const LanguageModel& model, const std::vector<float>& whole)
        : vocab_(size_t(model.config().vocab)), whole_(whole) {}
    // Counts rows whose bits differ from those of the whole texts' rows, from row `first` on.
    void expect(Difference& d, std::span<const float> rows, int64_t first) const {
        for (size_t i = 0; i * vocab_ < rows.size(); ++i, ++d.of) {
            const size_t at = (size_t(first) + i) * vocab_;
            const auto row = rows.subspan(i * vocab_, vocab_), known = std::span(whole_).subspan(at, vocab_);
            if (std::memcmp(row.data(), known.data(), row.size_bytes()) == 0) continue;
            if (d.rows++ == 0) d.first = first + static_cast<int64_t>(i);
            d.worst = std::max(d.worst, distances(row, known, vocab_)[0]);
        }
    }
    size_t vocab() const { return vocab_; }

private:
    size_t vocab_;
    const std::vector<float>& whole_;
};

Result<Difference> in_chunks(const LanguageModel& model, KvPool& pool, std::span<const int32_t> text, const Rows& rows,
                             const std::vector<int64_t>& chunks) {
    Difference d{.what = fmt::format("chunks from {}", chunks[0])};
    Sequence sequence = pool.sequence();
    std::vector<float> logits;
    for (size_t at = 0, i = 0; at < text.size(); ++i) {
        const size_t n = std::min(text.size() - at, size_t(chunks[i % chunks.size()]));
        logits.resize(n * rows.vocab());
        NIBBLE_CHECK(model.forward(Batch({{&sequence, text.subspan(at, n), 0}}), logits));
        rows.expect(d, logits, static_cast<int64_t>(at));
        at += n;
    }
    return d;
}

// Runs `count` sequences with prefixes of different lengths together, one token per step; the text's rows are known.
Result<Difference> in_company(const LanguageModel& model, KvPool& pool, std::span<const int32_t> text, const Rows& rows,
                              size_t count) {
    Difference d{.what = fmt::format("{} sequences together", count)};
    std::vector<Sequence> sequences;
    std::vector<size_t> at;
    const size_t steps = 6;
    std::vector<float> logits(count * rows.vocab());
    for (size_t s = 0; s < count; ++s) {
        sequences.push_back(pool.sequence());
        at.push_back(1 + (s * 37) % (text.size() - steps - 1));
    }
    std::vector<Segment> prefixes;
    for (size_t s = 0; s < count; ++s)
        prefixes.push_back({&sequences[s], text.first(at[s]), static_cast<int64_t>(at[s]) - 1});
    NIBBLE_CHECK(model.forward(Batch(prefixes), logits));
    for (size_t step = 0; step <= steps; ++step) {
        for (size_t s = 0; s < count; ++s)
            rows.expect(d, std::span(logits).subspan(s * rows.vocab(), rows.vocab()),
                        static_cast<int64_t>(at[s] + step) - 1);
        if (step == steps) break;
        std::vector<Segment> next;
        for (size_t s = 0; s < count; ++s) next.push_back({&sequences[s], text.subspan(at[s] + step, 1), 0});
        NIBBLE_CHECK(model.forward(Batch(next), logits));
    }
    return d;
}

Result<Difference> forked(const LanguageModel& model, KvPool& pool, std::span<const int32_t> text, const Rows& rows) {
    Difference d{.what = "a fork"};
    const size_t prefix = text.size() / 2, rest = text.size() - prefix;
    Sequence first = pool.sequence();
    NIBBLE_CHECK(model.forward(Batch({{&first, text.first(prefix), static_cast<int64_t>(prefix)}}), {}));
    NIBBLE_TRY(Sequence second, first.fork());
    std::vector<float> logits(rest * rows.vocab());
    const std::vector<int32_t> other(rest, text[0]);
    NIBBLE_CHECK(model.forward(Batch({{&first, other, 0}}), logits));
    NIBBLE_CHECK(model.forward(Batch({{&second, text.subspan(prefix), 0}}), logits));
    rows.expect(d, logits, static_cast<int64_t>(prefix));
    return d;
}

}  // namespace

Result<std::vector<float>> all_rows(const LanguageModel& model, const std::vector<std::vector<int32_t>>& texts) {
    std::vector<Segment> segments;
    for (const auto& text : texts) segments.push_back({nullptr, text, 0});
    const Batch batch(segments);
    std::vector<float> logits(static_cast<size_t>(batch.wanted() * model.config().vocab));
    NIBBLE_CHECK(model.forward(batch, logits));
    return logits;
}

bool Distance::good() const {
    return device_to_gold.median <= 1.25 * cpu_to_gold.median + 1e-6 &&
           device_to_gold.far <= 2 * cpu_to_gold.far + rows / 20 + 1;
}

Result<Texts> read_texts(const std::string& model, const ModelConfig& config, int64_t tokens) {
    Texts texts;
    const std::string golden = (std::filesystem::path(model) / "expect.safetensors").string();
    if (!model.empty() && std::filesystem::exists(golden)) {
        NIBBLE_TRY(const SafetensorsFile file, SafetensorsFile::open(golden));
        const TensorRecord* ids = file.find("input_ids");
        const TensorRecord* logits = file.find("logits");
        if (!ids || !logits) return fail("{}: has no input_ids and logits", golden);
        for (int64_t b = 0; b < ids->shape[0]; ++b) {
            auto& text = texts.ids.emplace_back();
            for (int64_t t = 0; t < ids->shape[1]; ++t) {
                int64_t id = 0;
                std::memcpy(&id, ids->data.data() + 8 * (b * ids->shape[1] + t), 8);
                text.push_back(static_cast<int32_t>(id));
            }
        }
        texts.gold.resize(logits->data.size() / 4);
        std::memcpy(texts.gold.data(), logits->data.data(), logits->data.size());
        return texts;
    }
    std::mt19937 random(1);
    for (const int64_t n : {tokens, tokens / 3})
        for (auto& text = texts.ids.emplace_back(); std::ssize(text) < n;)
            text.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(config.vocab)));
    return texts;
}

Result<Distance> compare(const LanguageModel& cpu, const LanguageModel& device, const Texts& texts) {
    NIBBLE_TRY(const std::vector<float> a, all_rows(device, texts.ids));
    NIBBLE_TRY(const std::vector<float> b, all_rows(cpu, texts.ids));
    const auto n = static_cast<size_t>(cpu.config().vocab);
    if (texts.gold.size() != a.size()) return fail("{} logits to compare with {}", texts.gold.size(), a.size());
    Distance d{.rows = static_cast<int64_t>(a.size() / n)};
    const std::vector<double> gold = distances(b, texts.gold, n);
    const double limit = 4 * summary(gold, 0).median;
    d.cpu_to_gold = summary(gold, limit);
    d.device_to_gold = summary(distances(a, texts.gold, n), limit);
    d.to_cpu = summary(distances(a, b, n), limit);
    for (size_t row = 0; row < a.size(); row += n) {
        const std::span mine = std::span(a).subspan(row, n), theirs = std::span(b).subspan(row, n);
        d.same_top += top(mine) == top(theirs);
        d.kl += divergence(theirs, mine) / static_cast<double>(d.rows);
    }
    return d;
}

void Difference::add(const Difference& other) {
    if (rows == 0) first = other.first;
    rows += other.rows, of += other.of;
    worst = std::max(worst, other.worst);
}

namespace {

Result<std::vector<Difference>> check_once(const LanguageModel& model, const Texts& texts, const Rows& rows,
                                           KvPool& pool) {
    const std::vector<int32_t>& text = texts.ids[0];
    std::vector<Difference> all;
    for (const bool together : {false, true}) {
        Difference d{.what = together ? "all texts at once" : "the same text again"};
        for (int round = 0; round < 3; ++round) {
            NIBBLE_TRY(const std::vector<float> logits,
                       all_rows(model, together ? texts.ids : std::vector<std::vector<int32_t>>{text}));
            rows.expect(d, std::span(logits).first(text.size() * rows.vocab()), 0);
        }
        all.push_back(d);
    }
    for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{1}, {7, 1, 1, 40}, {16}, {63, 2}, {64}}) {
        NIBBLE_TRY(Difference d, in_chunks(model, pool, text, rows, chunks));
        all.push_back(std::move(d));
    }
    for (const size_t count : {1, 2, 3, 5, 8, 9, 16, 33, 64}) {
        NIBBLE_TRY(Difference d, in_company(model, pool, text, rows, count));
        all.push_back(std::move(d));
    }
    NIBBLE_TRY(Difference d, forked(model, pool, text, rows));
    all.push_back(std::move(d));
    return all;
}

}  // namespace

Result<std::vector<Difference>> check_invariance(const LanguageModel& model, const Texts& texts, int rounds) {
    const std::vector<int32_t>& text = texts.ids[0];
    NIBBLE_TRY(const std::vector<float> whole, all_rows(model, {text}));
    const Rows rows(model, whole);
    NIBBLE_TRY(const auto pool, model.make_pool(65 * (std::ssize(text) + 64), 65));
    NIBBLE_TRY(std::vector<Difference> all, check_once(model, texts, rows, *pool));
    for (int round = 1; round < rounds; ++round) {
        NIBBLE_TRY(const std::vector<Difference> again, check_once(model, texts, rows, *pool));
        for (size_t i = 0; i < all.size(); ++i) all[i].add(again[i]);
    }
    return all;
}

}  // namespace nibble::bench
