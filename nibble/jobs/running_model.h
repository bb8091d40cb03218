// A model that answers requests of this process: what a server has, without HTTP. The engine has a thread of its own.
#pragma once

#include "base/thread_pool.h"
#include "nibble/serve.h"
#include "server/served_model.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class RunningModel {
public:
    // Uses the options for the model, as load_served() does. Errors: as serve().
    static Result<std::unique_ptr<RunningModel>> open(const ServeOptions& options, const JobHooks& hooks);
    // Cancels unfinished requests; their sinks are called.
    ~RunningModel();
    RunningModel(const RunningModel&) = delete;
    RunningModel& operator=(const RunningModel&) = delete;

    // The parameters of requests, from a JSON object with the names of vLLM's SamplingParams. Names that are not given
    // have the defaults of vLLM, except the seed, which is 0. Errors of kind usage name the field; unknown names are
    // errors.
    Result<Request> parameters(std::string_view json) const;
    // Text and tokens of a conversation, from a JSON object with the fields of a chat request: messages, tools,
    // chat_template, chat_template_kwargs, add_generation_prompt, continue_final_message. Errors of kind usage name the
    // place. Once *stop is true (it may be null), the work ends with an error of kind cancelled; so does encode().
    Result<ChatPrompt> chat_prompt(std::string_view json, const std::atomic<bool>* stop = nullptr) const;
    // Token ids of a text. `special`: after the tokens that begin a text.
    Result<std::vector<int32_t>> encode(std::string_view text, bool special,
                                        const std::atomic<bool>* stop = nullptr) const;
    std::string decode(std::span<const int32_t> ids, bool skip_special) const;

    Engine& engine() { return *served_->engine; }
    ServedWeights& weights() { return *served_->weights; }
    const ServedModel& served() const { return *served_; }

private:
    explicit RunningModel(int threads) : pool_(threads) {}
    ThreadPool pool_;                    // outlives the engine
    std::optional<ServedModel> served_;  // set by open()
};

}  // namespace nibble
