// Creates a small Llama model in memory and batches for it.
#pragma once

#include "model/memory_checkpoint.h"
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

namespace nibble::test {

inline std::shared_ptr<Parameters> small_parameters(ThreadPool& pool, DType published,
                                                    const Json& config = small_llama()) {
    auto made = Parameters::copy(*small_checkpoint(config), published, pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *made;
}

// Two layers whose sizes are multiples of 16.
inline Json wide_llama() {
    Json config = small_llama();
    config["hidden_size"] = 64;
    config["intermediate_size"] = 96;
    config["num_hidden_layers"] = 2;
    return config;
}

inline std::unique_ptr<Trainer> small_trainer(ThreadPool& pool, TrainerOptions options,
                                              const Json& config = small_llama()) {
    const bool f32 = options.precision.recipe == TrainRecipe::fp32;
    auto made = Trainer::create(small_parameters(pool, f32 ? DType::f32 : DType::bf16, config), options, pool);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
}

// Creates rows of documents with random tokens; some labels are missing, and weights differ.
inline TrainBatch random_batch(int64_t rows, int64_t seq, int64_t vocab, uint32_t seed) {
    std::mt19937 random(seed);
    TrainBatch b{.rows = rows, .seq = seq};
    for (int64_t i = 0; i < rows * seq; ++i) {
        b.tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
        b.labels.push_back(random() % 5 == 0 ? -1 : static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
        b.weights.push_back(0.25f * static_cast<float>(random() % 8));
        if (i % seq == 0 || random() % 9 == 0) b.documents.push_back(i);
    }
    return b;
}

// Returns rows [begin, begin + count) of a batch.
inline TrainBatch rows_of(const TrainBatch& b, int64_t begin, int64_t count) {
    TrainBatch part{.rows = count, .seq = b.seq};
    const int64_t from = begin * b.seq, to = from + count * b.seq;
    for (int64_t i = from; i < to; ++i) {
        part.tokens.push_back(b.tokens[static_cast<size_t>(i)]);
        part.labels.push_back(b.labels[static_cast<size_t>(i)]);
        if (!b.weights.empty()) part.weights.push_back(b.weights[static_cast<size_t>(i)]);
    }
    for (const int64_t d : b.documents)
        if (d >= from && d < to) part.documents.push_back(d - from);
    return part;
}

inline std::vector<float> all_masters(const Parameters& parameters) {
    std::vector<float> all;
    for (size_t id = 0; id < parameters.count(); ++id) {
        const auto w = parameters.master(id);
        all.insert(all.end(), w.begin(), w.end());
    }
    return all;
}

}  // namespace nibble::test
