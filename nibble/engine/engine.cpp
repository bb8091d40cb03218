#include "engine/engine.h"

#include "base/clock.h"
#include "engine/drafter.h"
#include "engine/engine_size.h"
#include "engine/request_counts.h"
#include "engine/scheduler.h"
#include "engine/step_pace.h"
#include "engine/step_runner.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

namespace nibble {
namespace {

// `error` may be null.
void note_error(AnswerEvent& event, const Error* error) {
    if (!error) return;
    event.error = error->message();
    event.error_kind = error->kind();
}

// Turns exceptions of one request into an error, so that they do not end the process.
template <class Work>
Status guarded(const Work& work) {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        return fail(ErrorKind::memory, "out of memory");
    }
}

}  // namespace

struct Engine::State {
    std::shared_ptr<const LanguageModel> model;
    std::optional<Tokenizer> tokenizer;
    EngineOptions options;
    int64_t capacity = 0;

    // Used only by the engine's thread.
    EngineStats counts;
    std::unique_ptr<Drafter> drafter;
    std::optional<Scheduler> scheduler;
    std::optional<StepRunner> runner;
    RequestCounts request_counts{counts};
    std::optional<StepPace> pace;  // set if the time is limited
    std::optional<Flight> under_way;
    std::vector<Choice*> arrived_choices;          // choices whose device step ended in this call of step()
    std::vector<std::unique_ptr<Choice>> leaving;  // finished and reported, but part of a step in flight
    EngineClock::time_point last_arrival;

    mutable std::mutex mutex;
    std::condition_variable wake, rest;
    // Protected by the mutex.
    std::vector<std::shared_ptr<Job>> arrived;
    std::vector<uint64_t> cancelled;
    bool cancel_all = false, draining = false, quit = false, idle = true;
    enum class Pause : uint8_t { off, wanted, on } pause = Pause::off;
    Unfinished unfinished = Unfinished::keep;  // treatment of unfinished requests during the pause
    bool take_arrived = true;                  // false: requests that arrived during the pause wait
    uint64_t next_handle = 1;
    int64_t waiting = 0;  // choices that have arrived or wait
    EngineStats published;
    double published_service = 0;

    std::thread thread;

    bool step();
    bool hold();
    bool has_work() const { return scheduler->running() + scheduler->waiting() > 0 || under_way; }
    void take_arrivals();
    void enqueue(const std::shared_ptr<Job>& job);
    void end_cancelled_and_late();
    void fork(Choice& leader);
    Flight depart(std::span<Choice* const> step);
    void run(std::vector<Choice*> step);
    void land(bool carried_on);
    void arrive(const Flight& flight, const Status& ran);
    void fail_step(const Flight& flight, const Status& status, bool certain);
    void settle(Choice& choice);
    void report(Choice& choice);
    void report_unmade(Job& job, int32_t from, FinishReason finish, const Error* error);
    void report_finished();
    void publish(bool more);
    void loop();
};

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<const LanguageModel> model,
                                               std::optional<Tokenizer> tokenizer, const EngineOptions& options) {
    NIBBLE_TRY(EngineSize size, engine_size(options, *model));
    NIBBLE_TRY(auto pool, model->make_pool(size.tokens, size.states));
    auto state = std::make_unique<State>();
    state->capacity = longest_text(*pool, size.options.step_rows, size.options.context);
    size.options.context = state->capacity;
    state->options = std::move(size.options);
    state->model = std::move(model);
    state->tokenizer = std::move(tokenizer);
    state->counts.pages = pool->pages();
    state->drafter = make_drafter(*state->model, state->options, state->counts);
    state->scheduler.emplace(std::move(pool), state->options, *state->drafter, state->counts, size.state_copies,
                             state->model->chooses());
    state->runner.emplace(*state->model, *state->drafter, state->counts);
    if (state->options.stretch > 0) state->pace.emplace(state->options.stretch, state->options.mixed_rows);
    state->published = state->counts;
    return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}

Engine::~Engine() {
    State& s = *state_;
    {
        const std::lock_guard lock(s.mutex);
        s.quit = s.cancel_all = s.draining = s.take_arrived = true;
        s.pause = State::Pause::off;
    }
    s.wake.notify_all();
    if (s.thread.joinable()) s.thread.join();
    s.step();  // reports the end to the sinks of unfinished requests
}

const EngineOptions& Engine::limits() const { return state_->options; }
int64_t Engine::capacity() const { return state_->capacity; }
const LanguageModel& Engine::model() const { return *state_->model; }

EngineStats Engine::stats() const {
    const std::lock_guard lock(state_->mutex);
    EngineStats stats = state_->published;
    stats.waiting = state_->waiting;
    stats.deferred = std::min(stats.deferred, stats.waiting);
    return stats;
}

Admission Engine::submit(Request request, AnswerSink sink) {
    std::vector<int32_t> prompt = std::move(request.prompt);
    request.prompt.clear();
    const uint64_t sequence = request.sequence;
    auto shared = share(std::move(request));
    if (!shared.ok()) return {.refusal = Admission::Refusal::invalid, .message = shared.error().message()};
    return submit(*std::move(shared), std::move(prompt), sequence, std::move(sink));
}

Result<SharedRequestPtr> Engine::share(Request parameters) const {
    const int64_t vocab = state_->model->config().vocab;
    NIBBLE_CHECK(check_parameters(parameters, vocab));
    if (!state_->tokenizer && !parameters.stop.empty()) return fail("stop strings need a tokenizer");
    return std::make_shared<const SharedRequest>(std::move(parameters), vocab);
}

Admission Engine::submit(SharedRequestPtr shared, std::vector<int32_t> prompt, uint64_t sequence, AnswerSink sink) {
    State& s = *state_;
    Status valid = check_prompt(prompt, s.model->config().vocab, s.options.context);
    if (valid.ok()) valid = check_resumed(shared->request, std::ssize(prompt));
    if (!valid.ok()) return {.refusal = Admission::Refusal::invalid, .message = valid.error().message()};
    auto job = std::make_shared<Job>(std::move(shared), std::move(prompt), sequence, std::move(sink));
    job->submitted = EngineClock::now();
    job->report.prompt_tokens = std::ssize(job->prompt);
    const std::lock_guard lock(s.mutex);
    if (s.draining) return {.refusal = Admission::Refusal::draining, .message = "the engine is shutting down"};
    if (s.waiting + job->open > s.options.queue) {
        const double ahead = static_cast<double>(s.waiting) / static_cast<double>(s.options.sequences);
        return {.refusal = Admission::Refusal::full,
                .message = fmt::format("{} requests are waiting; the queue can hold {}", s.waiting, s.options.queue),
                .retry_seconds = std::clamp(s.published_service * (ahead + 0.5), 1.0, 120.0)};
    }
    job->handle = s.next_handle++;
    s.waiting += job->open;
    s.idle = false;
    s.arrived.push_back(job);
    s.wake.notify_one();
    return {.handle = job->handle};
}

void Engine::cancel(uint64_t handle) {
    const std::lock_guard lock(state_->mutex);
    state_->cancelled.push_back(handle);
    state_->wake.notify_one();
}

bool Engine::step() { return state_->step(); }

void Engine::start() {
    if (!state_->thread.joinable()) state_->thread = std::thread([s = state_.get()] { s->loop(); });
}

void Engine::pause(Unfinished unfinished) {
    State& s = *state_;
    std::unique_lock lock(s.mutex);
    s.pause = State::Pause::wanted;
    s.unfinished = unfinished;
    s.take_arrived = true;
    s.wake.notify_one();
    if (s.thread.joinable()) return s.rest.wait(lock, [&] { return s.pause != State::Pause::wanted || s.quit; });
    while (s.pause == State::Pause::wanted) {
        lock.unlock();
        s.step();
        lock.lock();
    }
}

void Engine::resume() {
    const std::lock_guard lock(state_->mutex);
    state_->pause = State::Pause::off;
    state_->take_arrived = true;
    state_->wake.notify_one();
}

bool Engine::paused() const {
    const std::lock_guard lock(state_->mutex);
    return state_->pause == State::Pause::on;
}

void Engine::forget_prefixes() {
    state_->scheduler->forget_prefixes();
    state_->publish(state_->has_work());
}

void Engine::forget_pages() {
    forget_prefixes();
    KvPool& pool = state_->scheduler->pool();
    if (pool.free_pages() == pool.pages()) pool.forget();
}

void Engine::drain(EngineClock::time_point deadline) {
    resume();
    State& s = *state_;
    if (!s.thread.joinable()) {
        {
            const std::lock_guard lock(s.mutex);
            s.draining = true;
        }
        while (s.step()) {
            if (EngineClock::now() < deadline) continue;
            const std::lock_guard lock(s.mutex);
            s.cancel_all = true;
        }
        return;
    }
    std::unique_lock lock(s.mutex);
    s.draining = true;
    if (s.rest.wait_until(lock, deadline, [&] { return s.idle; })) return;
    s.cancel_all = true;
    s.wake.notify_one();
    s.rest.wait(lock, [&] { return s.idle; });
}

void Engine::State::loop() {
    for (bool more = true;;) {
        {
            std::unique_lock lock(mutex);
            wake.wait(lock, [&] {
                if (quit || pause == Pause::on) return quit;
                return more || pause == Pause::wanted || !arrived.empty() || !cancelled.empty() || cancel_all;
            });
            if (quit) return;
            if (idle) cancel_all = false;
        }
        try {
            more = step();
        } catch (const std::bad_alloc&) {  // running requests end; the server continues
            scheduler->each([](Choice& c) { c.answer.end(fail(ErrorKind::memory, "out of memory")); });
            more = true;
        }
    }
}

bool Engine::State::step() {
    {
        const std::lock_guard lock(mutex);
        if (pause == Pause::on) return false;
    }
    take_arrivals();
    end_cancelled_and_late();
    report_finished();
    if (hold()) return has_work();
    for (Choice* leader : scheduler->forking()) fork(*leader);
    const std::vector<Choice*> planned = scheduler->plan(pace ? pace->rows() : options.mixed_rows);
    if (!planned.empty())
        run(planned);
    else if (under_way)
        land(false);
    for (Choice* choice : std::exchange(arrived_choices, {}))
        if (!choice->answer.finished()) report(*choice);
    report_finished();
    const bool more = has_work();
    publish(more);
    const std::lock_guard lock(mutex);
    if (pause == Pause::wanted && !more) {
        pause = Pause::on;
        rest.notify_all();
    }
    return more || !arrived.empty();
}

// In a pause that keeps answers: frees the memory of all answers, so that their texts are computed again later.
bool Engine::State::hold() {
    {
        const std::lock_guard lock(mutex);
        if (pause != Pause::wanted || unfinished != Unfinished::keep) return false;
    }
    if (under_way) land(false);
    for (Choice* choice : std::exchange(arrived_choices, {}))
        if (!choice->answer.finished()) report(*choice);
    report_finished();
    for (Choice* choice : scheduler->running_choices()) scheduler->preempt(*choice);
    publish(has_work());
    const std::lock_guard lock(mutex);
    pause = Pause::on;
    rest.notify_all();
    return true;
}

void Engine::State::take_arrivals() {
    std::vector<std::shared_ptr<Job>> jobs;
    std::vector<uint64_t> handles;
    bool all = false;
    {
        const std::lock_guard lock(mutex);
        if (take_arrived || quit) jobs.swap(arrived);
        take_arrived = pause == Pause::off;
        for (const auto& job : arrived)
            if (std::ranges::find(cancelled, job->handle) != cancelled.end()) job->cancelled = true;
        handles.swap(cancelled);
        all = cancel_all || (pause == Pause::wanted && unfinished == Unfinished::cancel);
    }
    for (const auto& job : jobs) enqueue(job);
    if (!handles.empty() || all)
        scheduler->each([&](Choice& c) {
            if (all || std::ranges::find(handles, c.job->handle) != handles.end()) c.job->cancelled = true;
        });
}

// Choices fork after the prompt if it has more than the one token that each choice processes itself.
void Engine::State::enqueue(const std::shared_ptr<Job>& job) {
    const int32_t all = job->request.choices;
    const bool forks = all > 1 && job->prompt.size() > 1;
    int32_t made = 0;
    const Status enough = guarded([&]() -> Status {
        for (; made < (forks ? 1 : all); ++made) {
            auto choice = std::make_unique<Choice>(job, made, tokenizer, options.context);
            choice->forks = forks;
            scheduler->wait(std::move(choice));
        }
        return Ok{};
    });
    if (!enough.ok()) report_unmade(*job, made, FinishReason::error, &enough.error());
}

void Engine::State::fork(Choice& leader) {
    std::vector<std::unique_ptr<Choice>> children;
    int32_t made = 1;
    const Status enough = guarded([&]() -> Status {
        for (; made < leader.job->request.choices; ++made)
            children.push_back(std::make_unique<Choice>(leader.job, made, tokenizer, options.context));
        return Ok{};
    });
    scheduler->fork(leader, std::move(children));
    if (!enough.ok()) report_unmade(*leader.job, made, FinishReason::error, &enough.error());
}

void Engine::State::end_cancelled_and_late() {
    std::optional<EngineClock::time_point> now;
    scheduler->each([&](Choice& c) {
        if (c.job->cancelled) c.answer.end(FinishReason::cancelled);
        if (!c.job->request.deadline) return;
        if (!now) now = EngineClock::now();
        if (*now >= *c.job->request.deadline) c.answer.end(FinishReason::deadline);
    });
}

Flight Engine::State::depart(std::span<Choice* const> step) {
    Flight flight{.start = EngineClock::now()};
    for (Choice* c : step) {
        const int64_t rows = c->base + std::ssize(c->draft);
        flight.rows += rows;
        if (c->sequence->position() < c->answer.prompt()) flight.prompt_rows += rows;
        flight.parts.push_back({c, c->epoch, c->wants_row, c->answer.generated()});
        ++c->steps;
        if (c->job->started) continue;
        c->job->started = flight.start;
        counts.prompt_tokens += c->job->report.prompt_tokens;
        counts.cached_prompt_tokens += c->job->report.cached_tokens;
    }
    return flight;
}

// Runs a step to its end, or only launches it if its tokens need not be known for the next step.
void Engine::State::run(std::vector<Choice*> step) {
    if (under_way && !runner->launches(step)) {
        land(false);
        std::erase_if(step, [](const Choice* c) { return c->answer.finished() || !c->sequence; });
    }
    if (step.empty()) return;
    Flight flight = depart(step);
    if (!runner->launches(step)) return arrive(flight, guarded([&] { return runner->run(step); }));
    const Status launched = guarded([&] { return runner->launch(step, flight); });
    if (!launched.ok()) {
        // The previous step's tokens for these choices are computed again.
        fail_step(flight, launched, !under_way);
        if (under_way) land(false);
        return arrive(flight, Ok{});
    }
    // Prompt pieces are known already, so later steps may continue after them at once.
    for (const Flight::Part& part : flight.parts)
        if (!part.wants_row) settle(*part.choice);
    if (under_way) {
        ++counts.overlapped_steps;
        land(true);
    }
    under_way = std::move(flight);
    // The earlier tokens are known now.
    if (const Status chosen = guarded([&] { return runner->choose_deferred(*under_way); }); !chosen.ok()) {
        fail_step(*under_way, chosen, true);
        return land(false);
    }
    const auto holds_up = [&](const Flight::Part& p) {
        return p.wants_row && p.valid() && scheduler->holds_up(*p.choice);
    };
    if (std::ranges::any_of(under_way->parts, holds_up)) {
        runner->prepare(*under_way);
        land(false);
    }
}

// Finishes the step in flight. carried_on: another step was launched after it.
void Engine::State::land(bool carried_on) {
    Flight flight = *std::exchange(under_way, std::nullopt);
    for (Flight::Part& part : flight.parts) part.before = part.choice->answer.generated();
    arrive(flight, guarded([&] { return runner->collect(flight, carried_on); }));
    for (const Flight::Part& part : flight.parts)
        if (carried_on && part.wants_row && part.valid() && part.choice->on_host) scheduler->preempt(*part.choice);
}

void Engine::State::settle(Choice& choice) {
    if (const Status settled = scheduler->settle(choice); !settled.ok()) choice.answer.end(settled.error());
}

// Handles a failed step: each of its choices runs alone to find the cause. certain: the choice was alone and is the
// cause.
void Engine::State::fail_step(const Flight& flight, const Status& status, bool certain) {
    for (const Flight::Part& part : flight.parts) {
        if (!part.valid()) continue;
        if (certain && flight.parts.size() == 1) {
            part.choice->answer.end(status.error());
        } else {
            part.choice->alone = true;
            scheduler->preempt(*part.choice);
        }
    }
}

void Engine::State::arrive(const Flight& flight, const Status& ran) {
    const auto end = EngineClock::now();
    const auto start = std::max(flight.start, last_arrival);
    last_arrival = end;
    (flight.prompt_rows > 0 ? counts.prompt_step_seconds : counts.answer_step_seconds) += to_seconds(end - start);
    if (pace) pace->see(to_seconds(end - start), flight.rows - flight.prompt_rows, flight.prompt_rows);
    if (options.on_step) options.on_step(flight.rows);
    ++counts.steps;
    counts.step_rows += flight.rows;
    counts.histograms.iteration_tokens.add(static_cast<double>(flight.rows));
    for (const Flight::Part& part : flight.parts) {
        --part.choice->steps;
        arrived_choices.push_back(part.choice);
    }
    if (!ran.ok()) return fail_step(flight, ran, true);
    for (const Flight::Part& part : flight.parts) {
        if (part.epoch != part.choice->epoch) continue;
        Choice& c = *part.choice;
        const int64_t added = c.answer.generated() - part.before;
        counts.generated_tokens += added;
        c.job->report.generated_tokens += added;
        if (added > 0) request_counts.add_tokens(c, end);
        if (part.wants_row) c.alone = false;
        if (c.answer.finished() && c.answer.finish() == FinishReason::error) continue;
        if (!c.on_host && c.sequence) settle(c);
    }
}

void Engine::State::report(Choice& choice) {
    Job& job = *choice.job;
    const Answer::News news = choice.answer.take();
    AnswerEvent event{.choice = choice.index, .text = news.text, .tokens = news.tokens};
    std::vector<GeneratedToken> scores;
    if (choice.prompt_scored) scores = std::exchange(choice.prompt_scores, {});
    event.prompt = scores;
    if (choice.answer.finished()) {
        event.finish = choice.answer.finish();
        event.stop = choice.answer.stop();
        event.stop_token = choice.answer.stop_token();
        note_error(event, choice.answer.error() ? &*choice.answer.error() : nullptr);
        job.longest = std::max(job.longest, choice.answer.generated());
        request_counts.add_finished(job, event);
    }
    if (event.text.empty() && event.tokens.empty() && event.prompt.empty() && event.finish == FinishReason::none)
        return;
    if (job.sink) job.sink(event);
}

// Reports the end of choices [from, n) that were never started: the choice they were to fork from has not finished its
// prompt, or memory is missing.
void Engine::State::report_unmade(Job& job, int32_t from, FinishReason finish, const Error* error) {
    for (int32_t i = from; i < job.request.choices; ++i) {
        AnswerEvent event{.choice = i, .finish = finish};
        note_error(event, error);
        request_counts.add_finished(job, event);
        if (job.sink) job.sink(event);
    }
}

void Engine::State::report_finished() {
    for (auto& choice : scheduler->take_finished()) {
        const auto& error = choice->answer.error();
        if (choice->forks) report_unmade(*choice->job, 1, choice->answer.finish(), error ? &*error : nullptr);
        report(*choice);
        if (choice->steps > 0) leaving.push_back(std::move(choice));
    }
    std::erase_if(leaving, [](const auto& choice) { return choice->steps == 0; });
}

void Engine::State::publish(bool more) {
    counts.running = scheduler->running();
    counts.cached_pages = scheduler->cache().idle_pages();
    counts.used_pages = scheduler->pool().pages() - scheduler->pool().free_pages() - counts.cached_pages;
    counts.prefix_evictions = scheduler->cache().evictions();
    counts.block_times = scheduler->cache().block_times();
    const std::lock_guard lock(mutex);
    waiting = scheduler->waiting();
    for (const auto& job : arrived) waiting += job->open;
    published = counts;
    published_service = request_counts.service_seconds();
    idle = !more && arrived.empty();
    if (idle) rest.notify_all();
}

}  // namespace nibble
