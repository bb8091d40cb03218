#pragma once

#include "model/cpu/model.h"
#include "model/device/model.h"

#include <string>
#include <vector>

namespace nibble::bench {

struct Texts {
    std::vector<std::vector<int32_t>> ids;
    std::vector<float> gold;  // FP32 logits of all rows; read_texts leaves it empty where no file has them
};
Result<std::vector<float>> all_rows(const LanguageModel& model, const std::vector<std::vector<int32_t>>& texts);
// `model`: a folder, or empty for random tokens.
Result<Texts> read_texts(const std::string& model, const ModelConfig& config, int64_t tokens);

// Of a row: root mean square of the differences over that of the reference's logits about their mean. Medians over the
// rows; a row far out is one where a router or a code of an input fell the other way.
struct RowDistances {
    double median = 0;
    int64_t far = 0;  // rows beyond four medians of the CPU
};
struct Distance {
    RowDistances to_cpu, cpu_to_gold, device_to_gold;
    double kl = 0;
    int64_t rows = 0, same_top = 0;
    // The GPU is as near to FP32 arithmetic as the CPU's BF16 is.
    bool good() const;
};
Result<Distance> compare(const LanguageModel& cpu, const LanguageModel& device, const Texts& texts);

struct Difference {
    std::string what;
    int64_t rows = 0, of = 0, first = -1;
    double worst = 0;  // distance of a row that differs, as in RowDistances
    void add(const Difference& other);
};
// Whole text alone and again, all texts at once, in chunks, token by token, forks, in batches of 1 to 64; all of it
// `rounds` times: what depends on timing shows now and then.
Result<std::vector<Difference>> check_invariance(const LanguageModel& model, const Texts& texts, int rounds);

}  // namespace nibble::bench
