// Log-probabilities of a reference model over a text, on disk, so that many checkpoints are compared with a reference
// that ran once and need not fit into memory beside them.
//
// Rows of the vocabulary, two bytes a token (half of FP32; SmolLM2: 98 kB a row): a row is its largest log-probability
// and a step, both FP32, then codes c of log p = largest - c * step, step = (largest - smallest) / 65535. The error of
// a log-probability is at most step / 2, 2.3e-4 for a row that spans 30 nats; these errors are nearly independent, so a
// KL divergence moves by about 1e-4 for one token and by less than 1e-6 for the mean of 10,000 (measured in
// tests/eval/reference_file_test.cpp).
#pragma once

#include "base/json.h"
#include "io/file_descriptor.h"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace nibble {

struct ReferenceShape {
    int64_t vocab = 0;
    std::vector<int64_t> rows;  // of every window
    // Named facts (model, text, windows): a file serves only what agrees in all.
    std::vector<std::pair<std::string, std::string>> identity;
};

class ReferenceFile {
public:
    // Opens or starts a file. Errors: it holds another reference (says which facts differ), it is damaged, its file
    // system has no room for all windows.
    static Result<ReferenceFile> open(const std::filesystem::path& path, const ReferenceShape& shape);

    int64_t windows() const { return windows_; }  // complete ones, from the first
    bool complete() const { return windows_ == static_cast<int64_t>(shape_.rows.size()); }
    // Rows of window `windows()`, which it then holds.
    Status append(std::span<const float> log_probs);
    // Rows of a window it holds. Error: a row that no model gives (damage).
    Status read(int64_t window, std::span<float> log_probs) const;

private:
    ReferenceFile(FileDescriptor file, ReferenceShape shape) : file_(std::move(file)), shape_(std::move(shape)) {}
    int64_t offset(int64_t window) const;

    FileDescriptor file_;
    ReferenceShape shape_;
    int64_t header_ = 0, windows_ = 0;
};

// One row to `out` (8 + 2 * row.size() bytes) and back. Values are finite.
void encode_row(std::span<const float> row, std::span<std::byte> out);
void decode_row(std::span<const std::byte> in, std::span<float> row);

}  // namespace nibble
