// Models that answer in this process, tokenizers, and servers.
#include "base/float_control.h"
#include "core/array.h"
#include "core/errors.h"
#include "core/gil.h"
#include "core/module.h"
#include "core/threads.h"
#include "core/wait.h"
#include "jobs/job_table.h"
#include "jobs/running_model.h"
#include "nibble/serve.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <map>

namespace nibble::python {
namespace {

ServeOptions options_of(const std::string& json, const char* caller) {
    return value_or_raise(serve_options_of(value_or_raise(parse_json(json)), caller));
}

// One choice of a request: all of it, or what is new.
struct Answer {
    uint64_t request = 0;
    int32_t choice = 0;
    std::string text;
    std::vector<GeneratedToken> tokens, prompt;
    FinishReason finish = FinishReason::none;
    std::string stop, error;
    ErrorKind error_kind = ErrorKind::other;
    int32_t stop_token = -1;
    bool last = false;  // true for the last part of the request
    RequestReport report;

    void add(const AnswerEvent& e) {
        choice = e.choice;
        text += e.text;
        tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
        prompt.insert(prompt.end(), std::make_move_iterator(e.prompt.begin()), std::make_move_iterator(e.prompt.end()));
        if (e.finish == FinishReason::none) return;
        finish = e.finish;
        stop = e.stop;
        stop_token = e.stop_token;
        error = e.error;
        error_kind = e.error_kind;
        if (!e.report) return;
        last = true;
        report = *e.report;
    }
};

// Queue in which sinks leave news, on the engine's thread. It outlives the engine.
struct Inbox {
    std::mutex mutex;
    std::condition_variable arrived;
    std::vector<Answer> news;
    int event = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

    ~Inbox() {
        if (event >= 0) ::close(event);
    }
    void put(Answer answer) {
        {
            const std::lock_guard lock(mutex);
            news.push_back(std::move(answer));
        }
        arrived.notify_all();
        const uint64_t one = 1;
        if (event >= 0) (void)!::write(event, &one, sizeof one);
    }
    std::vector<Answer> take() {
        uint64_t count = 0;
        if (event >= 0) (void)!::read(event, &count, sizeof count);
        const std::lock_guard lock(mutex);
        return std::exchange(news, {});
    }
};

// A request without a prompt.
struct Parameters {
    Request request;
};

class Model {
public:
    explicit Model(std::unique_ptr<RunningModel> running) : running_(std::move(running)) {}
    ~Model() {
        // The threads of a forked parent do not exist here; joining them would hang.
        if (was_forked()) (void)running_.release();
    }

    RunningModel& running() {
        if (was_forked())
            raise("ForkedError",
                  "the model was loaded before this process was forked; load it after the fork, or "
                  "start processes with the method \"spawn\"");
        if (!running_) raise("UsageError", "the model is closed");
        return *running_;
    }
    bool is_open() const { return running_ && !was_forked(); }
    void close() {
        std::unique_ptr<RunningModel> ending;
        if (!was_forked()) ending = std::move(running_);
        const WithoutGil released;
        ending.reset();
    }

    uint64_t submit(std::vector<int32_t> prompt, const Parameters& parameters, uint64_t sequence) {
        RunningModel& model = running();
        Request request = parameters.request;
        request.prompt = std::move(prompt);
        request.sequence = sequence;
        const uint64_t id = ++last_id_;
        const Admission admitted = [&] {
            const WithoutGil released;
            return model.engine().submit(std::move(request), [inbox = inbox_, id](const AnswerEvent& e) {
                Answer answer{.request = id};
                answer.add(e);
                inbox->put(std::move(answer));
            });
        }();
        refuse(admitted);
        handles_[id] = admitted.handle;
        return id;
    }

    void cancel(uint64_t id) {
        const auto found = handles_.find(id);
        if (found == handles_.end()) return;
        running().engine().cancel(found->second);
    }

    std::vector<std::shared_ptr<Answer>> poll(double seconds) {
        running();
        {
            const WithoutGil released;
            std::unique_lock lock(inbox_->mutex);
            if (inbox_->news.empty() && seconds > 0)
                inbox_->arrived.wait_for(lock, std::chrono::duration<double>(seconds));
        }
        std::vector<std::shared_ptr<Answer>> out;
        for (Answer& answer : inbox_->take()) {
            if (answer.last) handles_.erase(answer.request);
            out.push_back(std::make_shared<Answer>(std::move(answer)));
        }
        return out;
    }
    int descriptor() const { return inbox_->event; }

    // All choices of all requests, in their order.
    std::vector<std::vector<std::shared_ptr<Answer>>> run(std::vector<std::vector<int32_t>> prompts,
                                                          const std::vector<const Parameters*>& parameters,
                                                          uint64_t first_sequence, nb::object progress) {
        RunningModel& model = running();
        const auto gathered = std::make_shared<Gathered>();
        for (const Parameters* p : parameters) {
            auto& choices = gathered->answers.emplace_back();
            for (int32_t c = 0; c < p->request.choices; ++c) choices.push_back(std::make_shared<Answer>());
        }
        std::vector<uint64_t> handles;
        size_t next = 0, seen = 0;
        const auto submit_more = [&]() -> Admission {  // as many as the queue takes
            for (; next < prompts.size(); ++next) {
                Request request = parameters[next]->request;
                request.prompt = prompts[next];
                request.sequence = first_sequence + next;
                const Admission admitted = model.engine().submit(
                    std::move(request), [gathered, at = next](const AnswerEvent& e) { gathered->hear(at, e); });
                if (admitted.refusal == Admission::Refusal::full && !handles.empty()) return {};
                if (!admitted.accepted()) return admitted;
                handles.push_back(admitted.handle);
            }
            return {};
        };
        const auto stop = [&] {
            for (const uint64_t handle : handles) model.engine().cancel(handle);
            const WithoutGil released;
            gathered->wait_for(handles.size(), std::chrono::seconds(60));
        };
        try {
            while (seen < prompts.size()) {
                Admission admitted;
                {
                    const WithoutGil released;
                    admitted = submit_more();
                    if (admitted.accepted())
                        gathered->wait_for(next < prompts.size() ? seen + 1 : prompts.size(),
                                           std::chrono::milliseconds(20));
                }
                refuse(admitted);
                if (PyErr_CheckSignals() != 0) raise_set();
                const size_t finished = gathered->finished();
                if (finished != seen && !progress.is_none()) progress(finished, prompts.size());
                seen = finished;
            }
        } catch (...) {
            stop();
            throw;
        }
        return std::move(gathered->answers);
    }

private:
    struct Gathered {
        std::mutex mutex;
        std::condition_variable changed;
        std::vector<std::vector<std::shared_ptr<Answer>>> answers;
        size_t complete = 0;

        void hear(size_t request, const AnswerEvent& e) {
            const std::lock_guard lock(mutex);
            answers[request][static_cast<size_t>(e.choice)]->add(e);
            if (!e.report) return;
            ++complete;
            changed.notify_all();
        }
        size_t finished() {
            const std::lock_guard lock(mutex);
            return complete;
        }
        void wait_for(size_t count, std::chrono::milliseconds most) {
            std::unique_lock lock(mutex);
            changed.wait_for(lock, most, [&] { return complete >= count; });
        }
    };

    static void refuse(const Admission& admitted) {
        if (admitted.accepted()) return;
        if (admitted.refusal == Admission::Refusal::invalid) raise("UsageError", admitted.message);
        raise("EngineFull", admitted.message);
    }

    std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
    std::unique_ptr<RunningModel> running_;
    uint64_t last_id_ = 0;
    std::map<uint64_t, uint64_t> handles_;  // the engine's handles by request
};

// New values of a model's weights, before they are used.
struct NewTensors {
    std::shared_ptr<NewWeights> weights;
    int64_t count = 0;

    void set(const std::string& name, nb::handle array) {
        const Array a(array, "update_weights", name.c_str());
        std::vector<float> values(static_cast<size_t>(a.size()));
        if (a.ndim == 0) a.refuse_shape("a weight has at least one dimension");
        const Rows rows = rows_of(a);
        Status done = Ok{};
        {
            const WithoutGil released;
            read_array(rows.rows, 0, rows.rows.rows, values.data());
            done = weights->set(name, {a.shape, size_t(a.ndim)}, values);
        }
        if (!done.ok()) raise(done.error());
        ++count;
    }
};

Unfinished unfinished_of(std::string_view mode) {
    const auto read = parse_unfinished(mode);
    if (!read.ok()) raise(read.error());
    return *read;
}

// Runs a function of ServedWeights without the lock of the interpreter.
template <class Work>
void steer(Model& model, const Work& work) {
    RunningModel& running = model.running();
    Status done = Ok{};
    {
        const WithoutGil released;
        const FloatControlScope control;
        done = guarded([&] { return work(running.weights()); });
    }
    if (!done.ok()) raise(done.error());
}

// The token that tokenizer_config.json names: bos_token, eos_token. No value: there is none.
std::optional<int64_t> named_token(const ServedModel& served, const char* name) {
    const auto named = served.tokenizer_info.find(name);
    if (named == served.tokenizer_info.end()) return std::nullopt;
    const Json& text = named->is_object() ? named->value("content", Json()) : *named;
    if (!text.is_string()) return std::nullopt;
    const auto id = served.tokenizer.id_of(text.get_ref<const std::string&>());
    return id ? std::optional<int64_t>(*id) : std::nullopt;
}

class Server {
public:
    explicit Server(std::unique_ptr<RunningServer> server) : server_(std::move(server)) {}
    ~Server() {
        if (was_forked())
            (void)server_.release();
        else
            stop(0);
    }
    RunningServer& server() { return *server_; }
    void stop(double seconds) {
        const WithoutGil released;
        server_->stop(std::chrono::duration<double>(seconds));
    }

private:
    std::unique_ptr<RunningServer> server_;
};

nb::list pairs(const std::vector<TokenLogprob>& top) {
    nb::list out;
    for (const TokenLogprob& t : top) out.append(nb::make_tuple(t.id, t.logprob));
    return out;
}

// [(id, logprob, rank, [(id, logprob)])]
nb::list scored(const std::vector<GeneratedToken>& tokens) {
    nb::list out;
    for (const GeneratedToken& t : tokens) out.append(nb::make_tuple(t.id, t.logprob, t.rank, pairs(t.top)));
    return out;
}

std::string vocabulary_token(RunningModel& model, int32_t id) {
    if (id < 0) return {};
    const std::string bytes = model.served().tokenizer.token_bytes(static_cast<TokenId>(id));
    return bytes;
}

JobCallbacks plain_callbacks(nb::object line) {
    return {nb::none(), std::move(line), nb::none(), nb::none(), nb::none()};
}

// A long text is tokenized on a thread of its own, so that Ctrl-C stops it; a short one (some milliseconds) is not
// worth a thread.
std::vector<int32_t> tokens_of(const RunningModel& model, std::string_view text, bool special) {
    constexpr size_t short_text = size_t{1} << 16;
    if (text.size() <= short_text) return value_or_raise(model.encode(text, special));
    return run_watched(plain_callbacks(nb::none()), [&](const JobHooks& hooks, JobWatch&) {
        return model.encode(text, special, hooks.stop_requested);
    });
}

// Text and tokens of a conversation. A few lines of a template may be long work, so a text of any size has a thread.
nb::tuple chat_prompt_of(const RunningModel& model, std::string_view json) {
    const ChatPrompt prompt = run_watched(plain_callbacks(nb::none()), [&](const JobHooks& hooks, JobWatch&) {
        return model.chat_prompt(json, hooks.stop_requested);
    });
    return nb::make_tuple(nb::str(prompt.text.data(), prompt.text.size()), nb::cast(prompt.tokens));
}

}  // namespace

void bind_model(nb::module_& m) {
    nb::class_<Answer>(m, "Answer")
        .def_ro("request", &Answer::request)
        .def_ro("choice", &Answer::choice)
        .def_prop_ro("text",
                     [](const Answer& a) {
                         return nb::steal(PyUnicode_DecodeUTF8(a.text.data(), Py_ssize_t(a.text.size()), "replace"));
                     })
        .def_prop_ro("token_ids",
                     [](const Answer& a) {
                         nb::list ids;
                         for (const GeneratedToken& t : a.tokens) ids.append(t.id);
                         return ids;
                     })
        .def_prop_ro("cumulative_logprob",
                     [](const Answer& a) {
                         double sum = 0;
                         for (const GeneratedToken& t : a.tokens) sum += t.logprob;
                         return sum;
                     })
        .def_prop_ro("scores", [](const Answer& a) { return scored(a.tokens); })
        .def_prop_ro("prompt_scores", [](const Answer& a) { return scored(a.prompt); })
        .def_prop_ro("finish",
                     [](const Answer& a) {
                         return a.finish == FinishReason::none ? std::string() : std::string(finish_name(a.finish));
                     })
        .def_ro("stop", &Answer::stop)
        .def_ro("stop_token", &Answer::stop_token)
        .def_ro("error", &Answer::error)
        .def_ro("last", &Answer::last)
        .def_prop_ro("cached_tokens", [](const Answer& a) { return a.report.cached_tokens; })
        .def_prop_ro("seconds", [](const Answer& a) {
            return nb::make_tuple(a.report.queue_seconds, a.report.prompt_seconds, a.report.generate_seconds);
        });
    nb::class_<Parameters>(m, "Parameters").def_prop_ro("choices", [](const Parameters& p) {
        return p.request.choices;
    });
    nb::class_<Model>(m, "Model")
        .def("close", &Model::close)
        .def("is_open", &Model::is_open)
        .def("parameters",
             [](Model& model, std::string_view json) {
                 return Parameters{value_or_raise(model.running().parameters(json))};
             })
        .def("chat_prompt", [](Model& model, std::string_view json) { return chat_prompt_of(model.running(), json); })
        .def("encode", [](Model& model, std::string_view text,
                          bool special) { return tokens_of(model.running(), text, special); })
        .def("decode", [](Model& model, const std::vector<int32_t>& ids,
                          bool skip_special) { return model.running().decode(ids, skip_special); })
        .def("token_bytes",
             [](Model& model, int32_t id) {
                 const std::string bytes = vocabulary_token(model.running(), id);
                 return nb::bytes(bytes.data(), bytes.size());
             })
        .def("id_of",
             [](Model& model, std::string_view token) -> std::optional<int64_t> {
                 const auto id = model.running().served().tokenizer.id_of(token);
                 return id ? std::optional<int64_t>(*id) : std::nullopt;
             })
        .def("chat_template",
             [](Model& model) { return model.running().served().tokenizer_info.value("chat_template", std::string()); })
        .def("info",
             [](Model& model) {
                 const ServedModel& served = model.running().served();
                 nb::dict out;
                 out["name"] = served.names[0];
                 out["facts"] = served.facts.dump(-1, ' ', false, Json::error_handler_t::replace);
                 out["context"] = served.context();
                 out["vocabulary"] = served.vocab();
                 out["end_tokens"] = served.like.eos;
                 out["begin_token"] = named_token(served, "bos_token");
                 out["end_token"] = named_token(served, "eos_token");
                 const SamplingParams& s = served.like.sampling;
                 nb::dict sampling;
                 sampling["temperature"] = s.temperature;
                 sampling["top_p"] = s.top_p;
                 sampling["top_k"] = s.top_k;
                 sampling["min_p"] = s.min_p;
                 sampling["repetition_penalty"] = s.repetition_penalty;
                 out["sampling"] = sampling;
                 return out;
             })
        .def("stats",
             [](Model& model) {
                 const EngineStats s = model.running().engine().stats();
                 nb::dict out;
                 out["running"] = s.running;
                 out["waiting"] = s.waiting;
                 out["steps"] = s.steps;
                 out["prompt_tokens"] = s.prompt_tokens;
                 out["generated_tokens"] = s.generated_tokens;
                 out["cached_prompt_tokens"] = s.cached_prompt_tokens;
                 return out;
             })
        .def("begin_update",
             [](Model& model) {
                 return std::make_unique<NewTensors>(
                     NewTensors{std::make_shared<NewWeights>(model.running().weights().begin())});
             })
        .def("commit",
             [](Model& model, const NewTensors& update, std::string recipe, std::string version, std::string_view mode,
                bool partial) {
                 const WeightUpdate how{std::move(recipe), std::move(version), unfinished_of(mode), partial};
                 if (update.count == 0) raise("UsageError", "update_weights: there are no weights");
                 steer(model, [&](ServedWeights& weights) { return weights.commit(how, update.weights); });
             })
        .def("load_weights",
             [](Model& model, const std::string& path, std::string recipe, std::string version, std::string_view mode) {
                 const WeightUpdate how{std::move(recipe), std::move(version), unfinished_of(mode)};
                 steer(model, [&](ServedWeights& weights) { return weights.load(how, path); });
             })
        .def("pause",
             [](Model& model, std::string_view mode) {
                 const Unfinished unfinished = unfinished_of(mode);
                 steer(model, [&](ServedWeights& weights) { return weights.pause(unfinished); });
             })
        .def("resume", [](Model& model) { steer(model, [](ServedWeights& weights) { return weights.resume(); }); })
        .def("sleep",
             [](Model& model, int level, std::string_view mode) {
                 const Unfinished unfinished = unfinished_of(mode);
                 steer(model, [&](ServedWeights& weights) { return weights.sleep(level, unfinished); });
             })
        .def("wake",
             [](Model& model, bool weights, bool cache) {
                 steer(model, [&](ServedWeights& served) { return served.wake(weights, cache); });
             })
        .def("forget_prefixes",
             [](Model& model) { steer(model, [](ServedWeights& weights) { return weights.forget_prefixes(); }); })
        .def_prop_ro("weight_version", [](Model& model) { return model.running().weights().version(); })
        .def_prop_ro("paused", [](Model& model) { return model.running().weights().paused(); })
        .def_prop_ro("asleep", [](Model& model) { return model.running().weights().asleep(); })
        .def("submit", &Model::submit, nb::arg("prompt"), nb::arg("parameters"), nb::arg("sequence"))
        .def("cancel", &Model::cancel, nb::arg("request"))
        .def("poll", &Model::poll, nb::arg("seconds"))
        .def("fileno", &Model::descriptor)
        .def("run", &Model::run, nb::arg("prompts"), nb::arg("parameters"), nb::arg("first_sequence"),
             nb::arg("progress").none());
    m.def(
        "open_model",
        [](const std::string& options, nb::object line) {
            const ServeOptions o = options_of(options, "LLM");
            return std::make_unique<Model>(
                run_watched(plain_callbacks(std::move(line)),
                            [&](const JobHooks& hooks, JobWatch&) { return RunningModel::open(o, hooks); }));
        },
        nb::arg("options"), nb::arg("line").none());
    nb::class_<NewTensors>(m, "NewTensors").def("set", &NewTensors::set, nb::arg("name"), nb::arg("array"));
    m.attr("serve_defaults") = serve_defaults().dump();

    nb::class_<Server>(m, "Server")
        .def_prop_ro("url", [](Server& s) { return s.server().url(); })
        .def_prop_ro("port", [](Server& s) { return s.server().port(); })
        .def_prop_ro("name", [](Server& s) { return s.server().name(); })
        .def_prop_ro("text", [](Server& s) { return s.server().text(); })
        .def_prop_ro("facts", [](Server& s) { return s.server().facts(); })
        .def("stop", &Server::stop, nb::arg("seconds"));
    m.def(
        "serve",
        [](const std::string& options, nb::object line) {
            const ServeOptions o = options_of(options, "serve");
            return std::make_unique<Server>(
                run_watched(plain_callbacks(std::move(line)),
                            [&](const JobHooks& hooks, JobWatch&) { return nibble::serve(o, hooks); }));
        },
        nb::arg("options"), nb::arg("line").none());
}

}  // namespace nibble::python
