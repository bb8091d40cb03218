#include "engine/request_counts.h"

#include "base/clock.h"

namespace nibble {
void RequestCounts::add_tokens(Choice& choice, EngineClock::time_point now) {
    if (!choice.job->first_token) {
        choice.job->first_token = now;
        stats_.histograms.time_to_first_token.add(to_seconds(now - choice.job->submitted));
    }
    if (choice.last_token) stats_.histograms.inter_token_latency.add(to_seconds(now - *choice.last_token));
    choice.last_token = now;
}

// Counts a request whose last choice has finished.
void RequestCounts::add_request(Job& job, EngineClock::time_point now) {
    RequestReport& r = job.report;
    EngineHistograms& h = stats_.histograms;
    r.queue_seconds = to_seconds(job.started.value_or(now) - job.submitted);
    if (job.started) r.prompt_seconds = to_seconds(job.first_token.value_or(now) - *job.started);
    if (job.first_token) r.generate_seconds = to_seconds(now - *job.first_token);
    const double service = r.prompt_seconds + r.generate_seconds;
    service_seconds_ = service_seconds_ == 0 ? service : 0.9 * service_seconds_ + 0.1 * service;
    h.e2e_request_latency.add(to_seconds(now - job.submitted));
    h.request_queue_time.add(r.queue_seconds);
    h.request_prefill_time.add(r.prompt_seconds);
    h.request_decode_time.add(r.generate_seconds);
    h.request_inference_time.add(service);
    if (job.longest > 1) h.request_time_per_output_token.add(r.generate_seconds / static_cast<double>(job.longest - 1));
    h.request_prompt_tokens.add(static_cast<double>(r.prompt_tokens));
    h.request_generation_tokens.add(static_cast<double>(r.generated_tokens));
    h.request_max_num_generation_tokens.add(static_cast<double>(job.longest));
    h.request_params_max_tokens.add(static_cast<double>(job.request.max_tokens));
    h.request_params_n.add(job.request.choices);
    h.request_num_preemptions.add(static_cast<double>(r.preemptions));
    h.request_prefill_kv_computed_tokens.add(static_cast<double>(r.prompt_tokens - r.cached_tokens));
}

void RequestCounts::add_finished(Job& job, AnswerEvent& event) {
    if (--job.open == 0) {
        add_request(job, EngineClock::now());
        event.report = &job.report;
    }
    switch (event.finish) {
        case FinishReason::none:
            break;
        case FinishReason::stop:
            ++stats_.finished_stop;
            break;
        case FinishReason::length:
            ++stats_.finished_length;
            break;
        case FinishReason::cancelled:
            ++stats_.finished_cancelled;
            break;
        case FinishReason::deadline:
            ++stats_.finished_deadline;
            break;
        case FinishReason::error:
            ++stats_.finished_error;
            break;
    }
}

}  // namespace nibble
