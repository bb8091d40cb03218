#include "rl/rollout_pool.h"

#include "base/fields.h"
#include "rl/reward_shaping.h"
#include "rl/rollout_json.h"
#include "rl/rollout_message.h"

#include <chrono>
#include <cmath>

namespace nibble {
namespace {

class RolloutClock {
public:
    double lap() {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    }

private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

int64_t turn_tokens(const Rollout& r) { return std::ssize(r.tokens) - static_cast<int64_t>(r.turn_begin); }

void append(Rollout& r, WholeAnswer&& answer, int64_t step) {
    for (const GeneratedToken& t : answer.tokens) {
        r.tokens.push_back(t.id);
        r.generated.push_back(t.logprob);
    }
    r.written.resize(r.tokens.size(), 1);
    r.steps.resize(r.tokens.size(), step);
    r.text = std::move(answer.text);
    r.cut = answer.finish == FinishReason::length;
}

}  // namespace

Status RolloutPool::begin(uint64_t number, const RolloutRequest& request) {
    NIBBLE_TRY(RolloutPrompt prompt, task_.prompt(number));
    prompt.number = number;
    const int64_t tokens = std::ssize(prompt.tokens);
    std::string failure;
    if (tokens < 1 || tokens >= request.length)
        failure = fmt::format("{}: {} tokens leave no room for an answer in {}", prompt.name(), tokens, request.length);
    prompt.begun = request.step;
    for (int64_t a = 0; a < answers_; ++a)
        batch_.rollouts.push_back({.prompt = batch_.prompts.size(), .whole = !failure.empty(), .failure = failure});
    batch_.prompts.push_back(std::move(prompt));
    owner_.clear();
    return Ok{};
}

Status RolloutPool::round(const RolloutRequest& request) {
    assign(request);
    const std::vector<Begun> begun = own_open();
    NIBBLE_CHECK(own_round(request));
    return share(begun);
}

Status RolloutPool::all_rounds(const RolloutRequest& request) {
    assign(request);
    const std::vector<Begun> begun = own_open();
    while (!stopped_ && !own_open().empty()) NIBBLE_CHECK(own_round(request));
    return share(begun);
}

// Assigns prompts to ranks. The work of an answer is its prompt plus its expected remaining tokens: keys and values of
// older weights must be computed again.
void RolloutPool::assign(const RolloutRequest& request) {
    if (!ranks_ || !owner_.empty()) return;
    std::vector<double> work;
    for (const RolloutPrompt& p : batch_.prompts) work.push_back(static_cast<double>(p.tokens.size()));
    for (const Rollout& r : batch_.rollouts) {
        if (r.whole) continue;
        const double expected =
            request.expected_length ? request.expected_length(batch_.prompts[r.prompt].tokens) : 0.0;
        work[r.prompt] += std::max(1.0, expected - static_cast<double>(r.length()));
    }
    owner_ = work_owners(work, ranks_->size());
}

std::vector<RolloutPool::Begun> RolloutPool::own_open() const {
    std::vector<Begun> list;
    for (size_t i = 0; i < batch_.rollouts.size(); ++i)
        if (const Rollout& r = batch_.rollouts[i]; !r.whole && mine(r)) list.push_back({i, r.tokens.size()});
    return list;
}

// Sends the new parts of this rank's answers to the other ranks and receives theirs.
Status RolloutPool::share(std::span<const Begun> begun) {
    if (!ranks_) return Ok{};
    RankWork work{.seconds = std::exchange(batch_.generate_seconds, 0)};
    for (const Begun& b : begun) {
        const auto written = std::span(batch_.rollouts[b.rollout].written).subspan(b.tokens);
        work.tokens += std::ranges::count(written, 1);
    }
    RankBytes own;
    for (const double number : {static_cast<double>(stopped_), static_cast<double>(work.tokens), work.seconds,
                                std::exchange(batch_.reward_seconds, 0)})
        put_numbers(own, std::span(&number, 1));
    put_number(own, std::ssize(begun));
    for (const Begun& b : begun) {
        put_number(own, static_cast<int64_t>(b.rollout));
        put_rollout(own, batch_.rollouts[b.rollout], b.tokens);
    }
    NIBBLE_TRY(const auto from, ranks_->gather(std::move(own)));
    std::vector<RankWork> done;
    double reward_seconds = 0, generate_seconds = 0;  // durations on the slowest rank
    for (int rank = 0; rank < ranks_->size(); ++rank) {
        RankReader in(from[static_cast<size_t>(rank)]);
        const auto number = [&] {
            const auto values = in.numbers<double>();
            return values.empty() ? 0.0 : values[0];
        };
        stopped_ |= number() != 0;
        done.push_back({.tokens = static_cast<int64_t>(number())});
        done.back().seconds = number();
        generate_seconds = std::max(generate_seconds, done.back().seconds);
        reward_seconds = std::max(reward_seconds, number());
        if (rank == ranks_->rank()) continue;
        for (int64_t left = in.number(); left > 0; --left) {
            const auto at = static_cast<size_t>(in.number());
            if (at >= batch_.rollouts.size()) return fail("rank {} has different prompts", rank);
            NIBBLE_CHECK(take_rollout(in, batch_.rollouts[at]));
        }
    }
    batch_.generate_seconds += generate_seconds, batch_.reward_seconds += reward_seconds;
    add_work(batch_.ranks, done);
    return Ok{};
}

Status RolloutPool::own_round(const RolloutRequest& request) {
    RolloutClock clock;
    std::vector<Rollout*> open, ended;
    for (const Begun& b : own_open()) open.push_back(&batch_.rollouts[b.rollout]);
    NIBBLE_CHECK(generate(request, open));
    batch_.generate_seconds += clock.lap();
    if (stopped_) return Ok{};
    for (Rollout* r : open) {
        const bool turn_is_full = request.most_tokens > 0 && turn_tokens(*r) >= request.most_tokens;
        if (request.round_tokens == 0 || !r->cut || turn_is_full || room(*r, request) == 0) ended.push_back(r);
    }
    if (!ended.empty()) NIBBLE_CHECK(task_.judge(batch_.prompts, ended));
    if (request.stop && request.stop->load()) stopped_ = true;  // some answers may be unjudged
    if (stopped_) return Ok{};
    for (Rollout* r : ended) settle(*r, request);
    batch_.reward_seconds += clock.lap();
    return Ok{};
}

int64_t RolloutPool::room(const Rollout& r, const RolloutRequest& request) const {
    return request.length - std::ssize(batch_.prompts[r.prompt].tokens) - std::ssize(r.tokens);
}

// Decides, after a turn was judged, whether another turn follows.
void RolloutPool::settle(Rollout& r, const RolloutRequest& request) const {
    if (r.reward && !(std::abs(*r.reward) <= most_reward))
        r.failure = fmt::format("{}: the reward {} is not in [{:g}, {:g}]", batch_.prompts[r.prompt].name(), *r.reward,
                                -most_reward, most_reward);
    if (!r.failure.empty()) r.reward.reset(), r.observation.clear();
    r.whole = r.observation.empty() || r.turns == request.most_turns;
    if (r.whole) return;
    if (room(r, request) <= std::ssize(r.observation)) {
        r.whole = r.cut = true;
        return;
    }
    r.tokens.insert(r.tokens.end(), r.observation.begin(), r.observation.end());
    r.generated.resize(r.tokens.size(), 0);
    r.written.resize(r.tokens.size(), 0);
    r.steps.resize(r.tokens.size(), request.step);
    r.observation.clear();
    r.turn_begin = r.tokens.size();
    ++r.turns;
}

Request RolloutPool::request_of(const Rollout& r, const RolloutRequest& request) const {
    const RolloutPrompt& prompt = batch_.prompts[r.prompt];
    const auto answer = static_cast<uint64_t>(&r - batch_.rollouts.data()) % static_cast<uint64_t>(answers_);
    Request q;
    q.prompt = prompt.tokens;
    q.prompt.insert(q.prompt.end(), r.tokens.begin(), r.tokens.end());
    q.resumed = turn_tokens(r);
    q.sampling = request.sampling;
    q.sampling.seed = request.seed;
    q.sampled_logprobs = q.sampling.temperature != 1 || q.sampling.filters();
    q.sequence = prompt.number * static_cast<uint64_t>(answers_) + answer;
    q.max_tokens = room(r, request);
    if (request.most_tokens > 0) q.max_tokens = std::min(q.max_tokens, request.most_tokens - turn_tokens(r));
    if (request.round_tokens > 0) q.max_tokens = std::min(q.max_tokens, request.round_tokens);
    q.eos = request.end_tokens;
    q.stop = request.stop_texts;
    q.cache_salt = request.cache_salt;
    return q;
}

Status RolloutPool::generate(const RolloutRequest& request, std::span<Rollout* const> open) {
    // Answers that begin share the prefill of their prompt.
    std::vector<Request> list;
    for (size_t i = 0; i < open.size(); ++i)
        if (i > 0 && open[i]->tokens.empty() && open[i]->prompt == open[i - 1]->prompt &&
            list.back().choices < most_choices)
            ++list.back().choices;
        else
            list.push_back(request_of(*open[i], request));
    std::vector<WholeAnswer> answers;
    NIBBLE_CHECK(answer_all(engine_, std::move(list), {.stop = request.stop}, answers));
    for (size_t i = 0; i < open.size(); ++i) {
        if (answers[i].finish == FinishReason::cancelled) stopped_ = true;
        append(*open[i], std::move(answers[i]), request.step);
    }
    return Ok{};
}

bool RolloutPool::is_whole(size_t prompt) const {
    const auto each = static_cast<size_t>(answers_);
    return std::ranges::all_of(std::span(batch_.rollouts).subspan(prompt * each, each), &Rollout::whole);
}

int64_t RolloutPool::open() const { return std::ranges::count(batch_.rollouts, false, &Rollout::whole); }

int64_t RolloutPool::whole() const {
    int64_t count = 0;
    for (size_t p = 0; p < batch_.prompts.size(); ++p) count += is_whole(p);
    return count;
}

RolloutBatch RolloutPool::take(const std::vector<uint8_t>& chosen) {
    owner_.clear();
    RolloutBatch taken = take_prompts(batch_, chosen);
    taken.ranks = std::exchange(batch_.ranks, {});
    taken.generate_seconds = std::exchange(batch_.generate_seconds, 0);
    taken.reward_seconds = std::exchange(batch_.reward_seconds, 0);
    taken.stopped = stopped_;
    return taken;
}

RolloutBatch RolloutPool::take_whole(int64_t most) {
    std::vector<uint8_t> chosen(batch_.prompts.size());
    for (size_t p = 0; p < chosen.size() && most > 0; ++p)
        if (is_whole(p)) chosen[p] = 1, --most;
    return take(chosen);
}

int64_t RolloutPool::drop_before(int64_t step) {
    std::vector<uint8_t> old;
    for (const RolloutPrompt& p : batch_.prompts) old.push_back(p.begun < step);
    owner_.clear();
    return std::ssize(take_prompts(batch_, old).prompts);
}

Json RolloutPool::state() const {
    Json list = Json::array();
    for (size_t p = 0; p < batch_.prompts.size(); ++p) {
        Json rollouts = Json::array();
        for (const Rollout& r : batch_.rollouts)
            if (r.prompt == p) rollouts.push_back(rollout_json(r));
        list.push_back({{"number", batch_.prompts[p].number},
                        {"begun", batch_.prompts[p].begun},
                        {"answers", std::move(rollouts)}});
    }
    return list;
}

Status RolloutPool::set_state(const Json& state) {
    RolloutBatch batch;
    if (!state.is_array()) return fail("unfinished rollouts: not a list");
    for (const Json& group : state) {
        uint64_t number = 0;
        int64_t begun = 0;
        Fields entry(group);
        NIBBLE_CHECK(entry.need("number", number));
        NIBBLE_CHECK(entry.need("begun", begun));
        const auto answers = group.find("answers");
        if (answers == group.end() || !answers->is_array() || std::ssize(*answers) != answers_)
            return fail("unfinished rollouts: prompt {} does not have {} answers", number, answers_);
        NIBBLE_TRY(RolloutPrompt prompt, task_.prompt(number));
        prompt.number = number, prompt.begun = begun;
        for (const Json& answer : *answers) {
            NIBBLE_TRY(Rollout r, rollout_from_json(answer));
            r.prompt = batch.prompts.size();
            batch.rollouts.push_back(std::move(r));
        }
        batch.prompts.push_back(std::move(prompt));
    }
    batch_ = std::move(batch);
    owner_.clear();
    stopped_ = false;
    return Ok{};
}

Result<RolloutBatch> roll_out(Engine& engine, RolloutTask& task, const RolloutRequest& request, RankGroup* ranks) {
    RolloutPool pool(engine, task, request.answers, ranks);
    for (int64_t i = 0; i < request.prompts; ++i)
        NIBBLE_CHECK(pool.begin(request.first_prompt + static_cast<uint64_t>(i), request));
    NIBBLE_CHECK(pool.all_rounds(request));
    return pool.take_all();
}

}  // namespace nibble
