#include "engine/step_runner.h"

#include <algorithm>
#include <new>

namespace nibble {
namespace {

// Returns the first of a choice's tokens in the step whose logits are needed.
int64_t wanted_from(const Choice& c) {
    if (c.scores_prompt()) return 0;
    return c.wants_row ? c.base - 1 : c.base + std::ssize(c.draft);
}

Batch batch_of(std::span<Choice* const> step) {
    std::vector<Segment> segments;
    for (Choice* c : step) {
        const auto tokens = std::span(c->answer.tokens()).subspan(static_cast<size_t>(c->sequence->position()));
        std::span<const int32_t> fed = tokens.first(static_cast<size_t>(c->base));
        if (!c->draft.empty()) {
            c->fed.assign(fed.begin(), fed.end());
            c->fed.insert(c->fed.end(), c->draft.begin(), c->draft.end());
            fed = c->fed;
        }
        segments.push_back({&*c->sequence, fed, wanted_from(*c)});
    }
    return Batch(std::move(segments));
}

// Adds log-probabilities of the prompt's tokens after `start`. row(i): the logits of the i-th token of the step.
template <class Row>
void score_prompt(Choice& c, int64_t start, const Row& row, std::span<float> log_probs, const ElementwiseKernels& k) {
    const std::vector<int32_t>& prompt = c.job->prompt;
    if (start == 0) c.prompt_scores.assign(1, {.id = prompt[0]});
    for (int64_t i = 0; i < c.base && start + i + 1 < std::ssize(prompt); ++i) {
        const std::span<float> logits = row(i);
        if (k.first_nonfinite(logits.data(), std::ssize(logits)) >= 0)
            return c.answer.end(fail("the logits of the prompt's token {} contain a NaN or an infinity", start + i));
        k.log_softmax(logits.data(), std::ssize(logits), log_probs.data());
        const int32_t id = prompt[static_cast<size_t>(start + i + 1)];
        c.prompt_scores.push_back(scored(id, log_probs, c.job->request.prompt_logprobs));
        c.prompt_scores.back().rank = rank_of(id, log_probs);
    }
    c.prompt_scored = c.prompt_scores.size() == prompt.size();
}

// Accepts tokens of the answer as long as they equal the draft's. choose(i): adds the token of the i-th wanted row.
template <class Choose>
void follow_draft(Choice& c, const Choose& choose) {
    for (c.right = 0;; ++c.right) {
        choose(c.right);
        if (c.answer.finished() || c.right == std::ssize(c.draft)) return;
        if (c.answer.tokens().back() != c.draft[static_cast<size_t>(c.right)]) return;
    }
}

Error nonfinite(const Choice& c) {
    return fail("the logits of token {} contain a NaN or an infinity", c.answer.generated());
}

}  // namespace

// Removes the rejected part of a draft from pages and states.
Status StepRunner::clean_up(Choice& c) const {
    const int64_t drafted = std::ssize(c.draft);
    if (drafted == 0) return Ok{};
    ++stats_.drafts;
    stats_.draft_tokens += drafted;
    stats_.accepted_tokens += c.right;
    for (int64_t i = 0; i < c.right; ++i) ++stats_.accepted_at[static_cast<size_t>(i)];
    c.job->report.draft_tokens += drafted;
    c.job->report.accepted_tokens += c.right;
    drafter_.learn(c, drafted, c.right);
    c.draft.clear();
    const StateCopy before = std::exchange(c.before_draft, StateCopy());
    if (c.right == drafted) return Ok{};
    if (c.sequence->pool().recurrent()) return c.sequence->restore(before);
    c.sequence->rewind(c.sequence->position() - (drafted - c.right));
    return Ok{};
}

Status StepRunner::go_on(const Batch& batch, std::span<Choice* const> step) {
    std::vector<FollowedRows> rows;
    for (size_t i = 0; i < step.size(); ++i) {
        Choice& c = *step[i];
        rows.push_back({&c, batch.row(i), batch.position(i), c.base + (c.draft.empty() ? 0 : c.right)});
        NIBBLE_CHECK(clean_up(c));
    }
    if (drafter_.follows()) drafter_.follow(rows);
    return Ok{};
}

Status StepRunner::run(std::span<Choice* const> step) {
    for (Choice* c : step) {
        if (c->draft.empty()) continue;
        auto copy = c->sequence->copy_states();
        if (copy.ok())
            c->before_draft = *std::move(copy);
        else
            c->draft.clear();
    }
    std::vector<Choice*> scoring, others;
    for (Choice* c : step) (model_.chooses() && !c->scores_prompt() ? others : scoring).push_back(c);
    if (!others.empty()) NIBBLE_CHECK(run_chosen(others));
    return scoring.empty() ? Status(Ok{}) : run_logits(scoring);
}

Status StepRunner::run_logits(std::span<Choice* const> step) {
    const auto vocab = static_cast<size_t>(model_.config().vocab);
    const Batch batch = batch_of(step);
    std::vector<size_t> first;  // first wanted row of every choice
    std::vector<int64_t> start;
    for (size_t i = 0, row = 0; i < step.size(); ++i) {
        first.push_back(row);
        start.push_back(step[i]->sequence->position());
        row += batch.segments()[i].tokens.size() - static_cast<size_t>(batch.segments()[i].logits_from);
    }
    logits_.resize(static_cast<size_t>(batch.wanted()) * vocab);
    NIBBLE_CHECK(model_.evaluate(batch, logits_));
    const Workspace& work = model_.workspace();
    work.pool->parallel_for(std::ssize(step), [&](int64_t at) {
        Choice& c = *step[static_cast<size_t>(at)];
        if (!c.wants_row && !c.scores_prompt()) return;
        const auto row = [&](int64_t i) {
            return std::span(logits_).subspan((first[size_t(at)] + static_cast<size_t>(i)) * vocab, vocab);
        };
        try {  // an exception of one request must not end the others
            std::vector<float> log_probs(vocab);
            const int64_t offset = c.scores_prompt() ? c.base - 1 : 0;
            if (c.scores_prompt()) score_prompt(c, start[size_t(at)], row, log_probs, *work.elementwise);
            if (c.wants_row && !c.answer.finished())
                follow_draft(c, [&](int64_t i) { c.answer.choose(row(offset + i), log_probs, *work.elementwise); });
        } catch (const std::bad_alloc&) {
            c.answer.end(fail(ErrorKind::memory, "out of memory"));
        }
    });
    return go_on(batch, step);
}

bool StepRunner::launches(std::span<Choice* const> step) const {
    return model_.overlaps() && !drafter_.follows() &&
           std::ranges::all_of(step, [](const Choice* c) { return c->draft.empty() && !c->scores_prompt(); });
}

Status StepRunner::launch(std::span<Choice* const> step, Flight& flight) {
    std::vector<Segment> segments;
    std::vector<TokenRequest> requests;
    std::vector<int64_t> carried;
    static constexpr int32_t unknown[] = {0};
    for (size_t i = 0; i < step.size(); ++i) {
        Choice* const c = step[i];
        const bool carries = c->pending > 0;
        const std::span<const int32_t> tokens =
            carries ? unknown
                    : std::span(c->answer.tokens())
                          .subspan(static_cast<size_t>(c->sequence->position()), static_cast<size_t>(c->base));
        segments.push_back({&*c->sequence, tokens, wanted_from(*c)});
        carried.push_back(carries ? c->carried : -1);
        if (!c->wants_row) continue;
        TokenRequest& request = requests.emplace_back(c->answer.token_request(c->pending));
        request.deferred =
            c->answer.on_device() && (c->answer.masks(c->pending) || c->job->request.sampling.penalizes());
        flight.parts[i].deferred = request.deferred;
    }
    flight.wanted = std::ssize(requests);
    NIBBLE_CHECK(model_.launch(Batch(std::move(segments)), requests, carried));
    for (int64_t row = 0; Choice * c : step) {
        if (!c->wants_row) continue;
        ++c->pending;
        c->carried = row++;
    }
    return Ok{};
}

// Copies some rows at a time to the host, where all threads choose tokens.
Status StepRunner::choose_on_host(std::span<const HostRows> list) {
    constexpr int64_t most_rows = 64;
    const auto vocab = static_cast<size_t>(model_.config().vocab);
    const Workspace& work = model_.workspace();
    while (!list.empty()) {
        std::vector<int64_t> place;  // index in logits_ of a choice's first row
        int64_t rows = 0;
        while (place.size() < list.size() && (rows == 0 || rows + list[place.size()].rows <= most_rows)) {
            place.push_back(rows);
            rows += list[place.size() - 1].rows;
        }
        logits_.resize(static_cast<size_t>(rows) * vocab);
        const auto row = [&](int64_t i) { return std::span(logits_).subspan(static_cast<size_t>(i) * vocab, vocab); };
        for (size_t i = 0; i < place.size(); ++i)
            for (int64_t k = 0; k < list[i].rows; ++k)
                NIBBLE_CHECK(model_.logits_of(list[i].first + k, row(place[i] + k)));
        work.pool->parallel_for(std::ssize(place), [&](int64_t at) {
            Choice& c = *list[static_cast<size_t>(at)].choice;
            try {  // an exception of one request must not end the others
                std::vector<float> log_probs(vocab);
                follow_draft(c, [&](int64_t i) {
                    c.answer.choose(row(place[static_cast<size_t>(at)] + i), log_probs, *work.elementwise);
                });
            } catch (const std::bad_alloc&) {
                c.answer.end(fail(ErrorKind::memory, "out of memory"));
            }
        });
        stats_.host_rows += rows;
        list = list.subspan(place.size());
    }
    return Ok{};
}

Status StepRunner::choose_deferred(std::span<const HostRows> list) {
    std::vector<std::vector<std::vector<uint32_t>>> masks(list.size());
    model_.workspace().pool->parallel_for(std::ssize(list), [&](int64_t at) {
        Choice& c = *list[static_cast<size_t>(at)].choice;
        try {
            masks[static_cast<size_t>(at)] = c.answer.masks_along(c.draft, model_.config().vocab);
        } catch (const std::bad_alloc&) {
            c.right = 0;
            c.answer.end(fail(ErrorKind::memory, "out of memory"));
        }
    });
    std::vector<int64_t> rows;
    std::vector<TokenRequest> requests;
    for (size_t i = 0; i < list.size(); ++i)
        for (int64_t k = 0; k < std::ssize(masks[i]); ++k) {
            rows.push_back(list[i].first + k);
            requests.push_back(list[i].choice->answer.token_request(k));
            requests.back().mask = masks[i][static_cast<size_t>(k)];
        }
    stats_.deferred_rows += std::ssize(rows);
    return model_.choose_deferred(rows, requests);
}

Status StepRunner::choose_deferred(const Flight& flight) {
    std::vector<HostRows> list;
    for (int64_t row = -1; const Flight::Part& part : flight.parts) {
        row += part.wants_row;
        if (part.deferred && part.valid()) list.push_back({part.choice, row});
    }
    return list.empty() ? Status(Ok{}) : choose_deferred(list);
}

void StepRunner::prepare(const Flight& flight) const {
    std::vector<Choice*> choices;
    for (const Flight::Part& part : flight.parts)
        if (part.wants_row && part.valid() && !part.choice->answer.on_device()) choices.push_back(part.choice);
    model_.workspace().pool->parallel_for(std::ssize(choices), [&](int64_t i) {
        Choice& c = *choices[static_cast<size_t>(i)];
        try {
            c.answer.prepare(model_.config().vocab);
        } catch (const std::bad_alloc&) {
            c.answer.end(fail(ErrorKind::memory, "out of memory"));
        }
    });
}

Status StepRunner::collect(const Flight& flight, bool carried_on) {
    std::vector<ChosenToken> chosen(static_cast<size_t>(flight.wanted));
    NIBBLE_CHECK(model_.collect(chosen));
    std::vector<HostRows> on_host;
    for (int64_t row = -1; const Flight::Part& part : flight.parts) {
        if (!part.wants_row) continue;
        const ChosenToken token = chosen[static_cast<size_t>(++row)];
        if (!part.valid()) continue;
        Choice& c = *part.choice;
        --c.pending;
        if (token.id == -2) {
            c.answer.end(nonfinite(c));
        } else if (token.id >= 0 && c.answer.on_device()) {
            c.answer.accept({token.id, token.logprob, {}});
            c.on_host = false;
        } else if (carried_on) {
            c.on_host = true;
        } else {
            on_host.push_back({&c, row});
            c.on_host = false;
        }
    }
    return choose_on_host(on_host);
}

Status StepRunner::run_chosen(std::span<Choice* const> step) {
    const bool defers = model_.overlaps();
    const auto masked = [](const Choice& c) {  // min_tokens may end within a draft
        return c.answer.masks() || c.answer.masks(std::ssize(c.draft));
    };
    std::vector<TokenRequest> requests;
    std::vector<HostRows> deferred;
    for (Choice* c : step) {
        if (!c->wants_row) continue;
        const int64_t rows = std::ssize(c->draft) + 1;
        if (defers && c->answer.on_device() && masked(*c)) deferred.push_back({c, std::ssize(requests), rows});
        for (int64_t i = 0; i < rows; ++i) {
            requests.push_back(c->answer.token_request(i));
            requests.back().deferred = !deferred.empty() && deferred.back().choice == c;
        }
    }
    std::vector<ChosenToken> chosen(requests.size());
    const Batch batch = batch_of(step);
    if (deferred.empty()) {
        NIBBLE_CHECK(model_.choose(batch, requests, chosen));
    } else {
        NIBBLE_CHECK(model_.launch(batch, requests, {}));
        const Status named = choose_deferred(deferred);
        NIBBLE_CHECK(model_.collect(chosen));
        NIBBLE_CHECK(named);
    }
    // If the device leaves one row of a choice to the host, the host chooses all its rows.
    std::vector<HostRows> on_host;
    for (int64_t first = 0; Choice * c : step) {
        if (!c->wants_row) continue;
        const auto rows = std::span(chosen).subspan(static_cast<size_t>(first), c->draft.size() + 1);
        const int64_t at = std::exchange(first, first + std::ssize(rows));
        if (c->answer.finished()) continue;
        const bool left = std::ranges::any_of(rows, [](const ChosenToken& t) { return t.id == -1; });
        if (left || !c->answer.on_device() || (!defers && masked(*c))) {
            on_host.push_back({c, at, std::ssize(rows)});
        } else {
            follow_draft(*c, [&](int64_t i) {
                const ChosenToken token = rows[static_cast<size_t>(i)];
                if (token.id >= 0) return c->answer.accept({token.id, token.logprob, {}});
                c->answer.end(nonfinite(*c));
            });
        }
    }
    NIBBLE_CHECK(choose_on_host(on_host));
    return go_on(batch, step);
}

}  // namespace nibble
