#include "nibble/logits.h"

#include "checkpoint/output_place.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "jobs/job.h"
#include "jobs/loaded_model.h"

#include <fmt/format.h>

#include <cstring>

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Ids {
    int64_t rows = 0, cols = 0;
    std::vector<int32_t> ids;  // [rows, cols]
};

Result<Ids> read_ids(const std::string& path, int64_t vocab, int64_t context) {
    NIBBLE_TRY(const SafetensorsFile file, SafetensorsFile::open(path));
    const TensorRecord* record = file.find("input_ids");
    if (!record) return fail(ErrorKind::shape, "{}: has no tensor 'input_ids'", path);
    if (record->dtype != DType::i64 || record->shape.size() != 2)
        return fail(ErrorKind::shape, "{}: input_ids: expected I64 [rows, tokens]", path);
    Ids ids{record->shape[0], record->shape[1], {}};
    if (ids.rows == 0 || ids.cols == 0) return fail(ErrorKind::shape, "{}: input_ids: is empty", path);
    if (ids.cols > context)
        return fail(ErrorKind::shape, "{}: input_ids: rows of {} tokens; the model's context is {}", path, ids.cols,
                    context);
    for (int64_t i = 0; i < ids.rows * ids.cols; ++i) {
        int64_t id = 0;
        std::memcpy(&id, record->data.data() + i * 8, 8);
        if (id < 0 || id >= vocab)
            return fail(ErrorKind::shape, "{}: input_ids: row {}, position {}: token {}; the model's vocabulary has {}",
                        path, i / ids.cols, i % ids.cols, id, vocab);
        ids.ids.push_back(static_cast<int32_t>(id));
    }
    return ids;
}

Status write_logits(const LanguageModel& model, const Ids& ids, const std::string& out, const JobHooks& hooks) {
    const int64_t vocab = model.config().vocab;
    NIBBLE_TRY(auto layout, SafetensorsLayout::make({{"logits", DType::f32, {ids.rows, ids.cols, vocab}}}));
    NIBBLE_TRY(auto writer, SafetensorsFileWriter::create(out, std::move(layout)));
    std::vector<float> logits(static_cast<size_t>(ids.cols * vocab));
    for (int64_t row = 0; row < ids.rows; ++row) {
        if (hooks.should_stop()) return fail(ErrorKind::cancelled, "stopped on request; nothing was written");
        if (hooks.progress) hooks.progress({"logits", {}, row, ids.rows, "rows"});
        const auto tokens = std::span(ids.ids).subspan(size_t(row * ids.cols), size_t(ids.cols));
        NIBBLE_CHECK(model.forward(Batch({{nullptr, tokens, 0}}), logits).within(fmt::format("row {}", row)));
        const auto bytes = std::as_bytes(std::span(logits));
        NIBBLE_CHECK(writer.write(0, row * static_cast<int64_t>(bytes.size()), bytes));
    }
    return writer.finish();
}

Result<LogitsReport> logits_job(const LogitsOptions& options, const JobHooks& hooks) {
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(options.out, ignored)))
        return fail(ErrorKind::file, "{}: exists already; remove it or choose another output", options.out);
    NIBBLE_CHECK(check_output_file(options.out).as(ErrorKind::file));
    ThreadPool pool(options.engine.threads);
    NIBBLE_TRY(const LoadedModel loaded, LoadedModel::open(options.model, options.engine, pool, hooks));
    const ModelConfig& config = loaded.model->config();
    NIBBLE_TRY(const Ids ids, read_ids(options.ids, config.vocab, config.context));
    const std::string part = options.out + ".part";
    const Status written = write_logits(*loaded.model, ids, part, hooks);
    if (!written.ok()) fs::remove(part, ignored);
    NIBBLE_CHECK(written);
    NIBBLE_CHECK(rename_durably(part, options.out));
    return LogitsReport{ids.rows, ids.cols, config.vocab};
}

}  // namespace

Result<LogitsReport> compute_logits(const LogitsOptions& options, const JobHooks& hooks) {
    return as_job([&] { return logits_job(options, hooks); });
}

}  // namespace nibble
