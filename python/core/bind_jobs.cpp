// The jobs: functions from options to results, both as JSON.
#include "core/module.h"
#include "core/wait.h"
#include "jobs/job_table.h"
#include "nibble/recipes.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nibble::python {
namespace {

JobCallbacks callbacks_of(nb::dict c) {
    const auto get = [&](const char* name) -> nb::object {
        return c.contains(name) ? nb::borrow(c[name]) : nb::none();
    };
    return {get("progress"), get("line"), get("event"), get("cancel"), get("judge")};
}

nb::str text_of(const std::string& bytes) {
    return nb::steal<nb::str>(PyUnicode_DecodeUTF8(bytes.data(), Py_ssize_t(bytes.size()), "replace"));
}

// Calls the judge of Python on the thread of the caller.
std::vector<Judgement> judged(JobWatch& watch, nb::handle judge, const std::vector<AnswerToJudge>& answers) {
    std::vector<Judgement> judgements;
    const bool made = watch.in_caller([&] {
        nb::list asked;
        for (const AnswerToJudge& a : answers)
            asked.append(nb::make_tuple(text_of(a.prompt), text_of(a.expected), text_of(a.text), a.turn, a.state));
        for (const nb::handle reply : nb::borrow<nb::list>(judge(asked)))
            judgements.push_back({.reward = nb::cast<double>(reply[0]),
                                  .done = nb::cast<bool>(reply[1]),
                                  .observation = nb::cast<std::string>(reply[2]),
                                  .state = nb::cast<std::string>(reply[3]),
                                  .failure = nb::cast<std::string>(reply[4])});
    });
    if (!made) judgements.assign(answers.size(), {.failure = "the run was stopped"});
    return judgements;
}

std::string run_job(const std::string& job, const std::string& options, nb::dict callbacks) {
    const Json parsed = value_or_raise(parse_json(options));
    const JobCallbacks calls = callbacks_of(std::move(callbacks));
    const Json result = run_watched(calls, [&](const JobHooks& hooks, JobWatch& watch) {
        NamedJobHooks named{.job = hooks, .on_step = [&](const std::string& json) { watch.add_event(json); }};
        // The object is not copied: a count of references may change under the lock of the interpreter only.
        if (!calls.judge.is_none())
            named.judge = [&](const std::vector<AnswerToJudge>& a) { return judged(watch, calls.judge, a); };
        return run_named_job(job, parsed, named);
    });
    return result.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void bind_jobs(nb::module_& m) {
    nb::module_ jobs = m.def_submodule("jobs");
    jobs.def("run", &run_job, nb::arg("job"), nb::arg("options"), nb::arg("callbacks"));
    jobs.def(
        "defaults", [](const std::string& job) { return value_or_raise(job_defaults(job)).dump(); }, nb::arg("job"));
    jobs.def("names", [] {
        const auto names = job_names();
        return std::vector<std::string>(names.begin(), names.end());
    });
    jobs.def("recipe_names", &recipe_names);
}

}  // namespace nibble::python
