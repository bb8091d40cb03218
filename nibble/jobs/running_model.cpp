#include "jobs/running_model.h"

#include "chat/prompt_tokens.h"
#include "engine/answer_constraint.h"
#include "jobs/job.h"
#include "jobs/served.h"
#include "server/chat_turn.h"
#include "server/parameters.h"
#include "text/stoppable.h"

namespace nibble {
namespace {

Result<Json> body_of(std::string_view text) {
    NIBBLE_TRY(Json body, parse_json(text));
    if (!body.is_object()) return fail("is not a JSON object");
    return body;
}

}  // namespace

Result<std::unique_ptr<RunningModel>> RunningModel::open(const ServeOptions& options, const JobHooks& hooks) {
    return as_job([&]() -> Result<std::unique_ptr<RunningModel>> {
        std::unique_ptr<RunningModel> running(new RunningModel(options.engine.threads));
        NIBBLE_TRY(ServedModel served, load_served(options, running->pool_, hooks).as(ErrorKind::checkpoint));
        running->served_.emplace(std::move(served));
        running->served_->engine->start();
        return running;
    });
}

RunningModel::~RunningModel() {
    if (!served_) return;
    served_->weights.reset();
    served_->engine.reset();
}

Result<Request> RunningModel::parameters(std::string_view json) const {
    const auto read = [&]() -> Result<Request> {
        NIBBLE_TRY(const Json body, body_of(json));
        BodyFields fields(body);
        Request request = served_->like;
        request.sampling = {};
        request.max_tokens = 16;
        NIBBLE_CHECK(read_sampling(fields, *served_, request));
        if (!fields.has("seed")) request.sampling.seed = 0;
        GrammarTokensPtr grammar;
        NIBBLE_CHECK(read_answer_grammar(fields, served_->grammars.get(), grammar));
        if (grammar)
            request.constraint = token_constraint(AnswerConstraint({}, grammar, served_->grammars->vocabulary()));
        NIBBLE_CHECK(fields.read_in("logprobs", request.top_logprobs, 0, 1000));
        NIBBLE_CHECK(fields.read_in("max_tokens", request.max_tokens, int64_t{1}, int64_t{1} << 40));
        NIBBLE_CHECK(fields.read("sampled_logprobs", request.sampled_logprobs));
        if (request.min_tokens > request.max_tokens) return fields.bad("min_tokens", "is more than max_tokens");
        NIBBLE_CHECK(fields.all_read());
        NIBBLE_CHECK(check_parameters(request, served_->vocab()));
        return request;
    };
    return read().as(ErrorKind::usage);
}

Result<ChatPrompt> RunningModel::chat_prompt(std::string_view json, const std::atomic<bool>* stop) const {
    const auto read = [&]() -> Result<ChatPrompt> {
        NIBBLE_TRY(const Json body, body_of(json));
        BodyFields fields(body, {}, stop);
        NIBBLE_TRY(ChatTurn turn, read_chat_turn(fields, *served_, MeterLimits::unlimited));
        NIBBLE_CHECK(fields.all_read());
        return std::move(turn.prompt);
    };
    return read().as(ErrorKind::usage);
}

Result<std::vector<int32_t>> RunningModel::encode(std::string_view text, bool special,
                                                  const std::atomic<bool>* stop) const {
    NIBBLE_TRY(const auto ids,
               encode_stoppable(served_->tokenizer, text, {.add_special = special}, stop).as(ErrorKind::usage));
    return std::vector<int32_t>(ids.begin(), ids.end());
}

std::string RunningModel::decode(std::span<const int32_t> ids, bool skip_special) const {
    std::vector<TokenId> tokens;
    for (const int32_t id : ids)
        if (id >= 0) tokens.push_back(static_cast<TokenId>(id));
    return served_->tokenizer.decode(tokens, skip_special);
}

}  // namespace nibble
