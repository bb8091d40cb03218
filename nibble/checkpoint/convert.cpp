#include "checkpoint/convert.h"

#include "checkpoint/decode.h"
#include "checkpoint/exact_scales.h"
#include "checkpoint/gguf_layout.h"
#include "checkpoint/modelopt_config.h"
#include "checkpoint/modules.h"
#include "checkpoint/reciprocal.h"
#include "checkpoint/side_files.h"
#include "checkpoint/source_files.h"
#include "checkpoint/stacked_experts.h"
#include "checkpoint/stored_parts.h"
#include "checkpoint/text_config.h"
#include "formats/minifloat.h"
#include "io/json_events.h"
#include "io/model_files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace nibble {
namespace {

constexpr int64_t panel_bytes = int64_t{8} << 20;  // bytes of codes or plain values per panel
constexpr int64_t panel_step = 128;                // rows; a multiple of the height of FP8 tiles

struct Drops {
    bool input_scale = false, activation = false, kv_scale = false, mtp = false, vision = false;
};

Result<Drops> parse_drops(const std::vector<std::string>& names) {
    Drops d;
    for (const std::string& name : names) {
        if (name == "input_scale")
            d.input_scale = true;
        else if (name == "activation")
            d.activation = true;
        else if (name == "kv_scale")
            d.kv_scale = true;
        else if (name == "mtp")
            d.mtp = true;
        else if (name == "vision")
            d.vision = true;
        else
            return fail("cannot drop {} (known: input_scale, activation, kv_scale, mtp, vision)", show_name(name));
    }
    return d;
}

// One tensor of the output and its source.
struct Item {
    size_t source = 0;
    bool decode = false;
};

struct Job {
    ExportSpec spec;
    std::vector<Item> items;  // one per spec.tensors
    ConvertReport report;
};

Result<float> tensor_scale_of(const Checkpoint& in, size_t index) {
    QuantMatrix scratch;
    NIBBLE_TRY(const QuantView row, in.read_quant(index, 0, 1, scratch));
    return row.tensor_scale;
}

// Returns true if the target stores this format only as BF16 values.
bool decodes(Dialect to, Format format) {
    if (format == Format::none) return false;
    return to == Dialect::plain || (to == Dialect::gguf && !gguf_holds(format));
}

Result<Job> make_job(const Checkpoint& in, const ConvertOptions& options) {
    NIBBLE_TRY(const Drops drops, parse_drops(options.drop));
    if (drops.vision && options.to != Dialect::gguf)
        return fail(
            "--drop vision is for GGUF, which holds the text model alone: config.json of a folder announces the "
            "towers");
    // Targets that cannot store these need no `drop`.
    const bool no_kv = options.to == Dialect::plain || options.to == Dialect::gguf;
    Job job;
    job.spec = {.dialect = options.to,
                .out = options.out,
                .kv = in.kv(),
                .config = in.config(),
                .max_shard_bytes = options.max_shard_bytes,
                .manifest = options.manifest};
    int64_t input_scales = 0, activations = 0, kv_scales = 0, predicting = 0, towers = 0;
    const PredictionLayers prediction(in.config());
    ExactScales exact;
    for (size_t i = 0; i < in.tensors().size(); ++i) {
        const CheckpointTensor& t = in.tensors()[i];
        if (is_kv_scale_name(t.name) && (drops.kv_scale || no_kv)) {
            ++kv_scales;
            continue;
        }
        if (drops.mtp && prediction.contains(t.name)) {
            ++predicting;
            continue;
        }
        if (drops.vision && is_outside_text_model(t.name)) {
            ++towers;
            continue;
        }
        ExportTensor e{.name = t.name,
                       .shape = t.shape,
                       .dtype = t.dtype,
                       .format = t.format,
                       .activation = t.activation,
                       .input_scale = t.input_scale.has_value(),
                       .listed_module = t.listed_module,
                       .experts = t.experts};
        const bool decode = decodes(options.to, t.format);
        if (e.input_scale && (drops.input_scale || drops.activation || decode)) {
            ++input_scales;
            e.input_scale = false;
            e.activation = ActivationFormat::none;
        }
        if (e.activation != ActivationFormat::none && drops.activation) {
            ++activations;
            e.activation = ActivationFormat::none;
        }
        if (options.to == Dialect::modelopt && !modelopt_says_inputs({e.format, e.activation}))
            return fail("{}: Model Optimizer's name for {} cannot declare inputs in {}; use --drop activation",
                        show_name(t.name), format_name(e.format), activation_name(e.activation));
        if (decode) {
            e.format = Format::none;
            e.activation = ActivationFormat::none;
            e.dtype = DType::bf16;
            e.listed_module = false;
            ++job.report.decoded;
        }
        if (e.format != Format::none) {
            ++job.report.quantized;
            if (options.to == Dialect::compressed_tensors && has_divisors(t.format)) {
                NIBBLE_TRY(const float scale, tensor_scale_of(in, i));
                add_inexact(exact, t.name, t.format, scale, e.input_scale ? t.input_scale : std::nullopt);
            }
        }
        job.spec.tensors.push_back(std::move(e));
        job.items.push_back({i, decode});
    }
    auto& lines = job.report.lines;
    if (input_scales) lines.push_back(fmt::format("dropped the input_scale of {} matrices", input_scales));
    if (activations) lines.push_back(fmt::format("dropped the input format of {} matrices", activations));
    if (!exact.empty()) lines.push_back(exact_scales_note(exact));
    NIBBLE_TRY(job.spec.manifest, with_exact_scales(options.manifest, exact));
    if (towers) lines.push_back(fmt::format("dropped {} tensors of towers next to the text model", towers));
    if (predicting) lines.push_back(fmt::format("dropped {} tensors of layers for multi-token prediction", predicting));
    if (Json* announced = drops.mtp ? text_value(job.spec.config, "num_nextn_predict_layers") : nullptr) *announced = 0;
    if (kv_scales) lines.push_back(fmt::format("dropped {} KV cache scales", kv_scales));
    if (in.kv() != KvFormat::none && (no_kv || drops.kv_scale)) {
        lines.push_back(fmt::format("dropped the KV cache format {}", kv_name(in.kv())));
        job.spec.kv = KvFormat::none;
    }
    job.report.tensors = static_cast<int64_t>(job.spec.tensors.size());
    NIBBLE_TRY(job.spec.side_files, in.side_files());
    if (std::string note = outside_links_note(in.path(), job.spec.side_files); !note.empty())
        lines.push_back(std::move(note));
    if (std::string note = export_note(job.spec); !note.empty()) lines.push_back(std::move(note));
    if (options.card && options.to != Dialect::gguf) {
        NIBBLE_TRY(const std::string source_card, take_model_card(job.spec.side_files));
        ModelCard card = *options.card;
        note_formats(card, in, job.spec);
        job.spec.side_files.push_back({std::string(model_card_name), {}, model_card_text(card, source_card)});
    }
    return job;
}

// ---- Copying the values --------------------------------------------------------------------------------------------

int64_t panel_rows(const CheckpointTensor& t) {
    const int64_t row = t.quantized() ? code_bytes(t.format, 1, t.cols()) : t.cols() * dtype_bytes(t.dtype);
    const int64_t rows = panel_bytes / std::max<int64_t>(row, 1);
    // A row of a stack is a whole expert, so one row suffices.
    return t.quantized() ? std::max(panel_step, rows / panel_step * panel_step) : std::max<int64_t>(rows, 1);
}

struct Scratch {
    Matrix plain, decoded;
    QuantMatrix quant;
};

Result<MatrixView> decoded_panel(const QuantView& q, Matrix& out) {
    out = Matrix(DType::bf16, q.rows, q.cols);
    decode_bf16(q, {reinterpret_cast<uint16_t*>(out.data.data()), out.data.size() / 2});
    return out.view();
}

Status copy_panel(const Checkpoint& in, const Item& item, Export& out, size_t index, int64_t row, int64_t count) {
    Scratch s;
    if (!in.tensors()[item.source].quantized()) {
        NIBBLE_TRY(const MatrixView view, in.read_plain(item.source, row, count, s.plain));
        return out.write_plain(index, row, view);
    }
    NIBBLE_TRY(const QuantView q, in.read_quant(item.source, row, count, s.quant));
    if (!item.decode) return out.write_quant(index, row, q);
    NIBBLE_TRY(const MatrixView view, decoded_panel(q, s.decoded));
    return out.write_plain(index, row, view);
}

bool same_bytes(const void* a, const void* b, int64_t n) { return n == 0 || std::memcmp(a, b, size_t(n)) == 0; }

bool same_view(const MatrixView& a, const MatrixView& b) {
    return a.dtype == b.dtype && a.cols == b.cols && same_bytes(a.data, b.data, a.bytes());
}

bool same_view(const QuantView& a, const QuantView& b) {
    return a.format == b.format && a.cols == b.cols &&
           same_bytes(a.codes, b.codes, code_bytes(a.format, a.rows, a.cols)) &&
           same_bytes(a.block_scales, b.block_scales, block_scale_bytes(a.format, a.rows, a.cols)) &&
           same_bytes(a.float_scales, b.float_scales, 4 * float_scale_count(a.format, a.rows, a.cols));
}

Status compare_panel(const Checkpoint& in, const Item& item, const Checkpoint& made, size_t index, int64_t row,
                     int64_t count) {
    const CheckpointTensor& t = in.tensors()[item.source];
    Scratch a, b;
    bool same = false;
    if (t.quantized() && !item.decode) {
        NIBBLE_TRY(const QuantView x, in.read_quant(item.source, row, count, a.quant));
        NIBBLE_TRY(const QuantView y, made.read_quant(index, row, count, b.quant));
        same = same_view(x, y);
    } else if (item.decode) {
        NIBBLE_TRY(const QuantView q, in.read_quant(item.source, row, count, a.quant));
        NIBBLE_TRY(MatrixView x, decoded_panel(q, a.decoded));
        NIBBLE_TRY(const MatrixView y, made.read_plain(index, row, count, b.plain));
        if (rounds_plain(made.dialect())) x = plain_as(x, y.dtype, a.plain);
        same = same_view(x, y);
    } else {
        NIBBLE_TRY(MatrixView x, in.read_plain(item.source, row, count, a.plain));
        NIBBLE_TRY(const MatrixView y, made.read_plain(index, row, count, b.plain));
        if (rounds_plain(made.dialect())) x = plain_as(x, y.dtype, a.decoded);
        same = same_view(x, y);
    }
    if (same) return Ok{};
    return fail("{}: rows [{}, {}) read back differently than they were written", show_name(t.name), row, row + count);
}

// Calls work(index, first row, rows) for all panels of all tensors. Returns the first error.
template <class Work>
Status for_each_panel(const Checkpoint& in, const Job& job, ThreadPool& pool, const JobHooks& hooks,
                      std::string_view phase, Work work) {
    int64_t total = 0, done = 0;
    for (const Item& item : job.items) total += in.tensors()[item.source].stored_bytes;
    for (size_t i = 0; i < job.items.size(); ++i) {
        if (hooks.should_stop()) return fail(ErrorKind::cancelled, "stopped on request");
        const size_t source = job.items[i].source;
        const CheckpointTensor& t = in.tensors()[source];
        const int64_t step = panel_rows(t);
        std::mutex mutex;
        std::optional<Error> first;
        pool.parallel_for(ceil_div(t.rows(), step), [&](int64_t p) {
            const int64_t row = p * step, count = std::min(step, t.rows() - row);
            Status status = work(i, row, count);
            in.done_with(source, row, count);
            if (status.ok()) return;
            const std::scoped_lock lock(mutex);
            if (!first) first = std::move(status).error();
        });
        if (first) return *std::move(first);
        done += t.stored_bytes;
        if (hooks.progress) hooks.progress({phase, t.name, done, total});
    }
    return Ok{};
}

// Compares rows of a stack of experts in stored form. A stack that was written whole may be read back as one matrix per
// expert, so it cannot be compared tensor by tensor.
Status compare_stored(const Checkpoint& in, const Item& item, const ModelFiles& files, int64_t row, int64_t count) {
    const CheckpointTensor& t = in.tensors()[item.source];
    Scratch s;
    MatrixView x;
    if (item.decode) {
        NIBBLE_TRY(const QuantView q, in.read_quant(item.source, row, count, s.quant));
        NIBBLE_TRY(x, decoded_panel(q, s.decoded));
    } else {
        NIBBLE_TRY(x, in.read_plain(item.source, row, count, s.plain));
    }
    const ModelTensor* stored = files.find(t.name);
    if (!stored || stored->record->dtype != x.dtype ||
        stored->record->shape != (t.experts ? stack_shape(t.shape, t.experts) : t.shape))
        return fail("{}: is missing when read back", show_name(t.name));
    std::vector<std::byte> rows(t.experts ? static_cast<size_t>(x.bytes()) : 0);
    if (t.experts)
        read_stack(stored->record->data, dtype_bytes(x.dtype), t.rows() / t.experts, x.cols, row, count, rows.data());
    const std::byte* have = t.experts ? rows.data() : stored->record->data.data() + row * x.row_bytes();
    if (same_bytes(x.data, have, x.bytes())) return Ok{};
    return fail("{}: rows [{}, {}) read back differently than they were written", show_name(t.name), row, row + count);
}

Status verify(const Checkpoint& in, const Job& job, const std::filesystem::path& written, ThreadPool& pool,
              const JobHooks& hooks) {
    NIBBLE_TRY(const auto made, Checkpoint::open(written));
    std::optional<ModelFiles> files;  // opened when a stack must be compared in stored form
    constexpr size_t as_stored = SIZE_MAX;
    std::vector<size_t> index_of(job.items.size());
    std::unordered_map<std::string_view, size_t> by_name;
    for (size_t i = 0; i < made->tensors().size(); ++i) by_name.emplace(made->tensors()[i].name, i);
    for (size_t i = 0; i < job.items.size(); ++i) {
        const ExportTensor& want = job.spec.tensors[i];
        const auto at = by_name.find(want.name);
        if (const CheckpointTensor& t = in.tensors()[job.items[i].source];
            at == by_name.end() && (!t.whole.empty() || t.experts)) {
            if (!files) {
                NIBBLE_TRY(files, ModelFiles::open(written));
            }
            index_of[i] = as_stored;
            continue;
        }
        if (at == by_name.end()) return fail("{}: is missing when read back", show_name(want.name));
        const CheckpointTensor& have = made->tensors()[at->second];
        if (have.format != want.format || have.shape != want.shape || have.input_scale.has_value() != want.input_scale)
            return fail("{}: reads back as {}", show_name(want.name), have.stored_type);
        index_of[i] = at->second;
        if (want.format == Format::none) continue;
        NIBBLE_TRY(const float before, tensor_scale_of(in, job.items[i].source));
        NIBBLE_TRY(const float after, tensor_scale_of(*made, at->second));
        const float input_before = in.tensors()[job.items[i].source].input_scale.value_or(0);
        const float input_after = want.input_scale ? *have.input_scale : input_before;
        if (float_bits(before) != float_bits(after) || float_bits(input_before) != float_bits(input_after))
            return fail("{}: its scalar scales read back differently than they were written", show_name(want.name));
    }
    if (!files && by_name.size() != job.items.size())
        return fail("{} tensors read back, {} were written", by_name.size(), job.items.size());
    return for_each_panel(in, job, pool, hooks, "verify", [&](size_t i, int64_t row, int64_t count) {
        if (index_of[i] == as_stored) return compare_stored(in, job.items[i], *files, row, count);
        return compare_panel(in, job.items[i], *made, index_of[i], row, count);
    });
}

Status fill(const Checkpoint& in, const Job& job, const JobIdentity& files, Export& out, ThreadPool& pool,
            const JobHooks& hooks) {
    NIBBLE_CHECK(for_each_panel(in, job, pool, hooks, "convert", [&](size_t i, int64_t row, int64_t count) {
        return copy_panel(in, job.items[i], out, i, row, count);
    }));
    for (size_t i = 0; i < job.items.size(); ++i) {
        const ExportTensor& e = job.spec.tensors[i];
        if (e.format == Format::none) continue;
        NIBBLE_TRY(const float scale, tensor_scale_of(in, job.items[i].source));
        const auto input = e.input_scale ? in.tensors()[job.items[i].source].input_scale : std::nullopt;
        NIBBLE_CHECK(out.write_scalars(i, scale, input));
    }
    NIBBLE_CHECK(check_source_unchanged(in, files));  // otherwise a changed source would be reported as a wrong output
    NIBBLE_CHECK(verify(in, job, out.checkpoint_path(), pool, hooks));
    NIBBLE_CHECK(check_source_unchanged(in, files));
    return out.finish();
}

}  // namespace

Result<ConvertReport> convert(const Checkpoint& in, const ConvertOptions& options, ThreadPool& pool,
                              const JobHooks& hooks) {
    NIBBLE_TRY(const JobIdentity files, source_files(in));
    NIBBLE_TRY(Job job, make_job(in, options));
    NIBBLE_TRY(auto out, open_export(job.spec, ExportMode::create));
    job.report.bytes = out->total_bytes();
    Status done = fill(in, job, files, *out, pool, hooks);
    if (done.ok()) return std::move(job.report);
    out->discard();  // a conversion starts over; it does not resume
    return std::move(done).error();
}

}  // namespace nibble
