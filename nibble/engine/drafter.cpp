#include "engine/drafter.h"

#include <algorithm>
#include <new>

namespace nibble {
namespace {

std::vector<int32_t> look_up(Choice& choice, int64_t most, const EngineOptions& options) {
    const std::vector<int32_t>& text = choice.answer.tokens();
    if (!choice.lookup)
        choice.lookup.emplace(most_drafted(choice, options),
                              std::span(text).first(static_cast<size_t>(choice.answer.prompt())),
                              choice.job->request.expected);
    return choice.lookup->draft(text, most);
}

class LookupDrafter : public Drafter {
public:
    explicit LookupDrafter(const EngineOptions& options) : options_(options) {}
    std::vector<int32_t> draft(Choice& choice, int64_t most) override { return look_up(choice, most, options_); }
    void learn(Choice& choice, int64_t drafted, int64_t right) override { choice.lookup->learn(drafted, right); }

private:
    const EngineOptions& options_;
};

// Drafts by the model's prediction layers; text that the request expects comes first. The layers' K and V are updated
// in every step for every choice, so that pages of the prefix cache contain them. (The last row of a shared tile was
// computed with the token that followed it in another text, which can make a draft worse.)
class PredictionDrafter : public Drafter {
public:
    PredictionDrafter(const LanguageModel& model, const EngineOptions& options, EngineStats& stats)
        : model_(model), options_(options), stats_(stats) {}
    bool follows() const override { return true; }

    std::vector<int32_t> draft(Choice& choice, int64_t most) override {
        std::vector<int32_t> out = std::exchange(choice.predicted, {});
        if (!choice.job->request.expected.empty())
            if (auto found = look_up(choice, most, options_); !found.empty()) return found;
        if (choice.predicted_at != std::ssize(choice.answer.tokens())) out.clear();
        out.resize(static_cast<size_t>(std::min(std::ssize(out), most)));
        return out;
    }

    void learn(Choice& choice, int64_t drafted, int64_t right) override {
        if (choice.lookup) choice.lookup->learn(drafted, right);
    }

    void follow(std::span<const FollowedRows> list) override {
        bool good = false;
        try {
            good = predict(list).ok();
        } catch (const std::bad_alloc&) {
        }
        if (good) return;
        ++stats_.failed_drafts;
        for (const FollowedRows& f : list) f.choice->predicted.clear();
    }

private:
    // A text whose draft is being extended.
    struct Growing {
        Choice* choice = nullptr;
        int64_t position = 0;  // position of the next row
        int64_t most = 0;      // most tokens of the draft
        int32_t row = 0;       // row of the previous pass with its hidden state
    };

    // Returns the number of tokens that a next step can verify.
    int64_t wanted(const Choice& c) const {
        const int64_t room = options_.context - std::ssize(c.answer.tokens()) - 1;
        return std::min({most_drafted(c, options_), room, c.answer.tokens_left() - 1, most_rewind - c.left()});
    }

    Status predict(std::span<const FollowedRows> list) {
        std::vector<Segment> segments;
        std::vector<int32_t> rows;
        std::vector<TokenRequest> requests;
        std::vector<Growing> growing;
        for (const FollowedRows& f : list) {
            Choice& c = *f.choice;
            c.predicted.clear();
            if (c.answer.finished() || f.rows == 0) continue;
            const std::vector<int32_t>& tokens = c.answer.tokens();
            const auto next =
                std::span(tokens).subspan(static_cast<size_t>(f.position + 1), static_cast<size_t>(f.rows));
            const bool reached = f.position + f.rows + 1 == std::ssize(tokens) && c.answer.generated() > 0;
            int64_t most = reached ? wanted(c) : 0;
            // The draft's rows after the first are stored at the positions at which the next step verifies them.
            const int64_t missing = f.position + f.rows + most - 1 - c.sequence->position();
            if (most > 1 && !c.sequence->reserve(missing).ok()) most = 1;
            segments.push_back({.sequence = &*c.sequence,
                                .tokens = next,
                                .logits_from = most > 0 ? f.rows - 1 : f.rows,
                                .position = f.position});
            for (int64_t i = 0; i < f.rows; ++i) rows.push_back(static_cast<int32_t>(f.row + i));
            if (most <= 0) continue;
            growing.push_back({&c, f.position + f.rows, most, static_cast<int32_t>(growing.size())});
            requests.push_back(c.answer.token_request());
        }
        if (segments.empty()) return Ok{};
        std::vector<ChosenToken> chosen(requests.size());
        NIBBLE_CHECK(model_.predict(Batch(std::move(segments)), rows, false, requests, chosen));
        while (take(growing, chosen)) {
            segments.clear(), rows.clear(), requests.clear();
            for (Growing& g : growing) {
                segments.push_back({.sequence = &*g.choice->sequence,
                                    .tokens = std::span(g.choice->predicted).last(1),
                                    .position = g.position++});
                rows.push_back(std::exchange(g.row, static_cast<int32_t>(rows.size())));
                requests.push_back(g.choice->answer.token_request(std::ssize(g.choice->predicted)));
            }
            chosen.resize(requests.size());
            NIBBLE_CHECK(model_.predict(Batch(std::move(segments)), rows, true, requests, chosen));
        }
        return Ok{};
    }

    // Appends the tokens of a pass to their drafts. Drafts that are long enough, or got no token, are not extended
    // further.
    static bool take(std::vector<Growing>& growing, std::span<const ChosenToken> chosen) {
        std::vector<Growing> rest;
        for (size_t i = 0; i < growing.size(); ++i) {
            const Growing& g = growing[i];
            if (chosen[i].id < 0) continue;
            g.choice->predicted.push_back(chosen[i].id);
            g.choice->predicted_at = std::ssize(g.choice->answer.tokens());
            if (std::ssize(g.choice->predicted) < g.most) rest.push_back(g);
        }
        growing = std::move(rest);
        return !growing.empty();
    }

    const LanguageModel& model_;
    const EngineOptions& options_;
    EngineStats& stats_;
};

}  // namespace

int64_t most_drafted(const Choice& choice, const EngineOptions& options) {
    const Request& r = choice.job->request;
    const int64_t usual = options.drafts == 0 && !r.expected.empty() ? usual_looked_up : options.drafts;
    return std::min<int64_t>(r.drafts.value_or(usual), most_drafts);
}

std::unique_ptr<Drafter> make_drafter(const LanguageModel& model, const EngineOptions& options, EngineStats& stats) {
    if (options.drafter == DraftSource::prediction && options.drafts > 0)
        return std::make_unique<PredictionDrafter>(model, options, stats);
    return std::make_unique<LookupDrafter>(options);
}

}  // namespace nibble
