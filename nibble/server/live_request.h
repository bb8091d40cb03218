// A request in the engine, from its submission to the last byte of the answer. Events arrive on the engine's thread,
// which must not block. They become JSON on the HTTP server's thread, or on another thread if that may take long.
#pragma once

#include "server/exchange.h"

#include <optional>
#include <span>

namespace nibble {

// An AnswerEvent that owns its contents. `choice` counts over all prompts of the request.
struct HeardEvent {
    int32_t choice = 0;
    size_t part = 0;  // index of the prompt
    std::string text;
    std::vector<GeneratedToken> tokens, prompt;
    FinishReason finish = FinishReason::none;
    std::string stop;
    int32_t stop_token = -1;
    std::string error;
    ErrorKind error_kind = ErrorKind::other;
    std::optional<RequestReport> total;  // set in the last event of all choices
};

// Converts the engine's events to an answer of one API. One call at a time, on the HTTP server's thread, or on another
// one if the answer is `heavy`.
class AnswerWriter {
public:
    virtual ~AnswerWriter() = default;
    // For streams: writes the beginning of the answer.
    virtual void begin() {}
    virtual void event(const HeardEvent& e) = 0;
    // Called after the last event of all choices.
    virtual void finish(const RequestReport& total) = 0;
    // Ends an answer with an error: in a stream as its last event, otherwise as the response.
    virtual void fail(const ApiError& error) = 0;
};

// Reserves memory for the largest possible answer in exchange.memory. Returns false after sending an error to the
// client, if it is too large.
bool count_answer(HttpExchange& exchange, const ServedModel& model, const Request& like,
                  std::span<const std::vector<int32_t>> prompts, const AnswerForms& form);

class LiveRequest : public std::enable_shared_from_this<LiveRequest> {
public:
    LiveRequest(ExchangePtr exchange, ModelPtr model, std::unique_ptr<AnswerWriter> writer);

    // Submits all prompts with the same parameters; either all are accepted or none. Sends the error to the client
    // otherwise.
    void submit(Request like, std::vector<std::vector<int32_t>> prompts);
    // Submits the request's own prompt.
    void submit(Request request);

private:
    void hear(size_t part, int32_t first_choice, const AnswerEvent& e);
    void schedule();
    void post();
    void work();
    void deal();
    void run_out();
    void cancel();

    ExchangePtr exchange_;
    ModelPtr model_;
    std::unique_ptr<AnswerWriter> writer_;

    std::mutex mutex_;
    std::vector<uint64_t> handles_;
    std::vector<HeardEvent> inbox_;
    RequestReport total_;
    size_t open_ = 0;  // prompts that are not finished
    bool admitted_ = false, pending_ = false, working_ = false, gone_ = false;
    bool lost_ = false;  // an event was lost because memory was short

    bool begun_ = false, over_ = false, cut_off_ = false;  // used by work(); cut_off_: the token limit ended a choice
};

}  // namespace nibble
