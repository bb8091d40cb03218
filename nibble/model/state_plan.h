// The memory of sequences, computed from a model's configuration before anything is loaded.
#pragma once

#include "architecture/model_config.h"
#include "model/sequence.h"

#include <vector>

namespace nibble {

// How a model keeps the keys and values of latent attention (DeepSeek): those of its heads, as on CPUs, or the latents,
// which every rank keeps whole.
enum class LatentCache { heads, latents };

// Returns what every block keeps on the rank with the most of `ranks`: keys and values in BF16, states in FP32. The
// degree must be allowed (architecture/shards.h).
std::vector<StateLayout> planned_states(const ModelConfig& model, int ranks, LatentCache latent = LatentCache::heads);

// Sums over all blocks. Windows are not considered: a token is as large as if no window forgot it.
int64_t token_bytes(const std::vector<StateLayout>& states);
int64_t sequence_bytes(const std::vector<StateLayout>& states);

}  // namespace nibble
