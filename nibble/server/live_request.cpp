#include "server/live_request.h"

#include "base/memory_reserve.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace nibble {

namespace {

ApiError engine_error(const HeardEvent& e) {
    if (e.error_kind == ErrorKind::memory) return {.status = 503, .message = e.error, .retry_seconds = 5};
    return {.status = e.error_kind == ErrorKind::usage ? 400 : 500, .message = e.error};
}

}  // namespace

bool count_answer(HttpExchange& exchange, const ServedModel& model, const Request& like,
                  std::span<const std::vector<int32_t>> prompts, const AnswerForms& form) {
    std::vector<int64_t> sizes;
    for (const auto& prompt : prompts) sizes.push_back(std::ssize(prompt));
    const int64_t bytes = largest_answer(like, sizes, model.context(), form);
    const int64_t most = exchange.core.options.request_bytes;
    constexpr int64_t mega = 1 << 20, usual = 16 << 20;
    exchange.heavy = like.top_logprobs >= 0 || like.prompt_logprobs >= 0 || bytes > usual;
    if (bytes > most) {
        exchange.fail({.message = fmt::format("the answer may need {} MB of memory; the limit is {} MB: request fewer "
                                              "prompts, choices, tokens or log-probabilities",
                                              bytes / mega, most / mega),
                       .code = "request_too_large"});
        return false;
    }
    if (!refill_memory_reserve()) {
        exchange.fail({.status = 503, .message = "no memory is left", .code = "memory_full", .retry_seconds = 5});
        return false;
    }
    exchange.memory = exchange.core.memory.take(bytes);
    if (exchange.memory) return true;
    exchange.fail({.status = 503,
                   .message = "other answers use all memory reserved for answers; try again later",
                   .code = "memory_full",
                   .retry_seconds = 5});
    return false;
}

LiveRequest::LiveRequest(ExchangePtr exchange, ModelPtr model, std::unique_ptr<AnswerWriter> writer)
    : exchange_(std::move(exchange)), model_(std::move(model)), writer_(std::move(writer)) {}

void LiveRequest::submit(Request request) {
    std::vector<std::vector<int32_t>> prompts;
    prompts.push_back(std::exchange(request.prompt, {}));
    submit(std::move(request), std::move(prompts));
}

void LiveRequest::submit(Request like, std::vector<std::vector<int32_t>> prompts) {
    exchange_->answer->on_gone([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->cancel();
    });
    {
        const std::lock_guard lock(mutex_);
        open_ = prompts.size();
    }
    // A request that can never fit into the queue as a whole is rejected before parts of it are queued.
    const int64_t choices_in_all = like.choices * std::ssize(prompts);
    if (const int64_t queue = model_->engine->limits().queue; choices_in_all > queue) {
        exchange_->fail(
            {.message = fmt::format("the request has {} answers; the queue can hold {}", choices_in_all, queue)});
        return;
    }
    like.id = exchange_->id;
    like.deadline = exchange_->deadline;
    auto shared = model_->engine->share(std::move(like));
    if (!shared.ok()) {
        exchange_->fail({.message = shared.error().message()});
        return;
    }
    const int32_t choices = (*shared)->request.choices;
    for (size_t i = 0; i < prompts.size(); ++i) {
        const auto first = static_cast<int32_t>(i) * choices;
        const Admission admitted = model_->engine->submit(
            *shared, std::move(prompts[i]), i,
            [self = shared_from_this(), i, first](const AnswerEvent& e) { self->hear(i, first, e); });
        if (admitted.accepted()) {
            const std::lock_guard lock(mutex_);
            handles_.push_back(admitted.handle);
            continue;
        }
        cancel();
        ApiError error{.message = admitted.message, .retry_seconds = admitted.retry_seconds};
        if (admitted.refusal == Admission::Refusal::full) error.status = 429, error.code = "queue_full";
        if (admitted.refusal == Admission::Refusal::draining) error.status = 503, error.retry_seconds = 5;
        exchange_->fail(error);
        return;
    }
    bool gone = false;
    {
        const std::lock_guard lock(mutex_);
        admitted_ = true;
        gone = gone_;
        schedule();
    }
    if (gone) cancel();
}

void LiveRequest::cancel() {
    std::vector<uint64_t> handles;
    {
        const std::lock_guard lock(mutex_);
        gone_ = true;
        handles = handles_;
    }
    for (const uint64_t handle : handles) model_->engine->cancel(handle);
}

void LiveRequest::hear(size_t part, int32_t first_choice, const AnswerEvent& e) {
    std::optional<HeardEvent> heard;
    try {
        heard.emplace(
            HeardEvent{.choice = first_choice + e.choice,
                       .part = part,
                       .text = std::string(e.text),
                       .tokens = {e.tokens.begin(), e.tokens.end()},
                       .prompt = {std::make_move_iterator(e.prompt.begin()), std::make_move_iterator(e.prompt.end())},
                       .finish = e.finish,
                       .stop = std::string(e.stop),
                       .stop_token = e.stop_token,
                       .error = std::string(e.error),
                       .error_kind = e.error_kind});
    } catch (const std::bad_alloc&) {
        heard.reset();
    }
    const std::lock_guard lock(mutex_);
    if (e.report) {
        const RequestReport& r = *e.report;
        total_.prompt_tokens += r.prompt_tokens;
        total_.cached_tokens += r.cached_tokens;
        total_.generated_tokens += r.generated_tokens;
        total_.draft_tokens += r.draft_tokens;
        total_.accepted_tokens += r.accepted_tokens;
        total_.preemptions += r.preemptions;
        total_.queue_seconds = std::max(total_.queue_seconds, r.queue_seconds);
        total_.prompt_seconds = std::max(total_.prompt_seconds, r.prompt_seconds);
        total_.generate_seconds = std::max(total_.generate_seconds, r.generate_seconds);
        --open_;
    }
    try {
        if (heard && e.report && open_ == 0) heard->total = total_;
        if (heard && !lost_) inbox_.push_back(*std::move(heard));
        lost_ |= !heard;
        if (admitted_) schedule();
    } catch (const std::bad_alloc&) {
        lost_ = true;
    }
}

// Call with the mutex locked.
void LiveRequest::schedule() {
    pending_ = true;
    if (!std::exchange(working_, true)) post();
}

void LiveRequest::post() {
    auto work = [self = shared_from_this()] { self->work(); };
    if (exchange_->heavy)
        exchange_->core.heavy.post(std::move(work));
    else
        exchange_->core.http->post(std::move(work));
}

// Runs one call at a time; calls that arrive in the meantime wait after other requests.
void LiveRequest::work() {
    {
        const std::lock_guard lock(mutex_);
        pending_ = false;
    }
    try {
        deal();
    } catch (const std::bad_alloc&) {
        run_out();
    }
    const std::lock_guard lock(mutex_);
    if (pending_)
        post();
    else
        working_ = false;
}

// Ends an answer for lack of memory and frees what it holds.
void LiveRequest::run_out() {
    if (std::exchange(over_, true)) return;
    {
        const std::lock_guard lock(mutex_);
        std::vector<HeardEvent>().swap(inbox_);
        lost_ = true;
    }
    cancel();
    try {
        writer_->fail({.status = 503, .message = "the server is out of memory for the answer", .retry_seconds = 5});
    } catch (const std::bad_alloc&) {
        exchange_->answer->abort();
    }
    writer_.reset();
}

void LiveRequest::deal() {
    std::vector<HeardEvent> events;
    RequestReport total;
    bool last = false, gone = false, lost = false;
    {
        const std::lock_guard lock(mutex_);
        lost = lost_;
        events.swap(inbox_);
        total = total_;
        last = open_ == 0;
        gone = gone_;
    }
    if (over_) return;
    if (lost) return run_out();
    const auto note = [&](std::string_view finish) {
        Json& notes = exchange_->notes;
        notes["prompt_tokens"] = total.prompt_tokens;
        notes["cached_tokens"] = total.cached_tokens;
        notes["completion_tokens"] = total.generated_tokens;
        notes["queue_seconds"] = total.queue_seconds;
        notes["prompt_seconds"] = total.prompt_seconds;
        notes["finish"] = finish;
    };
    if (gone) {  // the client has disconnected; 499 is nginx's status for it
        if (!last) return;
        over_ = true;
        note("cancelled");
        exchange_->log(499);
        return;
    }
    if (!std::exchange(begun_, true)) writer_->begin();
    for (const HeardEvent& e : events) {
        if (e.finish == FinishReason::error || e.finish == FinishReason::deadline) {
            over_ = true;
            const bool late = e.finish == FinishReason::deadline;
            note(finish_name(e.finish));
            writer_->fail(late ? late_error() : engine_error(e));
            for (const uint64_t handle : handles_) model_->engine->cancel(handle);
            return;
        }
        if (e.finish == FinishReason::cancelled) {  // cancelled by the server, which is about to stop
            over_ = true;
            note(finish_name(e.finish));
            writer_->fail({.status = 503, .message = "the server is shutting down", .retry_seconds = 5});
            return;
        }
        cut_off_ |= e.finish == FinishReason::length;
        writer_->event(e);
    }
    if (!last) return;
    over_ = true;
    note(finish_name(cut_off_ ? FinishReason::length : FinishReason::stop));
    writer_->finish(total);
}

}  // namespace nibble
