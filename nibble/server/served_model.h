// The served model with everything that answers need.
#pragma once

#include "base/json.h"
#include "chat/chat_format.h"
#include "engine/engine.h"
#include "server/answer_grammar.h"
#include "server/served_weights.h"
#include "text/tokenizer.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble {

struct ServedModel {
    std::vector<std::string> names;  // at least one; answers contain the first
    std::string root;                // name of the folder or file that was loaded
    std::unique_ptr<Engine> engine;
    Tokenizer tokenizer;
    std::shared_ptr<const ChatFormat> format;  // never null; without the model's chat template, only requests with
                                               // their own template are possible
    bool control_in_data = false;  // the usual behavior of servers: text in messages may contain control tokens
    std::shared_ptr<GrammarCache> grammars;        // null: answers cannot be constrained by a grammar
    Request like;                                  // default sampling parameters and end tokens
    std::vector<std::string> configured_sampling;  // parameters of `like` that come from generation_config.json
    Json tokenizer_info = Json::object();          // response of GET /tokenizer_info
    int64_t created = 0;                           // seconds since 1970
    std::string license;                           // text; empty: the model has none
    Json facts = Json::object();                   // formats by layer, kernels, memory: the server's settings
    std::unique_ptr<ServedWeights> weights;        // replaces the weights; null: they are fixed

    // Creates `grammars`. Error: the tokenizer cannot be used for grammars; the model then has none.
    Status prepare_grammars() {
        NIBBLE_TRY(auto vocabulary, GrammarVocabulary::of(tokenizer, like.eos, static_cast<size_t>(vocab())));
        grammars = std::make_shared<GrammarCache>(std::move(vocabulary));
        return Ok{};
    }
    int64_t vocab() const { return engine->model().config().vocab; }
    int64_t context() const { return engine->capacity(); }
};

}  // namespace nibble
