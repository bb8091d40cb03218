// Stores the log-probabilities of a reference model over a text on disk. The reference runs once and does not need to
// be in memory together with the models compared with it.
//
// A row of the vocabulary takes two bytes per token (half of FP32; SmolLM2: 98 kB per row). It starts with its largest
// log-probability and a step, both FP32, followed by codes c: log p = largest - c * step, step = (largest - smallest) /
// 65535. The error of a log-probability is at most step / 2, 2.3e-4 for a row that spans 30 nats. The errors are nearly
// independent: the KL divergence of one token changes by about 1e-4, the mean of 10,000 tokens by less than 1e-6
// (measured in tests/eval/reference_file_test.cpp).
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
    std::vector<int64_t> rows;  // per window
    // Named facts (model, text, windows). A file is used only if all of them are equal.
    std::vector<std::pair<std::string, std::string>> identity;
};

class ReferenceFile {
public:
    // Opens or creates a file. Errors: it holds another reference (names the different facts), it is damaged, its file
    // system has no room for all windows.
    static Result<ReferenceFile> open(const std::filesystem::path& path, const ReferenceShape& shape);

    int64_t windows() const { return windows_; }  // number of complete windows, from the first
    bool complete() const { return windows_ == static_cast<int64_t>(shape_.rows.size()); }
    // Writes the rows of window number windows().
    Status append(std::span<const float> log_probs);
    // Reads the rows of a stored window. Error: a row that no model can produce (damage).
    Status read(int64_t window, std::span<float> log_probs) const;

private:
    ReferenceFile(FileDescriptor file, ReferenceShape shape) : file_(std::move(file)), shape_(std::move(shape)) {}
    int64_t offset(int64_t window) const;

    FileDescriptor file_;
    ReferenceShape shape_;
    int64_t header_ = 0, windows_ = 0;
};

// Encodes one row to `out` (8 + 2 * row.size() bytes) and decodes it. Values must be finite.
void encode_row(std::span<const float> row, std::span<std::byte> out);
void decode_row(std::span<const std::byte> in, std::span<float> row);

}  // namespace nibble
