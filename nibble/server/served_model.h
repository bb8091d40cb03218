// The model that a server serves, with everything that answering needs.
#pragma once

#include "base/json.h"
#include "serve/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble {

struct ServedModel {
    std::vector<std::string> names;  // at least one; the first stands in answers
    std::string root;                // where it came from
    std::unique_ptr<Engine> engine;
    Tokenizer tokenizer;
    std::shared_ptr<const ChatTemplate> chat;  // null: the model has none
    Json variables = Json::object();           // of every rendering
    Request like;                              // sampling parameters and end tokens where a request says nothing
    int64_t created = 0;                       // seconds since 1970
    std::string license;                       // text; empty: none came with the model
    Json facts = Json::object();               // formats by layer, kernels, memory: what the server chose

    int64_t vocab() const { return engine->model().config().vocab; }
    int64_t context() const { return engine->capacity(); }
};

}  // namespace nibble
