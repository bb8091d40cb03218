#pragma once

#include "model/device_model.h"
#include "model/model.h"

#include <string>
#include <vector>

namespace nibble::bench {

struct Texts {
    std::vector<std::vector<int32_t>> ids;
    std::vector<float> gold;  // FP32 logits of all rows; may be empty
};
Result<Texts> read_texts(const std::string& model, const ModelConfig& config, int64_t tokens);

// Root mean square of differences over that of the reference's logits about their row's mean.
struct Distance {
    double to_cpu = 0, cpu_to_gold = -1, device_to_gold = -1, kl = 0;
    int64_t rows = 0, same_top = 0;
    int64_t wrong_top = 0;  // another likeliest token, whose CPU logit is further off than BF16 explains
    bool good() const;
};
Result<Distance> compare(const LanguageModel& cpu, const LanguageModel& device, const Texts& texts);

struct Difference {
    std::string what;
    int64_t rows = 0, of = 0, first = -1;
};
// Whole text alone, all texts at once, in chunks, token by token, forks, in batches of 2 to 16.
Result<std::vector<Difference>> check_invariance(const LanguageModel& model, const Texts& texts);

}  // namespace nibble::bench
