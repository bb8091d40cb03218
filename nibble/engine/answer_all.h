// Runs many requests at once and collects whole answers; for evaluation, commands and rollouts.
#pragma once

#include "engine/engine.h"

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace nibble {

struct WholeAnswer {
    std::vector<GeneratedToken> tokens;  // including an end token
    std::vector<GeneratedToken> prompt;  // set if Request::prompt_logprobs requests it
    std::string text;                    // without the end token and the stop string
    FinishReason finish = FinishReason::none;
    std::string error;
};

struct AnswerHooks {
    std::function<void(size_t answer, std::string_view text)> on_text;  // may be empty
    std::function<void(size_t answer)> on_finish;                       // may be empty
    const std::atomic<bool>* stop = nullptr;  // if set, cancels unfinished answers; may be null
};

// Runs all requests. `answers` receives the answers of all choices of all requests in order: choice c of request r
// follows the choices of earlier requests. The engine must not have its own thread. Errors: a request that the engine
// rejects, with its number; an answer that ended with an error.
Status answer_all(Engine& engine, std::vector<Request> requests, const AnswerHooks& hooks,
                  std::vector<WholeAnswer>& answers);

}  // namespace nibble
