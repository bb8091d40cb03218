// The C interface of nibble/c.h over job_table.h and running_model.h.
#include "base/float_control.h"
#include "jobs/job.h"
#include "jobs/job_table.h"
#include "jobs/running_model.h"
#include "nibble/c.h"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>

struct nibble_model {
    std::unique_ptr<nibble::RunningModel> running;
};

namespace nibble {
namespace {

thread_local std::string last_c_error;

nibble_status status_of(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::other:
            return NIBBLE_ERROR_OTHER;
        case ErrorKind::usage:
            return NIBBLE_ERROR_USAGE;
        case ErrorKind::shape:
            return NIBBLE_ERROR_SHAPE;
        case ErrorKind::recipe:
            return NIBBLE_ERROR_RECIPE;
        case ErrorKind::checkpoint:
            return NIBBLE_ERROR_CHECKPOINT;
        case ErrorKind::file:
            return NIBBLE_ERROR_FILE;
        case ErrorKind::device:
            return NIBBLE_ERROR_DEVICE;
        case ErrorKind::memory:
            return NIBBLE_ERROR_MEMORY;
        case ErrorKind::cancelled:
            return NIBBLE_ERROR_CANCELLED;
    }
    return NIBBLE_ERROR_OTHER;
}

// Runs the body of a function of the interface and keeps its error for nibble_error().
template <class Body>
nibble_status call_for_c(const Body& body) noexcept {
    try {
        const FloatControlScope control;
        const Status done = as_job(body);
        if (done.ok()) return NIBBLE_OK;
        last_c_error = done.error().message();
        return status_of(done.error().kind());
    } catch (...) {  // no memory for the message
        return NIBBLE_ERROR_MEMORY;
    }
}

// Copies a text for nibble_free().
Status give_text(const std::string& text, char** out) {
    if (!out) return Ok{};
    *out = static_cast<char*>(std::malloc(text.size() + 1));
    if (!*out) return fail(ErrorKind::memory, "no memory for a text of {} bytes", text.size());
    std::memcpy(*out, text.c_str(), text.size() + 1);
    return Ok{};
}

std::string plain_json(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Hooks of a job that call those of the C interface.
class CHooks {
public:
    explicit CHooks(const nibble_hooks* hooks) {
        job_.stop_requested = &stop_;
        if (!hooks) return;
        if (hooks->progress)
            job_.progress = [this, h = *hooks](const Progress& p) {
                if (h.progress(h.user, std::string(p.phase).c_str(), p.done, p.total) != 0) stop_ = true;
            };
        if (hooks->warn) job_.warn = [h = *hooks](std::string_view line) { h.warn(h.user, std::string(line).c_str()); };
        if (hooks->note) job_.note = [h = *hooks](std::string_view line) { h.note(h.user, std::string(line).c_str()); };
    }
    CHooks(const CHooks&) = delete;
    CHooks& operator=(const CHooks&) = delete;
    const JobHooks& job() const { return job_; }

private:
    std::atomic<bool> stop_{false};
    JobHooks job_;
};

Status need_text(const char* text, std::string_view name) {
    return text ? Status(Ok{}) : fail(ErrorKind::usage, "{} is null", name);
}

Result<Json> json_of(const char* text, std::string_view name) {
    NIBBLE_CHECK(need_text(text, name));
    return parse_json(text).within(std::string(name)).as(ErrorKind::usage);
}

// The events of one answer, from the engine's thread to the caller's.
struct AnswerQueue {
    std::mutex mutex;
    std::condition_variable arrived;
    std::string text;  // not yet taken by the caller
    std::vector<GeneratedToken> tokens;
    FinishReason finish = FinishReason::none;
    std::string error;
    ErrorKind error_kind = ErrorKind::other;
    RequestReport report;
    bool complete = false;

    void hear(const AnswerEvent& e) {
        const std::lock_guard lock(mutex);
        text += e.text;
        tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
        if (e.finish != FinishReason::none) {
            finish = e.finish;
            error = e.error;
            error_kind = e.error_kind;
        }
        if (e.report) {
            report = *e.report;
            complete = true;
        }
        arrived.notify_all();
    }
};

Status answer_of(RunningModel& model, std::vector<int32_t> prompt, const char* parameters, nibble_on_text on_text,
                 void* user, char** answer) {
    NIBBLE_TRY(Request request, model.parameters(parameters ? parameters : "{}"));
    if (request.choices != 1) return fail(ErrorKind::usage, "'n': {}, but the C interface gives one", request.choices);
    request.prompt = std::move(prompt);
    const auto queue = std::make_shared<AnswerQueue>();
    const Admission admitted =
        model.engine().submit(std::move(request), [queue](const AnswerEvent& e) { queue->hear(e); });
    if (!admitted.accepted()) return fail(ErrorKind::usage, "{}", admitted.message);
    std::string whole;
    for (bool complete = false; !complete;) {
        std::string piece;
        {
            std::unique_lock lock(queue->mutex);
            queue->arrived.wait(lock, [&] { return !queue->text.empty() || queue->complete; });
            piece = std::exchange(queue->text, {});
            complete = queue->complete;
        }
        whole += piece;
        if (on_text && !piece.empty() && on_text(user, piece.c_str()) != 0) {
            model.engine().cancel(admitted.handle);
            on_text = nullptr;
        }
    }
    if (queue->finish == FinishReason::error) return fail(queue->error_kind, "{}", queue->error);
    Json ids = Json::array(), logprobs = Json::array();
    for (const GeneratedToken& token : queue->tokens) {
        ids.push_back(token.id);
        logprobs.push_back(token.logprob);
    }
    return give_text(plain_json({{"text", std::move(whole)},
                                 {"token_ids", std::move(ids)},
                                 {"logprobs", std::move(logprobs)},
                                 {"finish_reason", finish_name(queue->finish)},
                                 {"prompt_tokens", queue->report.prompt_tokens}}),
                     answer);
}

Status run_for_c(const char* job, const char* options, const nibble_hooks* hooks, char** report) {
    if (report) *report = nullptr;
    NIBBLE_CHECK(need_text(job, "job"));
    NIBBLE_TRY(const Json read, json_of(options, "options"));
    const CHooks own(hooks);
    NIBBLE_TRY(const Json made, run_named_job(job, read, {.job = own.job()}));
    return give_text(plain_json(made), report);
}

Status open_for_c(const char* options, const nibble_hooks* hooks, nibble_model** model) {
    if (!model) return fail(ErrorKind::usage, "model is null");
    *model = nullptr;
    NIBBLE_TRY(const Json read, json_of(options, "options"));
    NIBBLE_TRY(const ServeOptions settings, serve_options_of(read, "nibble_model_open"));
    const CHooks own(hooks);
    NIBBLE_TRY(auto running, RunningModel::open(settings, own.job()));
    *model = new nibble_model{std::move(running)};
    return Ok{};
}

Result<std::vector<int32_t>> prompt_for_c(const nibble_model& model, const char* text, bool chat) {
    if (!chat) {
        NIBBLE_CHECK(need_text(text, "prompt"));
        return model.running->encode(text, true);
    }
    NIBBLE_TRY(Json read, json_of(text, "messages"));
    NIBBLE_TRY(ChatPrompt prompt, model.running->chat_prompt(plain_json({{"messages", std::move(read)}})));
    return std::move(prompt.tokens);
}

Status answer_for_c(nibble_model* model, const char* text, bool chat, const char* parameters, nibble_on_text on_text,
                    void* user, char** answer) {
    if (answer) *answer = nullptr;
    if (!model) return fail(ErrorKind::usage, "model is null");
    NIBBLE_TRY(auto ids, prompt_for_c(*model, text, chat));
    return answer_of(*model->running, std::move(ids), parameters, on_text, user, answer);
}

}  // namespace
}  // namespace nibble

const char* nibble_error(void) { return nibble::last_c_error.c_str(); }
const char* nibble_version(void) { return NIBBLE_VERSION; }
void nibble_free(char* text) { std::free(text); }
void nibble_model_free(nibble_model* model) { delete model; }

nibble_status nibble_run(const char* job, const char* options, const nibble_hooks* hooks, char** report) {
    return nibble::call_for_c([&] { return nibble::run_for_c(job, options, hooks, report); });
}

nibble_status nibble_model_open(const char* options, const nibble_hooks* hooks, nibble_model** model) {
    return nibble::call_for_c([&] { return nibble::open_for_c(options, hooks, model); });
}

nibble_status nibble_model_generate(nibble_model* model, const char* prompt, const char* parameters,
                                    nibble_on_text on_text, void* user, char** answer) {
    return nibble::call_for_c(
        [&] { return nibble::answer_for_c(model, prompt, false, parameters, on_text, user, answer); });
}

nibble_status nibble_model_chat(nibble_model* model, const char* messages, const char* parameters,
                                nibble_on_text on_text, void* user, char** answer) {
    return nibble::call_for_c(
        [&] { return nibble::answer_for_c(model, messages, true, parameters, on_text, user, answer); });
}
