// The main job: streams a checkpoint through the quantizers into an export, in any order, on all threads, with the same
// bytes and the same report whatever the thread count and however often it was interrupted.
//
//   auto scales = resolve_activation_scales(plan, table);
//   auto out = open_export({.tensors = export_tensors(*source, plan, *scales), ...}, mode);
//   auto report = run_quantize(*source, plan, {.scales = *scales, ...}, **out, pool, hooks);
//   ... (*out)->finish();
//
// Memory beside mapped pages: a few panels per thread and the report. Per unit (see units.h): scan the maxima, search
// scales over whole tensors, then quantize, measure and write panel by panel, and note the unit in the journal.
#pragma once

#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/export.h"
#include "io/journal.h"
#include "quant/input_scales.h"
#include "quant/panel_workers.h"
#include "quant/plan.h"
#include "quant/quant_report.h"
#include "quant/solve.h"

namespace nibble {

struct JobOptions {
    const QuantizeKernels* kernels = nullptr;  // null: the fastest this CPU supports
    PanelWorkers* workers = nullptr;           // null: `kernels` on the pool's threads; else at least one per thread
    ActivationScales scales;                   // of resolve_activation_scales for the same plan
    StatisticsSource* statistics = nullptr;    // needed where an entry of the plan has a solver
    Json settings = Json::object();            // options that change bytes, for the identity and the report
    Json versions = Json::object();            // the same: {"nibble": "0.1.0"}
};

// The files with the source's weights, and its config: part of the identity of any resumable job.
Result<JobIdentity> source_identity(const Checkpoint& source);

// `source` is read and `out` written from all threads of `pool`. `out` holds export_tensors(source, plan,
// options.scales). A journal in out.work_dir() is continued: units whose stored bytes still have their checksum are not
// done again. The caller calls out.finish() when this succeeds.
//
// Errors: a NaN or infinite weight (names tensor and index), a journal of another job, read and write errors. After
// write errors, when a GPU fails and after hooks.stop_requested the finished units stay in the journal; the message
// says how to go on.
Result<QuantReport> run_quantize(const Checkpoint& source, const Plan& plan, const JobOptions& options, Export& out,
                                 ThreadPool& pool, const JobHooks& hooks);

}  // namespace nibble
