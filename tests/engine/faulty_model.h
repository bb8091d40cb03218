// Models that imitate a device, and that fail at given tokens.
#pragma once

#include "engine/sampler.h"
#include "model/language_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <new>
#include <optional>

namespace nibble::test {

// A model with faults: the token `poison` fails a whole step, the token `rotten` makes its own row NaN, the token
// `greedy` requests more memory than exists.
class Faulty : public LanguageModel {
public:
    static constexpr int32_t poison = 40, rotten = 41, greedy = 42;
    // chooses: returns tokens instead of logits. left: every left-th row is left to the host. before: faults occur only
    // before this position.
    Faulty(const LanguageModel& inner, bool chooses, int left = 3, int64_t before = 1 << 30)
        : inner_(inner), chooses_(chooses), every_(left), before_(before) {}
    const ModelConfig& config() const override { return inner_.config(); }
    Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const override {
        return inner_.make_pool(tokens, sequences);
    }
    std::vector<StateLayout> states() const override { return inner_.states(); }
    Result<int64_t> free_bytes(int64_t rows, int64_t wanted) const override { return inner_.free_bytes(rows, wanted); }
    Status forward(const Batch& batch, std::span<float> logits, Observer*) const override {
        NIBBLE_CHECK(inner_.evaluate(batch, logits));
        size_t row = 0;
        bool fails = false;
        for (size_t at = 0; at < batch.segments().size(); ++at) {
            const Segment& s = batch.segments()[at];
            for (int64_t i = 0; i < std::ssize(s.tokens); ++i) {
                const int32_t token = batch.position(at) + i < before_ ? s.tokens[size_t(i)] : -1;
                fails = fails || token == poison;
                if (token == greedy) throw std::bad_alloc();
                if (i < s.logits_from) continue;
                if (token == rotten) logits[row * size_t(config().vocab) + 5] = std::numeric_limits<float>::quiet_NaN();
                ++row;
            }
        }
        if (fails) return fail("a poisoned step");
        return Ok{};
    }
    bool chooses() const override { return chooses_; }
    Status choose(const Batch& batch, std::span<const TokenRequest> requests,
                  std::span<ChosenToken> chosen) const override {
        const auto vocab = size_t(config().vocab);
        logits_.assign(requests.size() * vocab, 0.0f);
        NIBBLE_CHECK(forward(batch, logits_, nullptr));
        for (size_t i = 0; i < requests.size(); ++i) {
            EXPECT_TRUE(requests[i].mask.empty());
            chosen[i] = requests[i].deferred ? ChosenToken{} : choose_from(int64_t(i), requests[i]);
        }
        return Ok{};
    }
    Status logits_of(int64_t row, std::span<float> logits) const override {
        std::copy_n(logits_.begin() + row * config().vocab, logits.size(), logits.begin());
        return Ok{};
    }
    bool predicts() const override { return inner_.predicts(); }
    Status predict(const Batch& batch, std::span<const int32_t> rows, bool again,
                   std::span<const TokenRequest> requests, std::span<ChosenToken> chosen) const override {
        return inner_.predict(batch, rows, again, requests, chosen);
    }
    Workspace& workspace() const override { return inner_.workspace(); }
    std::string kernels() const override { return inner_.kernels(); }

protected:
    // Returns the token that a device's sampler chooses from a row of the last step.
    ChosenToken choose_from(int64_t at, const TokenRequest& r) const {
        const auto vocab = size_t(config().vocab);
        std::vector<float> row(vocab), log_probs(vocab);
        std::copy_n(logits_.begin() + at * config().vocab, vocab, row.begin());
        if (workspace().elementwise->first_nonfinite(row.data(), int64_t(vocab)) >= 0) return {.id = -2};
        workspace().elementwise->log_softmax(row.data(), int64_t(vocab), log_probs.data());
        if (left_++ % every_ == 0) return {};
        bool some = r.mask.empty();
        for (size_t i = 0; i < vocab && !r.mask.empty(); ++i) {
            const bool allowed = r.mask[i / 32] >> i % 32 & 1;
            some = some || allowed;
            if (!allowed) row[i] = -INFINITY;
        }
        if (!some) return {};
        std::vector<int32_t> prompt;
        for (const SeenToken& s : r.seen) prompt.push_back(s.id);
        Sampler sampler(r.params, r.sequence, prompt);
        for (const SeenToken& s : r.seen)
            for (int32_t k = 0; k < s.answer; ++k) sampler.accept(s.id);
        const int32_t id = sampler.sample(row, r.position);
        return {id, log_probs[size_t(id)]};
    }

private:
    const LanguageModel& inner_;
    bool chooses_;
    int every_;

protected:
    int64_t before_;

private:
    mutable std::vector<float> logits_;
    mutable int left_ = 0;
};

// A model with launch() and collect(). A step is computed when it is launched, because the tokens before it are known
// here, but its tokens are returned only by collect(). The token `late` makes a step fail in collect().
class Overlapping : public Faulty {
public:
    static constexpr int32_t late = 43;
    Overlapping(const LanguageModel& inner, int left, int64_t before) : Faulty(inner, true, left, before) {}
    bool overlaps() const override { return true; }
    Status launch(const Batch& batch, std::span<const TokenRequest> requests,
                  std::span<const int64_t> carried) const override {
        if (under_way_.size() >= 2) ADD_FAILURE() << "a third step";
        std::vector<std::vector<int32_t>> tokens;
        std::vector<Segment> segments(batch.segments().begin(), batch.segments().end());
        UnderWay step{.chosen = std::vector<ChosenToken>(requests.size())};
        for (size_t i = 0; i < segments.size(); ++i) {
            auto& list = tokens.emplace_back(segments[i].tokens.begin(), segments[i].tokens.end());
            if (!carried.empty() && carried[i] >= 0) {
                // If the row gave no token, an arbitrary one is used, as on a device.
                if (last_.size() <= size_t(carried[i])) return fail("no row {} to carry on", carried[i]);
                list.back() = std::max(last_[size_t(carried[i])].id, 0);
                ++carried_;
            }
            for (int64_t k = 0; k < std::ssize(list) && batch.position(i) + k < before_; ++k)
                step.fails = step.fails || list[size_t(k)] == late;
            segments[i].tokens = list;
        }
        NIBBLE_CHECK(Faulty::choose(Batch(segments), requests, step.chosen));
        last_ = step.chosen;
        under_way_.push_back(std::move(step));
        newest_ = false;
        return Ok{};
    }
    Status choose_deferred(std::span<const int64_t> rows, std::span<const TokenRequest> requests) const override {
        if (under_way_.size() != 1) return fail("{} steps are under way", under_way_.size());
        if (rows.size() != requests.size()) return fail("{} requests for {} rows", requests.size(), rows.size());
        for (size_t i = 0; i < rows.size(); ++i) {
            if (rows[i] < 0 || rows[i] >= std::ssize(last_)) return fail("no row {}", rows[i]);
            EXPECT_EQ(last_[size_t(rows[i])].id, -1) << "it was not deferred";
            last_[size_t(rows[i])] = choose_from(rows[i], requests[i]);
            masked_ += !requests[i].mask.empty();
        }
        under_way_.back().chosen = last_;
        return Ok{};
    }
    Status collect(std::span<ChosenToken> chosen) const override {
        if (under_way_.empty()) return fail("no step is under way");
        const UnderWay step = std::move(under_way_.front());
        under_way_.pop_front();
        newest_ = under_way_.empty();
        if (step.fails) return fail("a step that failed late");
        if (chosen.size() != step.chosen.size()) return fail("{} tokens, not {}", step.chosen.size(), chosen.size());
        std::ranges::copy(step.chosen, chosen.begin());
        return Ok{};
    }
    Status choose(const Batch& batch, std::span<const TokenRequest> requests,
                  std::span<ChosenToken> chosen) const override {
        if (!under_way_.empty()) return fail("choose() while a step is under way");
        newest_ = true;
        for (const TokenRequest& r : requests) EXPECT_FALSE(r.deferred);
        return Faulty::choose(batch, requests, chosen);
    }
    Status evaluate(const Batch& batch, std::span<float> logits) const override {
        if (!under_way_.empty()) return fail("evaluate() while a step is under way");
        return Faulty::evaluate(batch, logits);
    }
    Status logits_of(int64_t row, std::span<float> logits) const override {
        if (!newest_) return fail("the logits of row {} are gone", row);
        return Faulty::logits_of(row, logits);
    }
    int64_t carried() const { return carried_; }
    int64_t masked() const { return masked_; }

private:
    struct UnderWay {
        std::vector<ChosenToken> chosen;
        bool fails = false;
    };
    mutable std::deque<UnderWay> under_way_;
    mutable std::vector<ChosenToken> last_;
    mutable bool newest_ = false;
    mutable int64_t carried_ = 0, masked_ = 0;
};

}  // namespace nibble::test
