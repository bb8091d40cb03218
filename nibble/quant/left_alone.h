// Modules that a recipe's rules match but that stay unquantized, or because of which the plan is rejected. Messages
// have one line for the same module of all layers.
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
    // Adds a convolution, or a matrix that is not known to be the weight of a linear: it stays in this dtype.
    void keep(const Module& module, DType dtype);
    // Adds a matrix that cannot be quantized as the rule requires.
    void refuse(const Module& module, std::string why, std::string rule);

    // Returns one line for every kind of convolution, and one for all other matrices.
    std::vector<std::string> notes() const;
    // Returns the error for everything that was rejected, with the flags that would leave all of it unquantized.
    Status refused() const;

private:
    struct Refused {
        std::string why, rule;
        int64_t count = 0;
    };
    std::map<std::string, int64_t> convolutions_, matrices_;  // by kind of module: number of modules
    std::set<DType> dtypes_;                                  // dtypes of the matrices
    std::map<std::string, Refused> refused_;
};

}  // namespace nibble
