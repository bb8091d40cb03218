#include "rl/mismatch_lab.h"

#include "base/philox.h"
#include "engine/answer_all.h"
#include "train/check_forward.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr uint64_t lab_role = uint64_t{0x4D} << 56;
constexpr int64_t padded_rows_at_once = 4;

struct LabAnswer {
    std::vector<int32_t> prompt, tokens;
    std::vector<float> generated;
};
using LabAnswers = std::vector<LabAnswer>;

LabAnswers lab_prompts(const MismatchOptions& o, int64_t vocab) {
    LabAnswers list(static_cast<size_t>(o.prompts));
    for (size_t i = 0; i < list.size(); ++i) {
        const PhiloxStream stream{o.seed, lab_role | i};
        const auto spread = static_cast<uint64_t>(o.longest_prompt - 7);
        const uint64_t length = 8 + stream.block(0).word[0] % spread;
        for (uint64_t t = 0; t < length; ++t)
            list[i].prompt.push_back(static_cast<int32_t>(stream.block(t + 1).word[0] % static_cast<uint64_t>(vocab)));
    }
    return list;
}

bool is_raw(const SamplingParams& p) { return p.temperature == 1 && !p.filters(); }

std::vector<Request> generating(const LabAnswers& prompts, const MismatchOptions& o) {
    std::vector<Request> list;
    for (size_t i = 0; i < prompts.size(); ++i) {
        Request& r = list.emplace_back();
        r.prompt = prompts[i].prompt;
        r.sampling = o.sampling;
        r.sampling.seed = o.seed;
        r.sampled_logprobs = !is_raw(o.sampling);
        r.sequence = i;
        r.max_tokens = o.answer;
    }
    return list;
}

// Returns requests with the answers as part of the prompt, which give all log-probabilities in one prefill.
std::vector<Request> scoring(const LabAnswers& answers) {
    std::vector<Request> list;
    for (const LabAnswer& a : answers) {
        Request& r = list.emplace_back();
        r.prompt = a.prompt;
        r.prompt.insert(r.prompt.end(), a.tokens.begin(), a.tokens.end());
        r.max_tokens = 1;
        r.prompt_logprobs = 0;
    }
    return list;
}

struct LabWay {
    const char* name;
    bool chunked = false, preempted = false, again = false, scored = false;
};
constexpr LabWay lab_ways[] = {{.name = "decode"},
                               {.name = "chunked", .chunked = true},
                               {.name = "preempted", .preempted = true},
                               {.name = "prefix hit", .again = true},
                               {.name = "prefill", .scored = true}};

int64_t lab_context(const MismatchOptions& o) { return o.longest_prompt + o.answer + 2; }

EngineOptions lab_engine(const LabWay& way, int64_t batch, const MismatchOptions& o) {
    EngineOptions e{.sequences = batch, .context = lab_context(o), .prefix_cache = way.again};
    e.queue = o.prompts;
    if (way.chunked) e.step_rows = batch + 13, e.mixed_rows = 13;
    // A small cache alone does not force preemption: a window returns its pages, and new sequences wait until there is
    // room.
    if (way.preempted) e.preempt_every = 16;
    return e;
}

// Log-probabilities of the answers' tokens by the training forward pass, for packed and padded rows.
class TrainingSide {
public:
    TrainingSide(TrainEngine& trainer, const MismatchOptions& options) : trainer_(trainer), options_(options) {}

    Result<std::vector<std::vector<float>>> packed(const LabAnswers& answers) {
        std::vector<std::vector<float>> out(answers.size());
        size_t first = 0;
        while (first < answers.size()) {
            TrainBatch row{.rows = 1};
            size_t last = first;
            for (; last < answers.size(); ++last) {
                const auto size = std::ssize(answers[last].prompt) + std::ssize(answers[last].tokens) - 1;
                if (last > first && row.seq + size > mismatch_row_tokens(options_)) break;
                append(row, answers[last]);
            }
            NIBBLE_CHECK(ask(row, answers, first, last, out));
            first = last;
        }
        return out;
    }
    Result<std::vector<std::vector<float>>> padded(const LabAnswers& answers) {
        std::vector<std::vector<float>> out(answers.size());
        const int64_t seq = options_.longest_prompt + options_.answer;
        for (size_t first = 0; first < answers.size(); first += padded_rows_at_once) {
            const size_t last = std::min(first + padded_rows_at_once, answers.size());
            TrainBatch batch;
            for (size_t i = first; i < last; ++i) {
                TrainBatch row;
                append(row, answers[i]);
                if (row.seq < seq) row.documents.push_back(row.seq);  // fills up the row; these tokens have no labels
                row.tokens.resize(static_cast<size_t>(seq), 0);
                row.labels.resize(static_cast<size_t>(seq), -1);
                for (const int64_t d : row.documents) batch.documents.push_back(batch.rows * seq + d);
                batch.tokens.insert(batch.tokens.end(), row.tokens.begin(), row.tokens.end());
                batch.labels.insert(batch.labels.end(), row.labels.begin(), row.labels.end());
                ++batch.rows;
            }
            batch.seq = seq;
            NIBBLE_CHECK(ask(batch, answers, first, last, out));
        }
        return out;
    }

private:
    static void append(TrainBatch& row, const LabAnswer& a) {
        row.documents.push_back(row.seq);
        row.tokens.insert(row.tokens.end(), a.prompt.begin(), a.prompt.end());
        row.tokens.insert(row.tokens.end(), a.tokens.begin(), a.tokens.end() - 1);
        row.labels.insert(row.labels.end(), a.prompt.size() - 1, -1);
        row.labels.insert(row.labels.end(), a.tokens.begin(), a.tokens.end());
        row.seq = std::ssize(row.tokens);
    }
    // The labels of answers [first, last) are those of the batch, in order.
    Status ask(const TrainBatch& batch, const LabAnswers& answers, size_t first, size_t last,
               std::vector<std::vector<float>>& out) {
        std::vector<float> values(batch.tokens.size());
        NIBBLE_CHECK(trainer_.log_probs(batch, values));
        size_t answer = first;
        for (size_t i = 0; i < values.size(); ++i) {
            if (batch.labels[i] < 0) continue;
            if (out[answer].size() == answers[answer].tokens.size()) ++answer;
            if (answer >= last) return fail("more labels than tokens of answers");
            out[answer].push_back(values[i]);
        }
        return Ok{};
    }

    TrainEngine& trainer_;
    const MismatchOptions& options_;
};

void compare(const LabAnswers& answers, const std::vector<std::vector<float>>& trained, MismatchLine& line) {
    for (size_t a = 0; a < answers.size(); ++a)
        for (size_t t = 0; t < answers[a].tokens.size(); ++t) {
            ++line.tokens;
            count_difference(answers[a].generated[t], trained[a][t], line.mismatches, line.apart);
        }
}

// Returns the answers of one engine under the schedule `way`, and counts its preemptions or cached tokens. Error: the
// schedule had none.
Result<LabAnswers> answers_of(const LabWay& way, int64_t batch, const std::shared_ptr<const LanguageModel>& model,
                              const MismatchOptions& o, const LabAnswers& first, int64_t& events) {
    NIBBLE_TRY(const auto engine, Engine::create(model, std::nullopt, lab_engine(way, batch, o)));
    LabAnswers out = first;
    std::vector<Request> requests = way.scored ? scoring(first) : generating(first, o);
    std::vector<WholeAnswer> whole;
    if (way.again) {  // at most as many as the cache holds, twice each
        for (size_t begin = 0; begin < requests.size(); begin += static_cast<size_t>(batch)) {
            const auto end = std::min(begin + static_cast<size_t>(batch), requests.size());
            const std::vector<Request> some(requests.begin() + static_cast<ptrdiff_t>(begin),
                                            requests.begin() + static_cast<ptrdiff_t>(end));
            std::vector<WholeAnswer> answers;
            for (int round = 0; round < 2; ++round) NIBBLE_CHECK(answer_all(*engine, some, {}, answers));
            std::ranges::move(answers, std::back_inserter(whole));
        }
    } else {
        NIBBLE_CHECK(answer_all(*engine, std::move(requests), {}, whole));
    }
    for (size_t a = 0; a < out.size(); ++a) {
        std::span<const GeneratedToken> tokens = whole[a].tokens;
        if (way.scored) tokens = std::span(whole[a].prompt).last(first[a].tokens.size());
        out[a].tokens.clear(), out[a].generated.clear();
        for (const GeneratedToken& t : tokens) {
            out[a].tokens.push_back(t.id);
            out[a].generated.push_back(t.logprob);
        }
    }
    const EngineStats stats = engine->stats();
    events = way.preempted ? stats.preemptions : way.again ? stats.prefix_hits : stats.steps;
    if (events == 0) return fail("the schedule was never exercised");
    return out;
}

}  // namespace

int64_t MismatchReport::mismatches() const {
    int64_t sum = 0;
    for (const MismatchLine& line : lines) sum += line.mismatches;
    return sum;
}
int64_t MismatchReport::tokens() const {
    int64_t sum = 0;
    for (const MismatchLine& line : lines) sum += line.tokens;
    return sum;
}

Status calibrate_lab(TrainEngine& trainer, const MismatchOptions& options) {
    if (!trainer.calibrates()) return Ok{};
    std::vector<TrainBatch> rows;
    for (LabAnswer& a : lab_prompts(options, trainer.config().vocab)) {
        const auto seq = std::ssize(a.prompt);
        rows.push_back({.rows = 1, .seq = seq, .tokens = std::move(a.prompt)});
        rows.back().labels.assign(static_cast<size_t>(seq), -1);
        rows.back().documents = {0};
    }
    return trainer.calibrate(rows);
}

int64_t mismatch_row_tokens(const MismatchOptions& o) { return 4 * (o.longest_prompt + o.answer); }

Result<MismatchReport> measure_mismatch(TrainEngine& trainer, const std::shared_ptr<const LanguageModel>& generator,
                                        const MismatchOptions& options) {
    if (options.prompts < 1 || options.longest_prompt < 64 || options.answer < 1)
        return fail(
            "mismatch lab: needs at least 1 prompt, prompts of up to 64 tokens or more and answers of at least 1 "
            "token, not {}, {} and {}",
            options.prompts, options.longest_prompt, options.answer);
    MismatchReport report{.promised = !trainer.recipe().sees_neighbours()};
    TrainingSide training(trainer, options);
    LabAnswers first = lab_prompts(options, generator->config().vocab);
    std::vector<std::vector<float>> packed, padded;
    int64_t before = 0;
    for (const int64_t some : options.batches) {
        const int64_t batch = some > 0 ? std::min(some, options.prompts) : options.prompts;
        if (batch == std::exchange(before, batch)) continue;
        for (const LabWay& way : lab_ways) {
            if (way.preempted && batch < 2) continue;               // a single sequence is never preempted
            if (way.scored && !is_raw(options.sampling)) continue;  // prompts are scored without sampling filters
            const bool is_first = report.lines.empty();
            int64_t events = 0;
            NIBBLE_TRY(const LabAnswers answers, answers_of(way, batch, generator, options, first, events)
                                                     .within(fmt::format("batch {}, {}", batch, way.name)));
            int64_t other_ids = 0;
            for (size_t a = 0; !is_first && a < answers.size(); ++a)
                for (size_t t = 0; t < answers[a].tokens.size(); ++t)
                    other_ids += t >= first[a].tokens.size() || answers[a].tokens[t] != first[a].tokens[t];
            // Training computes the same answers only once.
            if (is_first || other_ids > 0) {
                NIBBLE_TRY(packed, training.packed(answers));
                NIBBLE_TRY(padded, training.padded(answers));
            }
            for (const bool pack : {true, false}) {
                MismatchLine line{.batch = batch,
                                  .way = way.name,
                                  .rows = pack ? "packed" : "padded",
                                  .events = events,
                                  .other_ids = other_ids};
                compare(answers, pack ? packed : padded, line);
                report.lines.push_back(std::move(line));
            }
            if (is_first) first = answers;
            if (other_ids > 0) {
                NIBBLE_TRY(packed, training.packed(first));
                NIBBLE_TRY(padded, training.padded(first));
            }
        }
    }
    return report;
}

void nudge(Parameters& parameters, bool scale, ThreadPool& pool) {
    size_t chosen = 0, seen = 0;
    for (size_t id = 0; id < parameters.count(); ++id)
        if (parameters.tensors()[id].shape.size() == 2 &&
            parameters.tensors()[id].name.find(".mlp.") != std::string::npos) {
            if (seen == 0 || seen % 2 == 1) chosen = id;
            ++seen;
        }
    const std::span<float> w = parameters.master(chosen);
    const auto largest = std::ranges::max_element(w, {}, [](float v) { return std::abs(v); });
    const float half = std::abs(*largest) / 2;
    const auto middle = std::ranges::min_element(w, {}, [&](float v) { return std::abs(std::abs(v) - half); });
    *(scale ? largest : middle) *= 1.5f;  // changes the code in every format
    parameters.publish(pool);
}

}  // namespace nibble
