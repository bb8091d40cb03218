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
    gauge("vllm:num_requests_running", "Answers that run.", double(s.running));
    gauge("vllm:num_requests_waiting", "Answers that wait.", double(s.waiting));
    gauge("vllm:kv_cache_usage_perc", "Share of the cache's pages that running answers use; 1 is all.",
          s.cache_share());
    page.begin("vllm:cache_config_info", "gauge", "How the cache was set up.");
    page.line(
        "vllm:cache_config_info", 1,
        fmt::format("block_size=\"64\",num_gpu_blocks=\"{}\",enable_prefix_caching=\"{}\",max_num_seqs=\"{}\"", s.pages,
                    model.engine->limits().prefix_cache ? "True" : "False", model.engine->limits().sequences));
    counter("vllm:prefix_cache_queries_total", "Prompt tokens that were looked for in the prefix cache.",
            s.prefix_queries);
    counter("vllm:prefix_cache_hits_total", "Prompt tokens that were found in the prefix cache.", s.prefix_hits);
    counter("vllm:num_preemptions_total", "Answers that were pushed out and computed again.", s.preemptions);
    counter("vllm:prompt_tokens_total", "Tokens of prompts.", s.prompt_tokens);
    counter("vllm:generation_tokens_total", "Tokens of answers.", s.generated_tokens);
    page.begin("vllm:request_success_total", "counter", "Answers by how they ended.");
    page.line("vllm:request_success_total", double(s.finished_stop), "finished_reason=\"stop\"");
    page.line("vllm:request_success_total", double(s.finished_length), "finished_reason=\"length\"");
    page.line("vllm:request_success_total", double(s.finished_cancelled + s.finished_deadline),
              "finished_reason=\"abort\"");
    page.line("vllm:request_success_total", double(s.finished_error), "finished_reason=\"error\"");
    counter("vllm:spec_decode_num_drafts_total", "Drafts that were checked.", s.drafts);
    counter("vllm:spec_decode_num_draft_tokens_total", "Tokens of drafts.", s.draft_tokens);
    counter("vllm:spec_decode_num_accepted_tokens_total", "Tokens of drafts that were right.", s.accepted_tokens);
    page.begin("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", "The same by position in the draft.");
    for (size_t i = 0; i < s.accepted_at.size(); ++i)
        page.line("vllm:spec_decode_num_accepted_tokens_per_pos_total", double(s.accepted_at[i]),
                  fmt::format("position=\"{}\"", i));
    counter("nibble:engine_steps_total", "Steps of the engine.", s.steps);
    counter("nibble:engine_step_rows_total", "Rows of all steps.", s.step_rows);
    counter("nibble:prefix_cache_evictions_total", "Pages that left the prefix cache.", s.prefix_evictions);
    gauge("nibble:cached_pages", "Idle pages that the prefix cache holds.", double(s.cached_pages));
}

}  // namespace

std::string metrics_text(const ServerCore& core, const ServedModel* model) {
    MetricsPage page(model ? fmt::format("model_name=\"{}\",engine=\"0\"", label_text(model->names[0]))
                           : std::string());
    if (model) add_engine(page, *model);
    page.one("nibble:http_requests_total", "counter", "HTTP requests.", double(core.counts.http_requests));
    page.one("nibble:http_errors_total", "counter", "HTTP requests that were told an error.",
             double(core.counts.http_errors));
    page.one("nibble:http_connections", "gauge", "Open connections.", double(core.http->connections()));
    return page.text();
}

}  // namespace nibble
