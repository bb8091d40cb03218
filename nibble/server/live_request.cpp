#include "server/live_request.h"

#include <algorithm>

#include <fmt/format.h>

namespace nibble {

LiveRequest::LiveRequest(ExchangePtr exchange, ModelPtr model, std::unique_ptr<AnswerWriter> writer)
    : exchange_(std::move(exchange)), model_(std::move(model)), writer_(std::move(writer)) {}

void LiveRequest::submit(std::vector<Request> parts) {
    exchange_->answer->on_gone([weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->cancel();
    });
    {
        const std::lock_guard lock(mutex_);
        open_ = parts.size();
    }
    // What can never wait whole is refused before a part of it takes the places of others.
    int64_t choices_in_all = 0;
    for (const Request& request : parts) choices_in_all += request.choices;
    if (const int64_t queue = model_->engine->limits().queue; choices_in_all > queue) {
        exchange_->fail(
            {.message = fmt::format("{} answers in one request; the queue holds {}", choices_in_all, queue)});
        return;
    }
    int32_t first = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
        Request& request = parts[i];
        request.id = exchange_->id;
        request.sequence = i;
        request.deadline = exchange_->deadline;
        const int32_t choices = request.choices;
        const Admission admitted = model_->engine->submit(
            std::move(request),
            [self = shared_from_this(), i, first](const AnswerEvent& e) { self->hear(i, first, e); });
        first += choices;
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
    HeardEvent heard{.choice = first_choice + e.choice,
                     .part = part,
                     .text = std::string(e.text),
                     .tokens = {e.tokens.begin(), e.tokens.end()},
                     .prompt = {e.prompt.begin(), e.prompt.end()},
                     .finish = e.finish,
                     .stop = std::string(e.stop),
                     .stop_token = e.stop_token,
                     .error = std::string(e.error)};
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
        if (--open_ == 0) heard.total = total_;
    }
    inbox_.push_back(std::move(heard));
    if (admitted_) schedule();
}

// Under the mutex.
void LiveRequest::schedule() {
    if (std::exchange(scheduled_, true)) return;
    exchange_->core.http->post([self = shared_from_this()] { self->work(); });
}

void LiveRequest::work() {
    std::vector<HeardEvent> events;
    RequestReport total;
    bool last = false, gone = false;
    {
        const std::lock_guard lock(mutex_);
        scheduled_ = false;
        events.swap(inbox_);
        total = total_;
        last = open_ == 0;
        gone = gone_;
    }
    if (over_) return;
    const auto note = [&](std::string_view finish) {
        Json& notes = exchange_->notes;
        notes["prompt_tokens"] = total.prompt_tokens;
        notes["cached_tokens"] = total.cached_tokens;
        notes["completion_tokens"] = total.generated_tokens;
        notes["queue_seconds"] = total.queue_seconds;
        notes["prompt_seconds"] = total.prompt_seconds;
        notes["finish"] = finish;
    };
    if (gone) {  // nobody listens; 499 is nginx's number for it
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
            writer_->fail(late ? late_error() : ApiError{.status = 500, .message = e.error});
            for (const uint64_t handle : handles_) model_->engine->cancel(handle);
            return;
        }
        if (e.finish == FinishReason::cancelled) {  // by the server, which is about to end
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
