// The position of every parameter in the flat arrays of a GPU trainer (masters, states, gradients, published copies).
// All arrays have the same offsets, so that optimizer, norm and sums are one kernel launch each.
//
//   matrices   matrices that multiply as one product (q, k, v; gate, up) are contiguous: one matrix [all rows, cols]
//   vectors    everything else: first vectors read as BF16, then those that stay FP32; in each part norms come first.
//              Biases of linears that multiply as one product are contiguous as well
//
// Pieces begin at multiples of `flat_alignment` elements. The gaps between them are zero and stay zero.
#pragma once

#include "model/cpu/model.h"
#include "model/parameters.h"

#include <string>
#include <vector>

namespace nibble {

inline constexpr int64_t flat_alignment = 64;

// The matrix of a unit of linears, the embedding, or the head.
struct FlatMatrix {
    std::string name;                    // name of the first part
    int64_t at = 0, rows = 0, cols = 0;  // at -1: frozen
    int64_t bias = -1;                   // offset of its biases [rows]; -1: none
    int64_t elements() const { return rows * cols; }
};

// The linears of one matrix. In a mixture of experts: the same linears of all experts, expert by expert.
struct FlatUnit {
    std::vector<const Linear*> linears;
    bool of_mixture = false;
    int64_t experts = 1;

    std::vector<std::string> weights() const;
    std::vector<std::string> biases() const;
    std::span<const Linear* const> of_expert() const {
        return std::span(linears).first(linears.size() / static_cast<size_t>(experts));
    }
};
// Returns the units in the order that the block's training mixer (train_mixer.h) expects.
std::vector<FlatUnit> flat_units(const Block& block);

struct FlatLayout {
    int64_t elements = 0, matrix_elements = 0;  // both include gaps; vectors begin at matrix_elements
    int64_t rounded_vectors = 0;                // number of vector elements that are read as BF16
    struct Range {
        int64_t at = 0, count = 0;
    };
    std::vector<Range> norms;                    // ranges of the norms in the vectors
    std::vector<int64_t> at;                     // by parameter id
    std::vector<std::vector<FlatMatrix>> units;  // by block, in the order of flat_units()
    FlatMatrix embedding, head;                  // equal if the head is tied to the embedding
    bool tied = false;

    int64_t vector_elements() const { return elements - matrix_elements; }

    // Error: names a parameter without a place (a tensor that no mixer and no norm reads).
    static Result<FlatLayout> make(const Parameters& parameters, const ModelConfig& config, const ModelParts& parts);
    // Layout of adapters (train/lora.h) over a frozen model: the A matrices of a unit's linears are contiguous,
    // followed by the B matrices.
    static Result<FlatLayout> make_adapters(const Parameters& adapters, const ModelConfig& config,
                                            const ModelParts& parts);
};

}  // namespace nibble
