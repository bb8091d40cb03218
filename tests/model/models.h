// Checkpoints for tests, and their logits in one call.
#pragma once

#include "io/safetensors.h"
#include "model/cpu/model.h"
#include "support/files.h"
#include "support/model_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace nibble::test {

inline std::shared_ptr<const Checkpoint> open_checkpoint(const std::filesystem::path& path) {
    auto checkpoint = Checkpoint::open(path);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

// Returns the rows of `input_ids` in an expect.safetensors.
inline std::vector<std::vector<int32_t>> golden_texts(const std::filesystem::path& path) {
    std::vector<std::vector<int32_t>> texts;
    const auto file = SafetensorsFile::open(path);
    EXPECT_TRUE(file.ok()) << file.error().message();
    const TensorRecord* ids = file.ok() ? file->find("input_ids") : nullptr;
    EXPECT_TRUE(ids) << path;
    for (int64_t b = 0; ids && b < ids->shape[0]; ++b) {
        auto& text = texts.emplace_back();
        for (int64_t t = 0; t < ids->shape[1]; ++t) {
            int64_t id;
            std::memcpy(&id, ids->data.data() + 8 * (b * ids->shape[1] + t), 8);
            text.push_back(static_cast<int32_t>(id));
        }
    }
    return texts;
}

// Returns the logits of every row of whole texts, one segment each.
inline std::vector<float> all_logits(const LanguageModel& model, const std::vector<std::vector<int32_t>>& texts) {
    std::vector<Segment> segments;
    for (const auto& text : texts) segments.push_back({nullptr, text, 0});
    const Batch batch(segments);
    std::vector<float> logits(static_cast<size_t>(batch.wanted() * model.config().vocab));
    const Status status = model.forward(batch, logits);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message());
    return logits;
}

}  // namespace nibble::test
