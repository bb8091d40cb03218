#pragma once

#include "model/cpu/model.h"
#include "model/device/model.h"

#include <string>
#include <vector>

namespace nibble::bench {

struct Texts {
    std::vector<std::vector<int32_t>> ids;
    std::vector<float> gold;  // FP32 logits of all rows; read_texts() leaves it empty if no file has them
};
Result<std::vector<float>> all_rows(const LanguageModel& model, const std::vector<std::vector<int32_t>>& texts);
// `model`: a folder, or empty for random tokens.
Result<Texts> read_texts(const std::string& model, const ModelConfig& config, int64_t tokens);

// Distance of a row: root mean square of the differences, divided by that of the reference's logits about their mean.
// Reports the median over rows. In an outlier row a router's choice or an input's code rounded the other way.
struct RowDistances {
    double median = 0;
    int64_t far = 0;  // rows beyond four medians of the CPU
};
struct Distance {
    RowDistances to_cpu, cpu_to_gold, device_to_gold;
    double kl = 0;
    int64_t rows = 0, same_top = 0;
    // Returns true if the GPU is as close to FP32 arithmetic as the CPU's BF16.
    bool good() const;
};
Result<Distance> compare(const LanguageModel& cpu, const LanguageModel& device, const Texts& texts);

struct Difference {
    std::string what;
    int64_t rows = 0, of = 0, first = -1;
    double worst = 0;  // distance of a differing row, as in RowDistances
    void add(const Difference& other);
};
// Computes the whole text alone and again, all texts at once, in chunks, token by token, forks, and batches of 1 to 64;
// all of this `rounds` times, because timing-dependent errors are rare.
Result<std::vector<Difference>> check_invariance(const LanguageModel& model, const Texts& texts, int rounds);

}  // namespace nibble::bench
