#include "checkpoint/hf_catalog.h"

#include "formats/minifloat.h"
#include "io/json_events.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace nibble {
namespace {

std::string join(std::string_view module, std::string_view suffix) { return fmt::format("{}.{}", module, suffix); }

// Shapes that mean the same: exporters differ in dimensions of size 1 ([] and [1]; [a, 1, b, 1] and [a, b]).
bool same_but_ones(std::span<const int64_t> a, std::span<const int64_t> b) {
    const auto squeezed = [](std::span<const int64_t> s) {
        std::vector<int64_t> out;
        std::ranges::copy_if(s, std::back_inserter(out), [](int64_t d) { return d != 1; });
        return out;
    };
    return squeezed(a) == squeezed(b);
}

bool dtype_fits(const StoredPart& part, DType dtype) {
    switch (part.part) {
        case Part::codes:
            return dtype == part.dtype;
        case Part::block_scales:
            return dtype == part.dtype || (part.dtype == DType::u8 && dtype == DType::f8_e8m0);
        case Part::float_scales:
        case Part::tensor_scale:
        case Part::input_scale:  // compressed-tensors writes FP8 scales in the model's dtype; widening is exact
            return dtype == DType::f32 || dtype == DType::bf16;
    }
    __builtin_unreachable();
}

struct KvName {
    std::string_view scale, projection;
};
constexpr std::array kv_names{KvName{"k_scale", "k_proj"}, KvName{"v_scale", "v_proj"}, KvName{"q_scale", "q_proj"}};

}  // namespace

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::vector<std::string> Catalog::quantized_modules() const {
    std::vector<std::string> modules;
    std::unordered_set<std::string_view> seen;
    for (const ModelTensor& t : files_.tensors()) {
        const std::string& name = t.record->name;
        const std::string_view last = last_name(name), module = parent_name(name);
        const bool codes = last == "weight" && (t.record->dtype == DType::u8 || t.record->dtype == DType::f8_e4m3);
        const bool part = codes || last == "weight_packed" || last == "weight_scale" || last == "weight_scale_2" ||
                          last == "weight_scale_inv" || last == "weight_global_scale";
        if (part && !module.empty() && seen.insert(module).second) modules.emplace_back(module);
    }
    return modules;
}

std::vector<std::string_view> Catalog::modules() const {
    std::vector<std::string_view> modules;
    for (const ModelTensor& t : files_.tensors()) {
        const std::string_view module = parent_name(t.record->name);
        if (modules.empty() || modules.back() != module) modules.push_back(module);
    }
    return modules;
}

Result<const ModelTensor*> Catalog::take_part(std::string_view module, const StoredPart& part, std::string_view says) {
    const std::string name = join(module, part.suffix);
    const ModelTensor* t = files_.find(name);
    if (!t) return fail("{}: is missing, and {} needs it", show_name(name), says);
    const std::string where = fmt::format("{}: {}", file_of(*t), show_name(name));
    if (!dtype_fits(part, t->record->dtype))
        return fail("{}: dtype {}, but {} needs {}", where, dtype_name(t->record->dtype), says, dtype_name(part.dtype));
    const bool scale = part.part != Part::codes && part.part != Part::block_scales;
    const bool fits = scale ? same_but_ones(t->record->shape, part.shape) : t->record->shape == part.shape;
    if (!fits)
        return fail("{}: shape {}, but {} needs {}", where, shape_text(t->record->shape), says, shape_text(part.shape));
    taken_.insert(t);
    return t;
}

Result<float> Catalog::read_scalar(const ModelTensor& tensor, bool divides) const {
    float x = 0;
    if (tensor.record->dtype == DType::bf16) {
        uint16_t code;
        std::memcpy(&code, tensor.record->data.data(), sizeof code);
        x = bf16_to_float(code);
    } else {
        std::memcpy(&x, tensor.record->data.data(), sizeof x);
    }
    const float scale = divides ? 1.0f / x : x;
    if (scales_ == ScaleReading::raw) return scale;
    if (!is_finite(x) || !(x > 0.0f) || !is_finite(scale) || !(scale > 0.0f))
        return fail("{}: {}: value {} is not a usable scale (finite and above zero)", file_of(tensor),
                    show_name(tensor.record->name), x);
    return scale;
}

Status Catalog::take_quantized(std::string_view module, Scheme scheme, std::string_view stored_type,
                               std::string_view says) {
    // The codes come first: their shape gives all others.
    const auto probe = stored_parts(dialect_, scheme, false, 1, 128).front();
    const std::string codes_name = join(module, probe.suffix);
    const ModelTensor* codes = files_.find(codes_name);
    if (!codes) return fail("{}: is missing, and {} needs it", show_name(codes_name), says);
    if (codes->record->shape.size() != 2)
        return fail("{}: {}: shape {}, but {} needs a matrix", file_of(*codes), show_name(codes_name),
                    shape_text(codes->record->shape), says);
    const int64_t rows = codes->record->shape[0], stored_cols = codes->record->shape[1];
    const bool packed = format_layout(scheme.format).code_bits == 4;
    const auto cols = packed ? checked_mul<int64_t>(stored_cols, 2) : std::optional(stored_cols);
    if (rows == 0 || !cols || !format_fits(scheme.format, *cols))
        return fail("{}: {}: shape {} does not hold whole blocks of {}", file_of(*codes), show_name(codes_name),
                    shape_text(codes->record->shape), format_name(scheme.format));

    CatalogEntry entry;
    CheckpointTensor& t = entry.tensor;
    t = {.name = join(module, "weight"),
         .shape = {rows, *cols},
         .dtype = decoded_,
         .format = scheme.format,
         .activation = scheme.activation,
         .file = file_of(*codes),
         .stored_type = std::string(stored_type)};
    for (const StoredPart& part : stored_parts(dialect_, scheme, stores_input_scale(scheme.activation), rows, *cols)) {
        NIBBLE_TRY(const ModelTensor* stored, take_part(module, part, says));
        t.stored_bytes += static_cast<int64_t>(stored->record->data.size());
        switch (part.part) {
            case Part::codes:
                entry.data = stored;
                break;
            case Part::block_scales:
                entry.block_scales = stored;
                break;
            case Part::float_scales:
                entry.float_scales = stored;
                break;
            case Part::tensor_scale: {
                NIBBLE_TRY(entry.tensor_scale, read_scalar(*stored, part.divides));
                break;
            }
            case Part::input_scale: {
                NIBBLE_TRY(t.input_scale, read_scalar(*stored, part.divides));
                break;
            }
        }
    }
    entries_.push_back(std::move(entry));
    return Ok{};
}

Status Catalog::take_kv_scales(KvFormat json_kv) {
    bool any = false;
    for (const ModelTensor& t : files_.tensors()) {
        const std::string& name = t.record->name;
        const auto kv = std::ranges::find(kv_names, last_name(name), &KvName::scale);
        if (kv == kv_names.end()) continue;
        const std::string where = fmt::format("{}: {}", file_of(t), show_name(name));
        if (json_kv == KvFormat::none)
            return fail("{}: a KV cache scale, but the configuration names no KV cache format", where);
        if (t.record->dtype != DType::f32 && t.record->dtype != DType::bf16)
            return fail("{}: dtype {}, a KV cache scale needs F32 or BF16", where, dtype_name(t.record->dtype));
        if (!same_but_ones(t.record->shape, {}))
            return fail("{}: shape {}, only one KV cache scale per layer is known", where, shape_text(t.record->shape));
        NIBBLE_TRY(const float checked, read_scalar(t, false));
        static_cast<void>(checked);

        // compressed-tensors hangs them on the attention module, Model Optimizer on the projection.
        std::string canonical = name;
        const std::string_view parent = parent_name(name);
        if (last_name(parent) != kv->projection) {
            const std::string projection = join(parent, kv->projection);
            if (files_.find(join(projection, "weight")) || files_.find(join(projection, "weight_packed")))
                canonical = join(projection, kv->scale);
        }
        CatalogEntry entry;
        entry.tensor = {.name = std::move(canonical),
                        .dtype = DType::f32,
                        .file = file_of(t),
                        .stored_bytes = static_cast<int64_t>(t.record->data.size()),
                        .stored_type = std::string(dtype_name(t.record->dtype))};
        entry.data = &t;
        entries_.push_back(std::move(entry));
        taken_.insert(&t);
        any = true;
    }
    kv_ = json_kv;
    // The cast formats are those without stored scales: engines assume 1.
    if (!any && json_kv == KvFormat::fp8) kv_ = KvFormat::fp8_cast;
    if (!any && json_kv == KvFormat::nvfp4) kv_ = KvFormat::nvfp4_cast;
    return Ok{};
}

void Catalog::add_experts(const ModelTensor& t, const ExpertStack& stack,
                          const std::function<bool(std::string_view module)>& listed) {
    const bool all_listed = listed(stack.experts);
    for (ExpertMatrix& m : expert_matrices(stack, t)) {
        CatalogEntry entry{.data = &t, .first = m.first, .stride = m.stride};
        const bool one_listed = all_listed || listed(module_of_weight(m.name));
        entry.tensor = {.name = std::move(m.name),
                        .shape = {m.rows, m.cols},
                        .dtype = t.record->dtype,
                        .listed_module = one_listed,
                        .file = file_of(t),
                        .stored_bytes = m.rows * m.cols * dtype_bytes(t.record->dtype),
                        .stored_type = std::string(dtype_name(t.record->dtype))};
        entries_.push_back(std::move(entry));
    }
}

Status Catalog::take_plain(const std::function<bool(std::string_view module)>& listed, const Json& config) {
    const auto stacks = find_expert_stacks(files_, config);
    for (const ModelTensor& t : files_.tensors()) {
        if (taken_.contains(&t)) continue;
        const TensorRecord& r = *t.record;
        if (looks_quantized(r.name, r.dtype))
            return fail(
                "{}: {} ({} {}): part of a quantization that the configuration does not name, or of one that "
                "nibble does not know",
                file_of(t), show_name(r.name), dtype_name(r.dtype), shape_text(r.shape));
        if (!r.shape.empty() && !checked_elements(std::span(r.shape).subspan(1)))
            return fail("{}: {}: shape {} overflows", file_of(t), show_name(r.name), shape_text(r.shape));
        const auto stack = stacks.find(&t);
        if (stack != stacks.end() && stack->second.whole.empty()) {
            add_experts(t, stack->second, listed);
            continue;
        }
        CatalogEntry entry;
        const std::string_view module = module_of_weight(r.name);
        entry.tensor = {.name = r.name,
                        .shape = r.shape,
                        .dtype = r.dtype,
                        .listed_module = !module.empty() && r.shape.size() >= 2 && listed(module),
                        .file = file_of(t),
                        .stored_bytes = static_cast<int64_t>(r.data.size()),
                        .stored_type = std::string(dtype_name(r.dtype)),
                        .whole = stack != stacks.end() ? stack->second.whole : ""};
        entry.data = &t;
        entries_.push_back(std::move(entry));
    }
    return Ok{};
}

Result<std::vector<CatalogEntry>> Catalog::finish() {
    std::ranges::stable_sort(entries_, {}, [](const CatalogEntry& e) { return e.data; });  // one array: file order
    std::unordered_set<std::string_view> names;
    for (const CatalogEntry& e : entries_)
        if (!names.insert(e.tensor.name).second)
            return fail(
                "{}: {} is stored twice: plain and quantized, alone and in a stack of experts, or under two dialects' "
                "names",
                e.tensor.file, show_name(e.tensor.name));
    return std::move(entries_);
}

}  // namespace nibble
