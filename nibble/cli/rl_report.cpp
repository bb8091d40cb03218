#include "cli/rl_report.h"

#include "cli/train_report.h"

#include <fmt/format.h>

namespace nibble {

void print_rl_formats(const RlConfig& c, const TrainEngine& trainer) {
    print_train_table(trainer);
    const RlGeneration& g = c.generation;
    if (g.precision)
        fmt::print("  rollouts: {}{}{}{}, weights of their own\n", train_precision_name(*g.precision),
                   g.precision->power_of_two ? ", power_of_two" : "",
                   g.precision->first_bf16 ? fmt::format(", first_bf16 {}", g.precision->first_bf16) : "",
                   g.precision->last_bf16 ? fmt::format(", last_bf16 {}", g.precision->last_bf16) : "");
    const char* cache = g.cache.format == KvFormat::none  ? "BF16"
                        : g.cache.format == KvFormat::fp8 ? "FP8 E4M3, a scale of K and one of V in each layer"
                                                          : "FP8 E4M3, a power of two for each position and head";
    const char* sides = g.cache.format == KvFormat::none ? ""
                        : g.cache.mirrored               ? ", in updates too"
                                                         : ", in rollouts alone";
    fmt::print("  KV cache: {}{}; queries: {}\n", cache, sides,
               g.cache.queries ? "FP8 E4M3, a scale in each layer" : "BF16");
}

}  // namespace nibble
