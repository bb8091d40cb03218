// Reads quant_method gptq (AutoGPTQ, GPTQModel) and awq (AutoAWQ): integer codes in 32-bit words, with one scale and
// one zero point for a group of inputs and each output. They are decoded to BF16 when they are read.
//
//             P.qweight                        P.qzeros                      P.scales             P.g_idx
//   gptq      [in * bits / 32, out]            [groups, out * bits / 32]     [groups, out]        [in], optional
//   awq       [in, out / 8], columns in the    [groups, out / 8], the same   [groups, out]        -
//             order 0, 2, 4, 6, 1, 3, 5, 7     order
//
// Zero points of checkpoint_format "gptq" are stored minus one, those of "gptq_v2" and awq as they are.
#include "architecture/config_json.h"
#include "checkpoint/exclude_modules.h"
#include "checkpoint/hf_catalog.h"
#include "checkpoint/quant_keys.h"
#include "checkpoint/scale_values.h"
#include "io/json_events.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace nibble {
namespace {

constexpr std::string_view int4_section = "config.json: quantization_config";

struct Int4Config {
    int bits = 4;
    int64_t group = 0;  // 0: all inputs
    bool awq = false;
    int added = 0;  // to stored zero points
};

Result<int64_t> whole_number(const Json& section, const char* key, int64_t otherwise) {
    const auto at = section.find(key);
    if (at == section.end() || at->is_null()) return otherwise;
    if (!at->is_number_integer()) return fail("{}: must be a whole number, found {}", key, show_value(*at));
    return at->get<int64_t>();
}

Result<std::string> lower_word(const Json& section, const char* key, std::string otherwise) {
    const auto at = section.find(key);
    if (at == section.end() || at->is_null()) return otherwise;
    if (!at->is_string()) return fail("{}: must be a name, found {}", key, show_value(*at));
    std::string word = at->get<std::string>();
    std::ranges::transform(word, word.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    return word;
}

Result<Int4Config> parse_int4(Json section, bool awq) {
    Int4Config config{.awq = awq};
    NIBBLE_TRY(const int64_t bits, whole_number(section, "bits", 4));
    if (bits != 4 && (awq || bits != 8)) return fail("bits: {} is not known", bits);
    config.bits = static_cast<int>(bits);
    NIBBLE_TRY(const int64_t group, whole_number(section, "group_size", 128));
    if (group < -1 || group == 0 || group > (1 << 20)) return fail("group_size: {} is not known", group);
    config.group = std::max<int64_t>(group, 0);
    const std::string key = awq ? "version" : "checkpoint_format";
    NIBBLE_TRY(const std::string layout, lower_word(section, key.c_str(), awq ? "gemm" : "gptq"));
    if (awq ? layout != "gemm" : layout != "gptq" && layout != "gptq_v2")
        return fail("{}: {} is not known, only {}", key, show_name(layout), awq ? "gemm" : "gptq and gptq_v2");
    config.added = layout == "gptq" ? 1 : 0;
    // Settings of single modules.
    if (const auto dynamic = section.find("dynamic"); dynamic != section.end() && dynamic->is_object())
        for (const auto& [pattern, value] : dynamic->items())
            if (!pattern.starts_with("-:")) return fail("dynamic: {} is not known", show_name(pattern));
    // The tensors hold the zero points and the order of inputs.
    for (const char* known : {"zero_point", "desc_act"}) section.erase(known);
    NIBBLE_CHECK(refuse_changing_keys(section, ""));
    return config;
}

Status take_int4(std::string_view module, const Int4Config& config, Catalog& catalog) {
    const ModelTensor *codes = catalog.find(module, "qweight"), *zeros = catalog.find(module, "qzeros"),
                      *scales = catalog.find(module, "scales"), *order = catalog.find(module, "g_idx");
    for (const auto& [part, name] : {std::pair(zeros, "qzeros"), {scales, "scales"}})
        if (!part) return fail("{}.{}: is missing, and {}.qweight needs it", module, name, module);
    const auto misfit = [&](const ModelTensor& t) {
        return fail("{}: {}: {} {} does not fit {} bits in groups of {}", catalog.file_of(t), show_name(t.record->name),
                    dtype_name(t.record->dtype), shape_text(t.record->shape), config.bits, config.group);
    };
    const auto words = [](const ModelTensor& t) {
        const TensorRecord& r = *t.record;
        return r.shape.size() == 2 && (r.dtype == DType::i32 || r.dtype == DType::u32) && !r.data.empty() &&
               r.shape[0] < (int64_t{1} << 40) && r.shape[1] < (int64_t{1} << 40);
    };
    if (!words(*codes)) return misfit(*codes);
    const auto& c = codes->record->shape;
    const int64_t in_word = 32 / config.bits;
    const int64_t inputs = config.awq ? c[0] : c[0] * in_word, outputs = config.awq ? c[1] * in_word : c[1];
    const int64_t size = config.group ? config.group : inputs, groups = ceil_div(inputs, size);
    if (scales->record->shape != std::vector{groups, outputs} || !is_scale_dtype(scales->record->dtype))
        return misfit(*scales);
    if (!words(*zeros) || outputs % in_word != 0 || zeros->record->shape != std::vector{groups, outputs / in_word})
        return misfit(*zeros);
    CodeGrid grid{.codes = codes->record->data,
                  .bits = config.bits,
                  .order = config.awq ? CodeOrder::awq : CodeOrder::words_down,
                  .rows = inputs,
                  .cols = outputs,
                  .row_bytes = c[1] * 4,
                  .scales = scales->record->data,
                  .scale_dtype = scales->record->dtype,
                  .scale_rows = groups,
                  .scale_cols = outputs,
                  .block_rows = size,
                  .zeros = {.codes = zeros->record->data,
                            .order = config.awq ? CodeOrder::awq : CodeOrder::bytes,
                            .row_bytes = outputs / in_word * 4,
                            .added = config.added}};
    std::vector<const ModelTensor*> parts{codes, zeros, scales};
    if (order) {
        const TensorRecord& r = *order->record;
        if (config.awq || r.dtype != DType::i32 || r.shape != std::vector{inputs}) return misfit(*order);
        bool in_order = true;
        for (int64_t i = 0; i < inputs; ++i) {
            int32_t group = 0;
            std::memcpy(&group, r.data.data() + 4 * i, sizeof group);
            if (group < 0 || group >= groups)
                return fail("{}: {}: input {} belongs to group {} of {}", catalog.file_of(*order), show_name(r.name), i,
                            group, groups);
            in_order &= group == i / size;
        }
        if (!in_order) grid.row_groups = r.data;
        parts.push_back(order);
    }
    catalog.take_grid(module, std::move(grid), config.bits == 4 ? "INT4" : "INT8", parts, true);
    return Ok{};
}

Result<ListedModule> read_int4(const Json& quantization, Catalog& catalog, bool awq) {
    NIBBLE_TRY(const Int4Config config, parse_int4(quantization, awq).within(int4_section));
    std::unordered_set<std::string_view> seen;
    for (const std::string_view module : catalog.modules())
        if (seen.insert(module).second && catalog.find(module, "qweight"))
            NIBBLE_CHECK(take_int4(module, config, catalog));
    NIBBLE_CHECK(catalog.take_kv_scales(std::nullopt));
    return ListedModule([](std::string_view) { return true; });
}

}  // namespace

Result<ListedModule> read_gptq(const Json& quantization, Catalog& catalog) {
    return read_int4(quantization, catalog, false);
}

Result<ListedModule> read_awq(const Json& quantization, Catalog& catalog) {
    return read_int4(quantization, catalog, true);
}

}  // namespace nibble
