// Checkpoints for tests, and their logits in one call.
#pragma once

#include "io/safetensors.h"
#include "model/model.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace nibble::test {

inline std::shared_ptr<const Checkpoint> open_checkpoint(const std::filesystem::path& path) {
    auto checkpoint = Checkpoint::open(path);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

// Logits of every row of whole texts, one segment each.
inline std::vector<float> all_logits(const Model& model, const std::vector<std::vector<int32_t>>& texts) {
    std::vector<Segment> segments;
    for (const auto& text : texts) segments.push_back({nullptr, text, 0});
    const Batch batch(segments);
    std::vector<float> logits(static_cast<size_t>(batch.wanted() * model.config().vocab));
    const Status status = model.forward(batch, logits);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message());
    return logits;
}

}  // namespace nibble::test
