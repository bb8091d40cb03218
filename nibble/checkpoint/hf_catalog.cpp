#include "checkpoint/hf_catalog.h"

#include "checkpoint/scale_values.h"
#include "formats/minifloat.h"
#include "io/json_events.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace nibble {
namespace {

std::string join(std::string_view module, std::string_view suffix) { return fmt::format("{}.{}", module, suffix); }

// Returns true if two shapes differ only in dimensions of size 1, which exporters write differently ([] and [1]; [a, 1,
// b, 1] and [a, b]).
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
        case Part::shape:
            return dtype == part.dtype;
        case Part::codes:
            return dtype == part.dtype || (part.dtype == DType::u8 && dtype == DType::i8);
        case Part::block_scales:
            return dtype == part.dtype || (part.dtype == DType::u8 && dtype == DType::f8_e8m0);
        case Part::float_scales:
        case Part::tensor_scale:
        case Part::input_scale:  // exporters also use the model's dtype; widening is exact
            return is_scale_dtype(dtype);
    }
    __builtin_unreachable();
}

// All these names hold multipliers: vLLM and Model Optimizer, DeepSeek and transformers, DeepSeek-V4, Mistral's own
// format.
constexpr std::array<std::string_view, 4> scale_names{"weight_scale", "weight_scale_inv", "scale", "qscale_weight"};
constexpr std::array<std::string_view, 3> input_names{"input_scale", "activation_scale", "qscale_act"};

std::span<const std::string_view> other_names(const StoredPart& part) {
    if (part.divides) return {};
    if (std::ranges::find(scale_names, part.suffix) != scale_names.end()) return scale_names;
    if (std::ranges::find(input_names, part.suffix) != input_names.end()) return input_names;
    return {};
}

// Recognizes scales of the KV cache by the last part of the name and the module that must contain it.
struct KvName {
    std::string_view last, holder, scale, projection;
};
constexpr std::array kv_names{
    KvName{"k_scale", "", "k_scale", "k_proj"},
    KvName{"v_scale", "", "v_scale", "v_proj"},
    KvName{"q_scale", "", "q_scale", "q_proj"},
    KvName{"output_scale", "k_proj", "k_scale", "k_proj"},  // written by AutoFP8 and early compressed-tensors
    KvName{"output_scale", "v_proj", "v_scale", "v_proj"},
    KvName{"output_scale", "q_proj", "q_scale", "q_proj"},
    KvName{"kv_scale", "", "k_scale", "k_proj"},  // one scale for K and V, in early FP8 caches of vLLM
    KvName{"kv_scale", "", "v_scale", "v_proj"},
};

bool names_kv_scale(const KvName& kv, std::string_view name) {
    return last_name(name) == kv.last && (kv.holder.empty() || last_name(parent_name(name)) == kv.holder);
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::vector<std::string> Catalog::quantized_modules() const {
    std::vector<std::string> modules;
    std::unordered_set<std::string_view> seen;
    for (const ModelTensor& t : files_.tensors()) {
        const std::string& name = t.record->name;
        const std::string_view last = last_name(name), module = parent_name(name);
        const DType dtype = t.record->dtype;
        const bool codes = last == "weight" && (dtype == DType::u8 || dtype == DType::i8 || dtype == DType::f8_e4m3);
        const bool part = codes || last == "weight_packed" || last == "weight_scale" || last == "weight_scale_2" ||
                          last == "weight_scale_inv" || last == "weight_global_scale";
        if (part && !taken_.contains(&t) && !module.empty() && seen.insert(module).second) modules.emplace_back(module);
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

const ModelTensor* Catalog::find(std::string_view module, std::string_view suffix) const {
    return files_.find(join(module, suffix));
}

const ModelTensor* Catalog::find_part(std::string_view module, const StoredPart& part) const {
    if (const ModelTensor* t = find(module, part.suffix)) return t;
    for (std::string_view name : other_names(part))
        if (const ModelTensor* t = find(module, name)) return t;
    return nullptr;
}

Result<const ModelTensor*> Catalog::take_part(std::string_view module, const StoredPart& part, std::string_view says) {
    const ModelTensor* t = find_part(module, part);
    if (!t) return fail("{}: is missing, and {} needs it", show_name(join(module, part.suffix)), says);
    const std::string where = fmt::format("{}: {}", file_of(*t), show_name(t->record->name));
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
    widen_scales(tensor.record->dtype, tensor.record->data.data(), {&x, 1});
    const float scale = divides ? 1.0f / x : x;
    if (scales_ == ScaleReading::raw) return scale;
    if (!is_finite(x) || !(x > 0.0f) || !is_finite(scale) || !(scale > 0.0f))
        return fail("{}: {}: value {} is not a usable scale (finite and above zero)", file_of(tensor),
                    show_name(tensor.record->name), x);
    return scale;
}

Status Catalog::take_input_scale(std::string_view module, const StoredPart& part, std::string_view says,
                                 CheckpointTensor& tensor) {
    InputScales& inputs = inputs_[std::string(says)];
    if (!find_part(module, part)) {
        if (inputs.missing++ == 0) inputs.first_missing = join(module, part.suffix);
        tensor.activation = ActivationFormat::none;
        return Ok{};
    }
    ++inputs.stored;
    NIBBLE_TRY(const ModelTensor* stored, take_part(module, part, says));
    tensor.stored_bytes += static_cast<int64_t>(stored->record->data.size());
    NIBBLE_TRY(tensor.input_scale, read_scalar(*stored, part.divides));
    return Ok{};
}

Status Catalog::take_quantized(std::string_view module, Scheme scheme, std::string_view stored_type,
                               std::string_view says) {
    // The codes are found first, because their shape determines all others.
    const auto probe = stored_parts(dialect_, scheme, false, 1, 128).front();
    const std::string codes_name = join(module, probe.suffix);
    const ModelTensor* codes = files_.find(codes_name);
    if (!codes) return fail("{}: is missing, and {} needs it", show_name(codes_name), says);
    if (codes->record->shape.size() != 2)
        return fail("{}: {}: shape {}, but {} needs a matrix", file_of(*codes), show_name(codes_name),
                    shape_text(codes->record->shape), says);
    const int64_t rows = codes->record->shape[0], stored_cols = codes->record->shape[1];
    const FormatLayout layout = format_layout(scheme.format);
    const auto cols = checked_mul<int64_t>(stored_cols, layout.integers ? 8 : layout.code_bits == 4 ? 2 : 1);
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
    const bool static_inputs = stores_input_scale(scheme.activation);
    for (const StoredPart& part : stored_parts(dialect_, scheme, static_inputs, rows, *cols)) {
        if (part.part == Part::input_scale) {
            NIBBLE_CHECK(take_input_scale(module, part, says, t));
            continue;
        }
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
            case Part::input_scale:
            case Part::shape:
                break;
        }
    }
    if (!static_inputs) leave_out_inputs(module);
    entries_.push_back(std::move(entry));
    return Ok{};
}

void Catalog::leave_out_inputs(std::string_view module) {
    for (std::string_view name : {"input_scale", "input_global_scale", "input_scale_ub", "activation_scale"})
        if (const ModelTensor* t = find(module, name); t && taken_.insert(t).second) ++unused_input_scales_;
}

void Catalog::add_excluded(std::string_view module) {
    if (excluded_++ == 0) first_excluded_ = module;
}

Status Catalog::take_zero_points() {
    for (const ModelTensor& t : files_.tensors()) {
        const std::string_view last = last_name(t.record->name);
        if (last != "weight_zero_point" && last != "input_zero_point" && last != "output_zero_point") continue;
        if (taken_.contains(&t)) continue;
        if (!std::ranges::all_of(t.record->data, [](std::byte b) { return b == std::byte{0}; }))
            return fail("{}: {}: has a zero point other than 0, but the scheme is symmetric", file_of(t),
                        show_name(t.record->name));
        taken_.insert(&t);
    }
    return Ok{};
}

Status Catalog::take_kv_scales(std::optional<KvFormat> said) {
    bool any = false;
    for (const ModelTensor& t : files_.tensors()) {
        const std::string& name = t.record->name;
        for (const KvName& kv : kv_names) {
            if (!names_kv_scale(kv, name)) continue;
            const std::string where = fmt::format("{}: {}", file_of(t), show_name(name));
            if (said == KvFormat::none)
                return fail("{}: a KV cache scale, but the configuration names no KV cache format", where);
            if (!is_scale_dtype(t.record->dtype))
                return fail("{}: dtype {}, a KV cache scale needs F32 or BF16", where, dtype_name(t.record->dtype));
            if (!same_but_ones(t.record->shape, {}))
                return fail("{}: shape {}, only one KV cache scale per layer is known", where,
                            shape_text(t.record->shape));
            NIBBLE_TRY(const float checked, read_scalar(t, false));
            static_cast<void>(checked);

            // The scales belong to the attention module in compressed-tensors and to the projection in Model Optimizer.
            const std::string_view parent = parent_name(name);
            std::string canonical = join(parent, kv.scale);
            if (last_name(parent) != kv.projection) {
                const std::string projection = join(parent, kv.projection);
                if (files_.find(join(projection, "weight")) || files_.find(join(projection, "weight_packed")))
                    canonical = join(projection, kv.scale);
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
    }
    kv_ = said.value_or(any ? KvFormat::fp8 : KvFormat::none);
    // Formats without stored scales are casts; engines assume scale 1.
    if (!any && kv_ == KvFormat::fp8) kv_ = KvFormat::fp8_cast;
    if (!any && kv_ == KvFormat::nvfp4) kv_ = KvFormat::nvfp4_cast;
    return Ok{};
}

void Catalog::add_experts(const ModelTensor& t, const ExpertStack& stack,
                          const std::function<bool(std::string_view module)>& listed) {
    const bool all_listed = listed(stack.experts);
    for (ExpertMatrix& m : expert_matrices(stack, t.record->shape)) {
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

void Catalog::take_grid(std::string_view module, CodeGrid grid, std::string_view stored_type,
                        std::span<const ModelTensor* const> parts, bool turned) {
    CatalogEntry entry{.data = parts.front()};
    entry.matrix.turned = turned;
    entry.tensor = {.name = join(module, "weight"),
                    .shape = {turned ? grid.cols : grid.rows, turned ? grid.rows : grid.cols},
                    .dtype = DType::bf16,
                    .listed_module = true,  // if written in BF16, excluded-module lists must name it
                    .file = file_of(*parts.front()),
                    .stored_type = std::string(stored_type)};
    for (const ModelTensor* part : parts) {
        entry.tensor.stored_bytes += static_cast<int64_t>(part->record->data.size());
        taken_.insert(part);
    }
    entry.grid = std::make_shared<const CodeGrid>(std::move(grid));
    entries_.push_back(std::move(entry));
    leave_out_inputs(module);
}

std::vector<std::string> Catalog::stacked_modules() const {
    std::vector<std::string> modules;
    for (const CodeStack& stack : stacks_) {
        modules.emplace_back(module_of_tensor(stack.name));
    }
    return modules;
}

// Adds a stack of codes as one matrix of all experts' rows. Stacks without a Format are decoded.
Status Catalog::add_stack_matrix(CodeStack stack, CatalogEntry entry) {
    const auto shape = stack.shape();  // [experts, inputs, outputs]
    CheckpointTensor& t = entry.tensor;
    t.shape = {shape[0] * shape[2], shape[1]};
    t.experts = shape[0];
    if (stack.format == Format::none) {
        if (stack.input_scale) ++stack_input_scales_;
        entry.matrix.turned = !stack.turned;
        entries_.push_back(std::move(entry));
        return Ok{};
    }
    entry.grid = nullptr;
    t.dtype = decoded_;
    t.format = stack.format;
    t.activation = stack.activation;
    t.listed_module = false;
    entry.block_scales = stack.block_scales;
    entry.tensor_scale = stack.tensor_scale;
    entry.stride = stack.turned ? 0 : shape[2];
    if (stores_input_scale(t.activation)) {
        InputScales& inputs = inputs_[fmt::format("stacks of experts in {}", stack.stored_type)];
        if (stack.input_scale) {
            ++inputs.stored;
            NIBBLE_TRY(t.input_scale, read_scalar(*stack.input_scale, false));
        } else {
            if (inputs.missing++ == 0) inputs.first_missing = t.name + "_input_scale";
            t.activation = ActivationFormat::none;
        }
    } else if (stack.input_scale) {
        ++unused_input_scales_;
    }
    entries_.push_back(std::move(entry));
    return Ok{};
}

// `experts`: how the stack is split; null: its kind of experts is unknown.
Status Catalog::add_code_stack(CodeStack stack, const ExpertStack* experts) {
    const auto shape = stack.shape();
    CatalogEntry entry{.data = stack.codes};
    entry.tensor = {.name = stack.name,
                    .shape = shape,
                    .dtype = DType::bf16,
                    .listed_module = true,  // if written in BF16, excluded-module lists must name it
                    .file = file_of(*stack.codes),
                    .stored_bytes = stack.stored_bytes,
                    .stored_type = std::string(stack.stored_type)};
    entry.grid = std::make_shared<const CodeGrid>(stack.grid);
    if (experts && experts->whole.empty() && experts->matrix)
        return add_stack_matrix(std::move(stack), std::move(entry));
    if (stack.input_scale) ++stack_input_scales_;
    if (!experts || !experts->whole.empty()) {
        entry.tensor.whole = experts ? experts->whole : "a stack of quantized matrices that nibble does not know";
        entry.matrix.turned = stack.turned;
        entries_.push_back(std::move(entry));
        return Ok{};
    }
    const auto matrices = expert_matrices(*experts, shape);
    for (const ExpertMatrix& m : matrices) {
        entry.tensor.name = m.name;
        entry.tensor.shape = {m.rows, m.cols};
        entry.tensor.stored_bytes = stack.stored_bytes / std::ssize(matrices);
        entry.matrix = {m.expert, m.row, experts->transposed};
        entries_.push_back(entry);
    }
    return Ok{};
}

Status Catalog::take_plain(const std::function<bool(std::string_view module)>& listed, const Json& config,
                           StackReading reading) {
    std::vector<StackTensor> candidates;
    for (const ModelTensor& t : files_.tensors())
        if (!taken_.contains(&t) && is_plain_float(t.record->dtype))
            candidates.push_back({&t, t.record->name, t.record->shape});
    for (const CodeStack& s : stacks_) candidates.push_back({s.codes, s.name, s.shape(), true, s.turned});
    const auto stacks = find_expert_stacks(candidates, files_, config, reading);
    for (CodeStack& s : stacks_) {
        const auto at = stacks.find(s.codes);
        NIBBLE_CHECK(add_code_stack(std::move(s), at == stacks.end() ? nullptr : &at->second));
    }
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
        const bool known = stack != stacks.end() && stack->second.whole.empty();
        if (known && !stack->second.matrix) {
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
        if (known) {
            entry.tensor.shape = {r.shape[0] * r.shape[2], r.shape[1]};
            entry.tensor.experts = r.shape[0];
            entry.tensor.listed_module = listed(module_of_tensor(r.name));
            entry.stride = r.shape[2];
        }
        entries_.push_back(std::move(entry));
    }
    return Ok{};
}

// Compares the tensors' input scales with the configuration.
Status Catalog::check_inputs() {
    for (const auto& [says, inputs] : inputs_) {
        if (inputs.missing && inputs.stored)
            return fail("{}: is missing, and {} needs it; {} of {} matrices have theirs",
                        show_name(inputs.first_missing), says, inputs.stored, inputs.stored + inputs.missing);
        if (inputs.missing)
            add_note(fmt::format("no input scale is stored for {} matrices of {}: their inputs stay unquantized",
                                 inputs.missing, says));
    }
    if (unused_input_scales_)
        add_note(fmt::format("{} stored input scales are ignored: the configuration does not use them",
                             unused_input_scales_));
    if (stack_input_scales_)
        add_note(
            fmt::format("{} stacks of quantized experts are decoded to BF16 when read: their input scales are ignored",
                        stack_input_scales_));
    if (excluded_)
        add_note(fmt::format("{}{} quantized, but the list of unquantized modules names {}: the stored tensors decide",
                             show_name(first_excluded_),
                             excluded_ == 1 ? " is" : fmt::format(" and {} other modules are", excluded_ - 1),
                             excluded_ == 1 ? "it" : "them"));
    return Ok{};
}

Result<std::vector<CatalogEntry>> Catalog::finish() {
    NIBBLE_CHECK(check_inputs());
    // the data pointers are elements of one array in file order
    std::ranges::stable_sort(entries_, {}, [](const CatalogEntry& e) { return e.data; });
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
