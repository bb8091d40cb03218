#include "server/metrics.h"

#include <fmt/format.h>

namespace nibble {
namespace {

class MetricsPage {
public:
    explicit MetricsPage(std::string labels) : labels_(std::move(labels)) {}

    void begin(std::string_view name, std::string_view type, std::string_view help) {
        text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
    }
    void line(std::string_view name, double value, std::string_view more = {}) {
        text_ +=
            fmt::format("{}{{{}{}{}}} {}\n", name, labels_, labels_.empty() || more.empty() ? "" : ",", more, value);
    }
    void one(std::string_view name, std::string_view type, std::string_view help, double value) {
        begin(name, type, help);
        line(name, value);
    }
    void histogram(const std::string& name, std::string_view help, const MetricHistogram& h) {
        begin(name, "histogram", help);
        for (size_t i = 0; i <= h.bounds().size(); ++i)
            line(name + "_bucket", static_cast<double>(h.through(i)),
                 i < h.bounds().size() ? fmt::format("le=\"{}\"", h.bounds()[i]) : "le=\"+Inf\"");
        line(name + "_sum", h.sum());
        line(name + "_count", static_cast<double>(h.count()));
    }
    const std::string& text() const { return text_; }

private:
    std::string labels_, text_;
};

std::string label_text(std::string_view value) {
    std::string out;
    for (const char c : value) {
        if (c == '\\' || c == '"') out += '\\';
        out += c == '\n' ? ' ' : c;
    }
    return out;
}

void add_engine(MetricsPage& page, const ServedModel& model) {
    const EngineStats s = model.engine->stats();
    const auto gauge = [&](const char* name, const char* help, double value) { page.one(name, "gauge", help, value); };
    const auto counter = [&](const char* name, const char* help, int64_t value) {
        page.one(name, "counter", help, static_cast<double>(value));
    };
    gauge("vllm:num_requests_running", "Running answers.", double(s.running));
    gauge("vllm:num_requests_waiting", "Waiting answers.", double(s.waiting));
    page.begin(
        "vllm:num_requests_waiting_by_reason", "gauge",
        "Waiting answers by reason: capacity, or deferred until another answer has computed a shared prompt prefix.");
    page.line("vllm:num_requests_waiting_by_reason", double(s.waiting - s.deferred), "reason=\"capacity\"");
    page.line("vllm:num_requests_waiting_by_reason", double(s.deferred), "reason=\"deferred\"");
    gauge("vllm:kv_cache_usage_perc", "Share of KV cache pages used by running answers, 0 to 1.", s.cache_share());
    gauge("vllm:gpu_cache_usage_perc", "Older name of vllm:kv_cache_usage_perc.", s.cache_share());
    page.begin("vllm:cache_config_info", "gauge", "Configuration of the KV cache.");
    page.line(
        "vllm:cache_config_info", 1,
        fmt::format("block_size=\"64\",num_gpu_blocks=\"{}\",enable_prefix_caching=\"{}\",max_num_seqs=\"{}\"", s.pages,
                    model.engine->limits().prefix_cache ? "True" : "False", model.engine->limits().sequences));
    // As in vLLM without adapters: the names are empty, the value is the time.
    page.begin("vllm:lora_requests_info", "gauge", "Adapters in use; always none.");
    page.line("vllm:lora_requests_info", double(unix_seconds()),
              "max_lora=\"0\",waiting_lora_adapters=\"\",running_lora_adapters=\"\"");
    counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", s.prefix_queries);
    counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", s.prefix_hits);
    counter("vllm:num_preemptions_total", "Answers that were preempted and computed again.", s.preemptions);
    counter("vllm:prompt_tokens_total", "Tokens of prompts.", s.prompt_tokens);
    page.begin("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by source.");
    const auto by_source = [&](const char* source, int64_t count) {
        page.line("vllm:prompt_tokens_by_source_total", double(count), fmt::format("source=\"{}\"", source));
    };
    by_source("local_compute", s.prompt_tokens - s.cached_prompt_tokens);
    by_source("local_cache_hit", s.cached_prompt_tokens);
    by_source("external_kv_transfer", 0);
    counter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.", s.cached_prompt_tokens);
    counter("vllm:generation_tokens_total", "Tokens of answers.", s.generated_tokens);
    page.begin("vllm:request_success_total", "counter", "Finished answers by reason.");
    page.line("vllm:request_success_total", double(s.finished_stop), "finished_reason=\"stop\"");
    page.line("vllm:request_success_total", double(s.finished_length), "finished_reason=\"length\"");
    page.line("vllm:request_success_total", double(s.finished_cancelled + s.finished_deadline),
              "finished_reason=\"abort\"");
    page.line("vllm:request_success_total", double(s.finished_error), "finished_reason=\"error\"");
    counter("vllm:spec_decode_num_drafts_total", "Verified drafts.", s.drafts);
    counter("vllm:spec_decode_num_draft_tokens_total", "Tokens of drafts.", s.draft_tokens);
    counter("vllm:spec_decode_num_accepted_tokens_total", "Accepted draft tokens.", s.accepted_tokens);
    page.begin("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
               "Accepted draft tokens by position in the draft.");
    for (size_t i = 0; i < s.accepted_at.size(); ++i)
        page.line("vllm:spec_decode_num_accepted_tokens_per_pos_total", double(s.accepted_at[i]),
                  fmt::format("position=\"{}\"", i));
    const EngineHistograms& h = s.histograms;
    const auto histogram = [&](const char* name, const char* help, const MetricHistogram& values) {
        page.histogram(name, help, values);
    };
    histogram("vllm:time_to_first_token_seconds", "Seconds from arrival to the first token.", h.time_to_first_token);
    histogram("vllm:inter_token_latency_seconds", "Seconds between two steps that add tokens to an answer.",
              h.inter_token_latency);
    histogram("vllm:time_per_output_token_seconds", "Older name of vllm:inter_token_latency_seconds.",
              h.inter_token_latency);
    histogram("vllm:request_time_per_output_token_seconds", "Seconds per output token after the first.",
              h.request_time_per_output_token);
    histogram("vllm:e2e_request_latency_seconds", "Seconds from arrival to the end of a request.",
              h.e2e_request_latency);
    histogram("vllm:request_queue_time_seconds", "Seconds from arrival to the first step.", h.request_queue_time);
    histogram("vllm:request_inference_time_seconds", "Seconds from the first step to the end of a request.",
              h.request_inference_time);
    histogram("vllm:request_prefill_time_seconds", "Seconds from the first step to the first token.",
              h.request_prefill_time);
    histogram("vllm:request_decode_time_seconds", "Seconds from the first token to the end of a request.",
              h.request_decode_time);
    histogram("vllm:request_prompt_tokens", "Tokens of prompts.", h.request_prompt_tokens);
    histogram("vllm:request_generation_tokens", "Tokens of answers.", h.request_generation_tokens);
    histogram("vllm:request_max_num_generation_tokens", "Tokens of the longest answer of a request.",
              h.request_max_num_generation_tokens);
    histogram("vllm:request_params_n", "The parameter n.", h.request_params_n);
    histogram("vllm:request_params_max_tokens", "The parameter max_tokens.", h.request_params_max_tokens);
    histogram("vllm:request_num_preemptions", "Preemptions per request.", h.request_num_preemptions);
    histogram("vllm:request_prefill_kv_computed_tokens",
              "Prompt tokens that were computed, not taken from the prefix cache.",
              h.request_prefill_kv_computed_tokens);
    histogram("vllm:iteration_tokens_total", "Rows per step.", h.iteration_tokens);
    const BlockTimes& b = s.block_times;
    histogram("vllm:kv_block_lifetime_seconds", "Seconds from the computation of a cached block to its eviction.",
              b.lifetime);
    histogram("vllm:kv_block_idle_before_evict_seconds", "Seconds from the last use of a cached block to its eviction.",
              b.idle_before_evict);
    histogram("vllm:kv_block_reuse_gap_seconds", "Seconds between two uses of a cached block.", b.reuse_gap);
    counter("nibble:spec_decode_failed_steps_total",
            "Steps after which the draft model produced no tokens because of an error.", s.failed_drafts);
    counter("nibble:engine_steps_total", "Steps of the engine.", s.steps);
    counter("nibble:engine_step_rows_total", "Rows summed over all steps.", s.step_rows);
    counter("nibble:prefix_cache_evictions_total", "Pages evicted from the prefix cache.", s.prefix_evictions);
    gauge("nibble:cached_pages", "Idle pages in the prefix cache.", double(s.cached_pages));
}

}  // namespace

std::string metrics_text(const ServerCore& core, const ServedModel* model) {
    MetricsPage page(model ? fmt::format("model_name=\"{}\",engine=\"0\"", label_text(model->names[0]))
                           : std::string());
    if (model) add_engine(page, *model);
    page.one("nibble:http_requests_total", "counter", "HTTP requests.", double(core.counts.http_requests));
    page.one("nibble:http_errors_total", "counter", "HTTP requests that got an error.",
             double(core.counts.http_errors));
    page.one("nibble:http_connections", "gauge", "Open connections.", double(core.http->connections()));
    return page.text();
}

}  // namespace nibble
