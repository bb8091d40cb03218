// The model that a server serves, with everything that answering needs.
#pragma once

#include "base/json.h"
#include "chat/chat_format.h"
#include "serve/engine.h"
#include "server/answer_grammar.h"
#include "text/tokenizer.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble {

struct ServedModel {
    std::vector<std::string> names;  // at least one; the first stands in answers
    std::string root;                // the name of the folder or file that it came from
    std::unique_ptr<Engine> engine;
    Tokenizer tokenizer;
    std::shared_ptr<const ChatFormat> format;  // never null; without the model's chat template it knows a request's own
    bool control_in_data = false;              // the common behaviour: control tokens count in messages, too
    std::shared_ptr<GrammarCache> grammars;    // null: answers cannot be held to a grammar
    Request like;                              // sampling parameters and end tokens where a request says nothing
    std::vector<std::string> configured_sampling;  // parameters of `like` that generation_config.json gives
    Json tokenizer_info = Json::object();          // GET /tokenizer_info
    int64_t created = 0;                           // seconds since 1970
    std::string license;                           // text; empty: none came with the model
    Json facts = Json::object();                   // formats by layer, kernels, memory: what the server chose

    // Makes `grammars`. Error: the tokenizer's, of which the model then has none.
    Status prepare_grammars() {
        NIBBLE_TRY(auto vocabulary, GrammarVocabulary::of(tokenizer, like.eos, static_cast<size_t>(vocab())));
        grammars = std::make_shared<GrammarCache>(std::move(vocabulary));
        return Ok{};
    }
    int64_t vocab() const { return engine->model().config().vocab; }
    int64_t context() const { return engine->capacity(); }
};

}  // namespace nibble
