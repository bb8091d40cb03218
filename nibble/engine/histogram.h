// Histograms as in Prometheus, and those that an engine keeps. Names and bounds are vLLM's
// (vllm/v1/metrics/loggers.py), so that its dashboards work.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace nibble {

class MetricHistogram {
public:
    static constexpr size_t most_bounds = 24;
    // `bounds` must be ascending and outlive the histogram; those after the first most_bounds are ignored.
    explicit MetricHistogram(std::span<const double> bounds)
        : bounds_(bounds.first(std::min(bounds.size(), most_bounds))) {}

    void add(double value) {
        size_t i = 0;
        while (i < bounds_.size() && value > bounds_[i]) ++i;
        ++counts_[i];
        sum_ += value;
    }
    std::span<const double> bounds() const { return bounds_; }
    // Returns the number of values up to bounds()[i]; for i = bounds().size(), of all values.
    int64_t through(size_t i) const {
        int64_t n = 0;
        for (size_t k = 0; k <= i; ++k) n += counts_[k];
        return n;
    }
    int64_t count() const { return through(bounds_.size()); }
    double sum() const { return sum_; }

private:
    std::span<const double> bounds_;
    std::array<int64_t, most_bounds + 1> counts_{};
    double sum_ = 0;
};

namespace histogram_bounds {
inline constexpr double first_token[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                         1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
inline constexpr double token[] = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
inline constexpr double request[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
inline constexpr double tokens[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                    2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
inline constexpr double step[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
inline constexpr double choices[] = {1, 2, 5, 10, 20};
inline constexpr double preemptions[] = {1, 2, 3, 4, 5, 10, 20};
inline constexpr double residency[] = {.001, .002, .005, .01, .02, .05, .1,  .2,  .5,   1,   2,
                                       5,    10,   20,   30,  60,  120, 300, 600, 1200, 1800};
}  // namespace histogram_bounds

// Times in seconds in the life of a prefix cache block of 64 tokens.
struct BlockTimes {
    MetricHistogram lifetime{histogram_bounds::residency};           // from computation to eviction
    MetricHistogram idle_before_evict{histogram_bounds::residency};  // from the last use to eviction
    MetricHistogram reuse_gap{histogram_bounds::residency};          // between two uses
};

// Histograms in seconds or tokens. Each is exported as vllm:<name>, with the suffix _seconds for times.
struct EngineHistograms {
    MetricHistogram time_to_first_token{histogram_bounds::first_token};  // from submit() to the first token, per
                                                                         // request
    MetricHistogram inter_token_latency{histogram_bounds::token};  // between two steps that add tokens to a choice
    MetricHistogram request_time_per_output_token{histogram_bounds::token};  // after the first token, per finished
                                                                             // request
    MetricHistogram e2e_request_latency{histogram_bounds::request};   // from submit() to the end, per finished request
    MetricHistogram request_queue_time{histogram_bounds::request};    // from submit() to the first step
    MetricHistogram request_prefill_time{histogram_bounds::request};  // from the first step to the first token
    MetricHistogram request_decode_time{histogram_bounds::request};   // from the first token to the end
    MetricHistogram request_inference_time{histogram_bounds::request};  // from the first step to the end
    MetricHistogram request_prompt_tokens{histogram_bounds::tokens};
    MetricHistogram request_generation_tokens{histogram_bounds::tokens};          // tokens of all choices of a request
    MetricHistogram request_max_num_generation_tokens{histogram_bounds::tokens};  // tokens of the longest choice
    MetricHistogram request_params_max_tokens{histogram_bounds::tokens};
    MetricHistogram request_params_n{histogram_bounds::choices};
    MetricHistogram request_num_preemptions{histogram_bounds::preemptions};
    // prompt tokens that were not in the cache
    MetricHistogram request_prefill_kv_computed_tokens{histogram_bounds::tokens};
    MetricHistogram iteration_tokens{histogram_bounds::step};  // rows per step
};

}  // namespace nibble
