// Modules that a recipe's rules want quantized and that stay as they are, or for which the plan is refused. They are
// reported by kind: one line for the same module of all layers.
#pragma once

#include "base/error.h"
#include "checkpoint/modules.h"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace nibble {

class LeftAlone {
public:
    // A convolution, or a matrix that is not known as the weight of a linear: it stays in this dtype.
    void keep(const Module& module, DType dtype);
    // A matrix that cannot be quantized as the rule says.
    void refuse(const Module& module, std::string why, std::string rule);

    // A line for every kind of convolution, and one for all other matrices.
    std::vector<std::string> notes() const;
    // The error for everything that was refused, with the flags that leave all of it unquantized.
    Status refused() const;

private:
    struct Refused {
        std::string why, rule;
        int64_t count = 0;
    };
    std::map<std::string, int64_t> convolutions_, matrices_;  // kind of module -> how many
    std::set<DType> dtypes_;                                  // of the matrices
    std::map<std::string, Refused> refused_;
};

}  // namespace nibble
