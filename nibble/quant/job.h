// The quantization job: streams a checkpoint through the quantizers into an export, in any order, on all threads. Bytes
// and report do not depend on the number of threads or on interruptions.
//
//   auto scales = resolve_activation_scales(plan, table);
//   auto out = open_export({.tensors = export_tensors(*source, plan, *scales), ...}, mode);
//   auto report = run_quantize(*source, plan, {.scales = *scales, ...}, **out, pool, hooks);
//   ... (*out)->finish();
//
// Needs memory for a few panels per thread and the report, in addition to mapped pages. Steps per unit (see units.h):
// scan the maxima, search scales over whole tensors, then quantize, measure and write panel by panel, and record the
// unit in the journal.
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

#include <memory>
#include <span>

namespace nibble {

struct JobOptions {
    const QuantizeKernels* kernels = nullptr;  // null: the fastest that this CPU supports
    PanelWorkers* workers = nullptr;  // null: `kernels` on the pool's threads; otherwise at least one worker per thread
    ActivationScales scales;          // from resolve_activation_scales() for the same plan
    StatisticsSource* statistics = nullptr;  // required if an entry of the plan has a solver
    Json settings = Json::object();          // options that change bytes, for the identity and the report
    Json versions = Json::object();          // versions that change bytes: {"nibble": "0.1.0"}
};

// Returns the files with the source's weights, and its config: part of the identity of any resumable job. Error: a file
// cannot be read.
Result<JobIdentity> source_identity(const Checkpoint& source);

// Returns the facts that two processes must share to work on one quantization. Error: a file cannot be read.
Result<JobIdentity> quantize_identity(const Checkpoint& source, const Plan& plan, const JobOptions& options);

// Quantizes a checkpoint. `source` is read and `out` written from all threads of `pool`. `out` must have the tensors
// export_tensors(source, plan, options.scales). A journal in out.work_dir() is continued: units whose stored bytes
// still match their checksum are not repeated. The caller must call out.finish() afterwards.
//
// Errors: a NaN or infinite weight (with tensor and index), a journal of another job, read and write errors. After
// write errors, GPU failures and hooks.stop_requested, the finished units stay in the journal; the message states how
// to resume.
Result<QuantReport> run_quantize(const Checkpoint& source, const Plan& plan, const JobOptions& options, Export& out,
                                 ThreadPool& pool, const JobHooks& hooks);

// One file of an export, which one of several processes fills.
struct FileWork {
    int file = 0;  // selected in `out`
    Journal& journal;
    const Journal* earlier = nullptr;  // units that an earlier job finished, in a journal that is only read; null: none
};

// Quantizes every unit with a part in one file of `out`, which was opened with ExportMode::share, and writes these
// parts only. A unit with parts in several files is computed for each of them; its members without a part in the file
// are only read for the scales that they share. Errors: as run_quantize().
Status run_quantize_file(const Checkpoint& source, const Plan& plan, const JobOptions& options, Export& out,
                         const FileWork& work, ThreadPool& pool, const JobHooks& hooks);

// Adds the units of `parts` to the journal of a whole export. A unit that is spread over several files is complete when
// its parts for all files are there.
Status merge_journals(std::span<const std::unique_ptr<Journal>> parts, int64_t units, Journal& whole);

}  // namespace nibble
