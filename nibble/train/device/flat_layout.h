// Where every parameter lies in the flat arrays of a GPU trainer (masters, states, gradients, published copies): one
// offset for all of them, so that optimizer, norm and sums are one launch over everything.
//
//   matrices   what multiplies as one product (q, k, v; gate, up) lies adjacent: one matrix [rows of all, cols]
//   vectors    everything else; first what is read as BF16, then what stays FP32; of each norms before the rest.
//              Biases of what multiplies as one product lie adjacent as well
//
// Pieces begin at multiples of `flat_alignment` elements; what lies between them is zero and stays zero.
#pragma once

#include "model/cpu/model.h"
#include "model/parameters.h"

#include <string>
#include <vector>

namespace nibble {

inline constexpr int64_t flat_alignment = 64;

// A unit of linears, the embedding or the head.
struct FlatMatrix {
    std::string name;                    // of the first part
    int64_t at = 0, rows = 0, cols = 0;  // at -1: frozen
    int64_t bias = -1;                   // where its biases [rows] lie; -1: none
    int64_t elements() const { return rows * cols; }
};

// Linears that become one of them: of a mixture the same ones of all experts, one expert's after the other.
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
// In the order that the block's training twin (train_mixer.h) expects.
std::vector<FlatUnit> flat_units(const Block& block);

struct FlatLayout {
    int64_t elements = 0, matrix_elements = 0;  // both with gaps; vectors begin at matrix_elements
    int64_t rounded_vectors = 0;                // of the vectors' elements: read as BF16
    struct Range {
        int64_t at = 0, count = 0;
    };
    std::vector<Range> norms;                    // of the vectors
    std::vector<int64_t> at;                     // by parameter id
    std::vector<std::vector<FlatMatrix>> units;  // of every block, as flat_units() has them
    FlatMatrix embedding, head;                  // the same where they are tied
    bool tied = false;

    int64_t vector_elements() const { return elements - matrix_elements; }

    // Errors: a parameter that has no place (tensors that no mixer and no norm reads), with its name.
    static Result<FlatLayout> make(const Parameters& parameters, const ModelConfig& config, const ModelParts& parts);
    // Of adapters (train/lora.h) over a frozen model: the A of a unit's linears lie adjacent, one below the other, and
    // behind them the B.
    static Result<FlatLayout> make_adapters(const Parameters& adapters, const ModelConfig& config,
                                            const ModelParts& parts);
};

}  // namespace nibble
