// Second moments of the inputs of linears over calibration's rows, every row alike: they wait from the forward pass
// until the backward pass reaches their block. Upper triangles in FP32, in memory up to a limit, beyond it in an
// unlinked scratch file. Linears that read the same rows (q/k/v, gate/up) share one.
#pragma once

#include "base/scratch_memory.h"
#include "quant/gram.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace nibble {

class UniformMoments {
public:
    UniformMoments(int64_t memory, std::filesystem::path scratch) : memory_(memory), scratch_(std::move(scratch)) {}

    // `gram`: finished. Errors: no memory, no room in the scratch folder.
    Status put(const std::string& module, const Gram& gram, ThreadPool& pool);
    void share(const std::string& module, const std::string& owner) { owner_[module] = owner; }
    // Rows that were summed; 0 for one that was never put.
    int64_t tokens(const std::string& module) const;
    // gram += factor * the moments of `module`.
    void add_to(Gram& gram, const std::string& module, double factor, ThreadPool& pool) const;
    void forget(const std::string& owner) { moments_.erase(owner); }

private:
    struct Moments {
        ScratchMemory upper;
        int64_t tokens;
    };
    const Moments* find(const std::string& module) const;

    int64_t memory_;
    std::filesystem::path scratch_;
    std::map<std::string, std::string, std::less<>> owner_;  // of linears that share
    std::map<std::string, Moments, std::less<>> moments_;
};

}  // namespace nibble
