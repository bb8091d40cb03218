// Second moments of linears' inputs over calibration's rows, all rows weighted equally. They are stored from the
// forward pass until the backward pass reaches their block: upper triangles in FP32, in memory up to a limit, the rest
// in an unlinked scratch file. Linears that read the same rows (q/k/v, gate/up) share one.
#pragma once

#include "base/scratch_memory.h"
#include "quant/gram.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace nibble {

class UniformMoments {
public:
    UniformMoments(int64_t memory, std::filesystem::path scratch) : memory_(memory), scratch_(std::move(scratch)) {}

    // Stores a finished `gram`. Errors: too little memory, no space in the scratch folder.
    Status put(const std::string& module, const Gram& gram, ThreadPool& pool);
    void share(const std::string& module, const std::string& owner) { owner_[module] = owner; }
    // Returns the number of summed rows; 0: nothing was stored for the module.
    int64_t tokens(const std::string& module) const;
    // Adds factor * the moments of `module` to gram.
    void add_to(Gram& gram, const std::string& module, double factor, ThreadPool& pool) const;
    // Write all moments to files in `folder`, and read those of the modules that `wanted` accepts.
    Status save(const std::filesystem::path& folder) const;
    Status load(const std::filesystem::path& folder, const std::function<bool(std::string_view module)>& wanted);
    void forget(const std::string& owner) { moments_.erase(owner); }

private:
    struct Moments {
        ScratchMemory upper;
        int64_t tokens;
    };
    const Moments* find(const std::string& module) const;

    int64_t memory_;
    std::filesystem::path scratch_;
    std::map<std::string, std::string, std::less<>> owner_;  // owner of the moments, for linears that share them
    std::map<std::string, Moments, std::less<>> moments_;
};

}  // namespace nibble
