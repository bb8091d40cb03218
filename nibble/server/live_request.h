// A request that the engine answers, from the admission to the last byte. Events are taken on the engine's thread,
// which must not wait, and become JSON on the HTTP server's, or on a thread of their own where that may take long.
#pragma once

#include "server/exchange.h"

#include <optional>
#include <span>

namespace nibble {

// An AnswerEvent that owns what it says. `choice` counts through all prompts of the request.
struct HeardEvent {
    int32_t choice = 0;
    size_t part = 0;  // the number of the prompt
    std::string text;
    std::vector<GeneratedToken> tokens, prompt;
    FinishReason finish = FinishReason::none;
    std::string stop;
    int32_t stop_token = -1;
    std::string error;
    ErrorKind error_kind = ErrorKind::other;
    std::optional<RequestReport> total;  // with the last event of all choices
};

// Makes an answer of one API of what the engine says. One call at a time; on the HTTP server's thread, or another one
// where the answer is `heavy`.
class AnswerWriter {
public:
    virtual ~AnswerWriter() = default;
    // Of a stream: what comes before the first event.
    virtual void begin() {}
    virtual void event(const HeardEvent& e) = 0;
    // Behind the last event of all choices.
    virtual void finish(const RequestReport& total) = 0;
    // An answer that broke off. A stream says so in its last event; else the client gets this error.
    virtual void fail(const ApiError& error) = 0;
};

// Counts what the largest possible answer takes, in exchange.memory, before anything of it is made. False: it is too
// much, and the client was told.
bool count_answer(HttpExchange& exchange, const ServedModel& model, const Request& like,
                  std::span<const std::vector<int32_t>> prompts, const AnswerForms& form);

class LiveRequest : public std::enable_shared_from_this<LiveRequest> {
public:
    LiveRequest(ExchangePtr exchange, ModelPtr model, std::unique_ptr<AnswerWriter> writer);

    // Every prompt is a part; all share the parameters, and all or none are admitted. The client gets each refusal.
    void submit(Request like, std::vector<std::vector<int32_t>> prompts);
    // The same for the request's own prompt.
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
    size_t open_ = 0;  // parts
    bool admitted_ = false, pending_ = false, working_ = false, gone_ = false;
    bool lost_ = false;  // there was no memory for an event

    bool begun_ = false, over_ = false, cut_off_ = false;  // of work(); cut_off_: the token limit ended a choice
};

}  // namespace nibble
