// The parts of a tokenizer, built by tokenizer_from_json.cpp or tokenizer_from_sentencepiece.cpp.
#pragma once

#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/vocabulary.h"

#include <mutex>

namespace nibble {

struct TokenizerData {
    Vocabulary vocabulary;
    std::vector<bool> special;  // by id
    AddedTokenFinder raw_added, normalized_added;
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    std::unique_ptr<TokenModel> model;
    PostProcessor post_processor;
    Decoder decoder;
    int64_t most_bytes_per_token = 0;  // token_bound.h

    // Returns scratch of the model, including its cache, for one encode(). give_back() keeps it for reuse.
    std::unique_ptr<ModelScratch> borrow_scratch() const {
        const std::lock_guard lock(mutex_);
        if (idle_.empty()) return model->make_scratch();
        auto out = std::move(idle_.back());
        idle_.pop_back();
        return out;
    }
    void give_back(std::unique_ptr<ModelScratch> scratch) const {
        const std::lock_guard lock(mutex_);
        if (idle_.size() < 64) idle_.push_back(std::move(scratch));
    }

private:
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<ModelScratch>> idle_;
};

}  // namespace nibble
