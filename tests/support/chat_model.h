// Loads the model of tests/data/chat, for tests of code that runs a model.
#pragma once

#include "model/cpu/model.h"
#include "support/files.h"
#include "support/model_pool.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

namespace nibble::test {

struct ChatModel {
    ThreadPool pool;
    std::shared_ptr<const Checkpoint> checkpoint;
    std::optional<Model> model;
    std::optional<Tokenizer> tokenizer;

    explicit ChatModel(int threads = 2, const std::filesystem::path& path = test_data("chat"), std::string kernels = {})
        : pool(threads) {
        auto opened_checkpoint = Checkpoint::open(path);
        EXPECT_TRUE(opened_checkpoint.ok()) << opened_checkpoint.error().message();
        checkpoint = *std::move(opened_checkpoint);
        ModelOptions options;
        options.kernels = std::move(kernels);
        auto loaded = Model::load(checkpoint, options, pool);
        EXPECT_TRUE(loaded.ok()) << loaded.error().message();
        model.emplace(*std::move(loaded));
        auto opened = Tokenizer::from_folder(test_data("chat"));
        EXPECT_TRUE(opened.ok()) << opened.error().message();
        tokenizer.emplace(*std::move(opened));
    }

    std::vector<int32_t> encode(std::string_view text, bool special = true) const {
        const auto ids = tokenizer->encode(text, {.add_special = special});
        EXPECT_TRUE(ids.ok());
        return {ids->begin(), ids->end()};
    }

    // Returns log-probabilities [tokens, vocab], computed from the logits in double.
    std::vector<double> log_probs(std::span<const int32_t> tokens) const {
        const auto vocab = size_t(model->config().vocab);
        std::vector<float> logits(tokens.size() * vocab);
        const Status done = model->forward(Batch({{nullptr, tokens, 0}}), logits);
        EXPECT_TRUE(done.ok()) << done.error().message();
        std::vector<double> out;
        for (size_t row = 0; row < tokens.size(); ++row) {
            double z = 0;
            for (size_t i = 0; i < vocab; ++i) z += std::exp(double(logits[row * vocab + i]));
            for (size_t i = 0; i < vocab; ++i) out.push_back(double(logits[row * vocab + i]) - std::log(z));
        }
        return out;
    }
};

}  // namespace nibble::test
