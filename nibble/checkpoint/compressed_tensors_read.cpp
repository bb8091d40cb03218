// Reads compressed-tensors checkpoints: finds the group of each module.
#include "architecture/config_json.h"
#include "checkpoint/compressed_tensors_config.h"
#include "checkpoint/hf_catalog.h"
#include "checkpoint/quant_keys.h"
#include "checkpoint/scale_values.h"
#include "formats/int4.h"
#include "io/json_events.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace nibble {
namespace {

struct Group {
    std::string name;
    CompressedTensorsScheme scheme;
    ModuleTargets targets;
};

Result<std::vector<Group>> parse_groups(const Json& section) {
    const auto groups = section.find("config_groups");
    if (groups == section.end() || !groups->is_object() || groups->empty())
        return fail("config_groups: must be an object with at least one group");
    const Json outer = section.contains("format") ? section["format"] : Json();
    std::vector<Group> parsed;
    for (const auto& [name, group] : groups->items()) {
        const std::string where = fmt::format("config_groups: {}", show_name(name));
        NIBBLE_TRY(const auto scheme, parse_group(group, outer).within(where));
        NIBBLE_TRY(const auto list, read_names(group, "targets").within(where));
        if (list.empty()) return fail("{}: targets: is empty", where);
        NIBBLE_TRY(auto targets, ModuleTargets::make(list).within(where));
        // A target without a dot may be a module at the top level (lm_head) or an unknown class; this is decided when
        // the tensors are matched.
        parsed.push_back({name, scheme, std::move(targets)});
    }
    return parsed;
}

Result<KvFormat> parse_kv(const Json& section) {
    const auto at = section.find("kv_cache_scheme");
    if (at == section.end() || at->is_null()) return KvFormat::none;
    if (!at->is_object()) return fail("kv_cache_scheme: must be an object, found {}", show_value(*at));
    const auto is = [&](const char* key, const Json& want, bool required) {
        return at->contains(key) ? (*at)[key] == want : !required;
    };
    if (is("num_bits", 8, true) && is("type", "float", true) && is("strategy", "tensor", true) &&
        is("dynamic", false, false) && is("symmetric", true, false))
        return KvFormat::fp8;
    return fail("kv_cache_scheme: {} is not known, only 8-bit float, one static scale per layer", show_value(*at));
}

int64_t shape_number(const TensorRecord& r, size_t i) {
    int64_t wide = 0;
    int32_t narrow = 0;
    if (r.dtype == DType::i64) return std::memcpy(&wide, r.data.data() + i * 8, 8), wide;
    return std::memcpy(&narrow, r.data.data() + i * 4, 4), int64_t{narrow};
}

// Returns whether Format::int4 holds the module's integers as they are stored.
bool is_int4(std::string_view module, const IntegerCodes& integers, const Catalog& catalog) {
    if (integers.bits != 4 || integers.group != int4_group || !integers.symmetric) return false;
    const ModelTensor* codes = catalog.find(module, "weight_packed");
    const ModelTensor* scales = catalog.find(module, "weight_scale");
    const ModelTensor* shape = catalog.find(module, "weight_shape");
    if (!codes || !scales || !shape) return false;
    const TensorRecord &c = *codes->record, &s = *scales->record, &n = *shape->record;
    return c.dtype == DType::i32 && c.shape.size() == 2 && c.shape[0] > 0 && c.shape[1] > 0 && !c.data.empty() &&
           c.shape[1] % (int4_group / 8) == 0 && s.dtype == DType::bf16 &&
           s.shape == std::vector{c.shape[0], c.shape[1] / (int4_group / 8)} && n.dtype == DType::i64 &&
           n.shape == std::vector<int64_t>{2} && shape_number(n, 0) == c.shape[0] &&
           shape_number(n, 1) == c.shape[1] * 8;
}

// Takes one matrix of integers: weight_packed (I32, each holds 32 / bits codes, the first in the lowest bits) or weight
// (I8), and weight_scale. weight_shape is needed because the last I32 of a row may be partly filled.
Status take_integers(std::string_view module, const IntegerCodes& integers, std::string_view says, Catalog& catalog) {
    const ModelTensor* packed = catalog.find(module, "weight_packed");
    const ModelTensor* codes = packed ? packed : catalog.find(module, "weight");
    const ModelTensor* scales = catalog.find(module, "weight_scale");
    const ModelTensor* shape = catalog.find(module, "weight_shape");
    for (const auto& [part, name] : {std::pair(codes, packed ? "weight_packed" : "weight"), {scales, "weight_scale"}})
        if (!part) return fail("{}: is missing, and {} needs it", show_name(fmt::format("{}.{}", module, name)), says);
    const TensorRecord& c = *codes->record;
    const TensorRecord& s = *scales->record;
    const auto misfit = [&](const TensorRecord& r) {
        return fail("{}: {}: {} {} does not fit {} of {} bits", catalog.file_of(*codes), show_name(r.name),
                    dtype_name(r.dtype), shape_text(r.shape), says, integers.bits);
    };
    if (c.shape.size() != 2 || c.data.empty() || c.shape[1] > INT64_MAX / 32 ||
        (packed ? c.dtype != DType::i32 && c.dtype != DType::u32 : c.dtype != DType::i8))
        return misfit(c);
    CodeGrid grid{.codes = c.data,
                  .bits = packed ? integers.bits : 8,
                  .values = !packed              ? int8_code_values()
                            : integers.bits == 4 ? int4_code_values()
                                                 : uint8_code_values(),
                  .rows = c.shape[0],
                  .cols = packed ? c.shape[1] * 32 / integers.bits : c.shape[1],
                  .row_bytes = c.shape[1] * dtype_bytes(c.dtype),
                  .scales = s.data,
                  .scale_dtype = s.dtype};
    std::vector<const ModelTensor*> parts{codes, scales};
    if (shape) {
        const TensorRecord& r = *shape->record;
        if ((r.dtype != DType::i64 && r.dtype != DType::i32) || r.shape != std::vector<int64_t>{2}) return misfit(r);
        const int64_t filled = grid.cols;
        if (shape_number(r, 0) != grid.rows || shape_number(r, 1) > filled ||
            shape_number(r, 1) <= filled - 32 / integers.bits)
            return misfit(r);
        grid.cols = shape_number(r, 1);
        parts.push_back(shape);
    }
    std::vector<int64_t> have = s.shape;
    std::erase(have, 1);
    const int64_t groups = integers.group ? ceil_div(grid.cols, integers.group) : 1;
    std::vector<int64_t> want{grid.rows, groups};
    std::erase(want, 1);
    const bool per_row = have == want;
    if (!is_scale_dtype(s.dtype) || (!per_row && (integers.group || !have.empty()))) return misfit(s);
    grid.scale_rows = per_row ? grid.rows : 1;
    grid.scale_cols = groups;
    grid.block_rows = per_row ? 1 : grid.rows;
    grid.block_cols = integers.group ? integers.group : grid.cols;
    if (!integers.symmetric) {  // unsigned codes, packed along the outputs
        const ModelTensor* zeros = catalog.find(module, "weight_zero_point");
        if (!zeros || !packed)
            return fail("{}: needs packed codes and weight_zero_point: {} is not symmetric", show_name(module), says);
        const TensorRecord& z = *zeros->record;
        const int64_t together = 32 / integers.bits;
        if ((z.dtype != DType::i32 && z.dtype != DType::u32) || !per_row ||
            z.shape != std::vector{ceil_div(grid.rows, together), groups})
            return misfit(z);
        grid.zeros = {.codes = z.data, .order = CodeOrder::words_down, .row_bytes = groups * 4, .added = 0};
        parts.push_back(zeros);
    }
    catalog.take_grid(module, std::move(grid), integers.bits == 4 ? "INT4" : "INT8", parts);
    return Ok{};
}

}  // namespace

Result<ListedModule> read_compressed_tensors(const Json& quantization, Catalog& catalog) {
    const std::string where = "config.json: quantization_config";
    NIBBLE_CHECK(refuse_changing_keys(quantization, "").within(where));
    NIBBLE_TRY(auto groups, parse_groups(quantization).within(where));
    NIBBLE_TRY(const auto ignore, read_names(quantization, "ignore").within(where));
    NIBBLE_TRY(auto ignored, ModuleTargets::make(ignore).within(where + ": ignore"));
    NIBBLE_TRY(const KvFormat kv, parse_kv(quantization).within(where));

    NIBBLE_CHECK(catalog.take_stacked_codes());
    const auto modules = catalog.quantized_modules();
    for (const std::string& module : modules) {
        NIBBLE_TRY(const auto exception, ignored.match(module).within(where + ": ignore"));
        if (exception < ModuleTargets::by_class) catalog.add_excluded(module);
        const Group* group = nullptr;
        auto best = ModuleTargets::not_meant;
        for (const Group& g : groups) {
            NIBBLE_TRY(const auto kind, g.targets.match(module).within(where));
            if (kind >= best) continue;
            best = kind;
            group = &g;
        }
        if (!group) return fail("{}: no group's targets match {}, which is quantized", where, show_name(module));
        const std::string says = fmt::format("{} (format {})", show_name(group->name), group->scheme.format);
        if (group->scheme.integers && is_int4(module, *group->scheme.integers, catalog)) {
            NIBBLE_CHECK(catalog.take_quantized(module, {Format::int4, ActivationFormat::none}, "INT4", says));
            continue;
        }
        if (group->scheme.integers) {
            NIBBLE_CHECK(take_integers(module, *group->scheme.integers, says, catalog));
            continue;
        }
        NIBBLE_CHECK(catalog.take_quantized(module, group->scheme.scheme, group->scheme.format, says));
    }
    const std::set<std::string_view> quantized(modules.begin(), modules.end());
    for (const Group& g : groups)
        for (const std::string& name : g.targets.names())
            if (!quantized.contains(name))
                return fail(
                    "{}: {}: target {}: no quantized module has this name, and \"Linear\" is the only class "
                    "known",
                    where, show_name(g.name), show_name(name));
    // Older files have no kv_cache_scheme; they quantize the outputs of k_proj and v_proj instead.
    const bool outputs = std::ranges::any_of(groups, [](const Group& g) { return g.scheme.static_outputs; });
    NIBBLE_CHECK(catalog.take_kv_scales(kv == KvFormat::none && outputs ? std::nullopt : std::optional(kv)));
    NIBBLE_CHECK(catalog.take_zero_points());
    // A module that belongs to no group stays unquantized without being listed.
    const auto asked = [](const std::vector<Group>& all, std::string_view module) -> Result<bool> {
        for (const Group& g : all) {
            NIBBLE_TRY(const auto kind, g.targets.match(module));
            if (kind != ModuleTargets::not_meant) return true;
        }
        return false;
    };
    // Patterns that need too many steps are errors here, where all names of the files are matched. Below, such a
    // pattern counts as not matching.
    for (const std::string_view module : catalog.modules()) {
        if (quantized.contains(module)) continue;
        NIBBLE_CHECK(ignored.match(module).within(where + ": ignore"));
        NIBBLE_CHECK(asked(groups, module).within(where));
    }
    struct Lists {
        std::vector<Group> groups;
        ModuleTargets ignored;
    };
    const auto lists = std::make_shared<const Lists>(Lists{std::move(groups), std::move(ignored)});
    return ListedModule([lists, asked](std::string_view module) {
        const auto wanted = asked(lists->groups, module), named = lists->ignored.means(module);
        return (wanted.ok() && !*wanted) || (named.ok() && *named);
    });
}

}  // namespace nibble
