// Many requests at once, for callers that want whole answers: evaluation, commands, rollouts.
#pragma once

#include "serve/engine.h"

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace nibble {

struct WholeAnswer {
    std::vector<GeneratedToken> tokens;  // an end token included
    std::vector<GeneratedToken> prompt;  // where Request::prompt_logprobs asks for them
    std::string text;                    // without end token and stop string
    FinishReason finish = FinishReason::none;
    std::string error;
};

struct AnswerHooks {
    std::function<void(size_t answer, std::string_view text)> on_text;  // may be empty
    std::function<void(size_t answer)> on_finish;                       // may be empty
    const std::atomic<bool>* stop = nullptr;                            // cancels what is unfinished
};

// Answers of all choices of all requests, in their order; choice c of request r is number c + the choices before it.
// The engine has no thread of its own. `answers` is filled while it runs. Error: a request that the engine refuses,
// with its number; or an answer that ended with an error.
Status answer_all(Engine& engine, std::vector<Request> requests, const AnswerHooks& hooks,
                  std::vector<WholeAnswer>& answers);

}  // namespace nibble
