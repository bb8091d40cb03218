#pragma once

#include "model/language_model.h"

#include <gtest/gtest.h>

namespace nibble::test {

inline std::unique_ptr<KvPool> make_pool(const LanguageModel& model, int64_t tokens, int64_t sequences = 64) {
    auto pool = model.make_pool(tokens, sequences);
    EXPECT_TRUE(pool.ok()) << pool.error().message();
    return pool.ok() ? *std::move(pool) : nullptr;
}

}  // namespace nibble::test
