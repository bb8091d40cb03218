#include "checkpoint/gguf_import.h"

#include "base/thread_pool.h"
#include "checkpoint/export.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/model_card.h"
#include "io/file_fingerprint.h"

#include <algorithm>
#include <mutex>

namespace nibble {
namespace {

constexpr int64_t panel_values = int64_t{1} << 20;  // values that one thread decodes at once: 4 MiB of FP32, 2 MiB of
                                                    // BF16

struct Panel {
    size_t tensor;
    int64_t begin, end;
};

std::vector<Panel> cut_panels(const GgufSource& source) {
    std::vector<Panel> panels;
    for (size_t i = 0; i < source.tensors().size(); ++i) {
        const GgufSourceTensor& t = source.tensors()[i];
        // A vector is always decoded whole, so it is one panel.
        const int64_t step = t.shape.size() == 1 ? t.rows() : std::max<int64_t>(1, panel_values / t.cols());
        for (int64_t r = 0; r < t.rows(); r += step) panels.push_back({i, r, std::min(r + step, t.rows())});
    }
    return panels;
}

Status write_panel(const GgufSource& source, const Panel& panel, Export& out) {
    const GgufSourceTensor& t = source.tensors()[panel.tensor];
    Matrix rows(t.dtype, panel.end - panel.begin, t.cols());
    if (t.dtype == DType::f32) {
        NIBBLE_CHECK(source.read_rows(t, panel.begin, panel.end, reinterpret_cast<float*>(rows.data.data())));
    } else {
        NIBBLE_CHECK(source.read_rows_bf16(t, panel.begin, panel.end, reinterpret_cast<uint16_t*>(rows.data.data())));
    }
    return out.write_plain(panel.tensor, panel.begin, rows.view());
}

Status write_weights(const GgufSource& source, Export& out, int threads, int64_t total, const JobHooks& hooks) {
    const std::vector<Panel> panels = cut_panels(source);
    std::mutex mutex;  // protects the next two variables and the hooks
    std::optional<Error> error;
    int64_t done = 0;
    ThreadPool pool(threads);
    pool.parallel_for(static_cast<int64_t>(panels.size()), [&](int64_t p) {
        {
            const std::lock_guard lock(mutex);
            if (error || hooks.should_stop()) return;
        }
        Status status = write_panel(source, panels[p], out);
        const std::lock_guard lock(mutex);
        if (!status.ok()) {
            if (!error) error = std::move(status).error();
            return;
        }
        const GgufSourceTensor& t = source.tensors()[panels[p].tensor];
        done += (panels[p].end - panels[p].begin) * t.cols() * dtype_bytes(t.dtype);
        if (hooks.progress) hooks.progress({"import", t.name, done, total});
    });
    if (error) return *std::move(error);
    if (hooks.should_stop()) return fail(ErrorKind::cancelled, "stopped, and what was written is removed");
    return Ok{};
}

Status check_unchanged(const std::filesystem::path& file, const std::string& before) {
    NIBBLE_TRY(const std::string now, file_fingerprint(file));
    if (now != before) return fail("{}: changed while it was read", file.string());
    return Ok{};
}

void warn_about_losses(const GgufSource& source, bool tokenizer, const JobHooks& hooks) {
    if (!hooks.warn) return;
    for (const std::string& note : source.notes()) hooks.warn(note);
    if (!source.left_out().empty())
        hooks.warn(fmt::format("{} activation scales are not carried into a BF16 folder (the first: {})",
                               source.left_out().size(), source.left_out()[0]));
    if (!tokenizer) hooks.warn("the file holds no tokenizer: add tokenizer.json to the folder before use");
}

}  // namespace

Result<std::vector<Checkpoint::SideFile>> gguf_side_files(const GgufSource& source, std::string_view pre) {
    NIBBLE_TRY(const Json generation, gguf_generation_config(source.file()));
    NIBBLE_TRY(auto tokenizer, gguf_tokenizer(source.file().metadata(), pre));
    std::vector<Checkpoint::SideFile> files{{"generation_config.json", {}, generation.dump(2) + "\n"}};
    if (tokenizer) {
        files.push_back({"tokenizer.json", {}, std::move(tokenizer->tokenizer_json)});
        files.push_back({"tokenizer_config.json", {}, std::move(tokenizer->tokenizer_config_json)});
    }
    return files;
}

Result<GgufImportResult> import_gguf(const GgufImportOptions& options, const JobHooks& hooks) {
    NIBBLE_TRY(const std::string before, file_fingerprint(options.file));
    NIBBLE_TRY(const auto source, GgufSource::open(options.file));
    ExportSpec spec{.dialect = Dialect::plain,
                    .out = options.out,
                    .config = source.config(),
                    .max_shard_bytes = options.max_shard_bytes,
                    .manifest = options.manifest};
    NIBBLE_TRY(spec.side_files, gguf_side_files(source, options.pre).within(options.file.string()));
    GgufImportResult result{.tokenizer = spec.side_files.size() > 1};
    if (!options.card.empty()) spec.side_files.push_back({std::string(model_card_name), {}, options.card});
    warn_about_losses(source, result.tokenizer, hooks);
    for (const GgufSourceTensor& t : source.tensors()) {
        spec.tensors.push_back({.name = t.name, .shape = t.shape, .dtype = t.dtype});
        ++result.tensors;
        result.weight_bytes += t.rows() * t.cols() * dtype_bytes(t.dtype);
    }
    NIBBLE_TRY(auto out, open_export(std::move(spec), ExportMode::create));
    Status written =
        write_weights(source, *out, options.threads, result.weight_bytes, hooks).within(options.file.string());
    if (written.ok()) written = check_unchanged(options.file, before);
    if (written.ok()) written = out->finish();
    if (!written.ok()) {
        out->discard();
        return std::move(written).error();
    }
    return result;
}

}  // namespace nibble
