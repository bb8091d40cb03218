// Makes the quantization_config of compressed-tensors for a list of tensors, with the keys and order of version 0.20.
// scale_dtype and zp_dtype are newer than many readers, which reject unknown keys, so they are written only where they
// matter: without scale_dtype, a reader does not round the block scales of inputs (E4M3 in NVFP4, powers of two in the
// MX formats).
#include "checkpoint/compressed_tensors_config.h"
#include "checkpoint/hf_layout.h"
#include "io/json_events.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr std::string_view library_version = "0.20.0";

Json args(int bits, std::string_view strategy, Json group_size, Json dynamic) {
    Json j{{"num_bits", bits},
           {"type", "float"},
           {"symmetric", true},
           {"group_size", std::move(group_size)},
           {"strategy", strategy}};
    if (strategy == "block") j["block_structure"] = {128, 128};
    j["dynamic"] = std::move(dynamic);
    return j;
}

Json nvfp4_input_args() {
    Json j = args(4, "tensor_group", 16, "local");
    j["scale_dtype"] = "torch.float8_e4m3fn";
    return j;
}

// Arguments for blocks of 32 with E8M0 scales.
Json mx_args(int bits, bool dynamic) {
    Json j = args(bits, "group", 32, dynamic);
    j["scale_dtype"] = "torch.uint8";
    j["zp_dtype"] = "torch.uint8";
    return j;
}

Json weight_args(Format format) {
    switch (format) {
        case Format::nvfp4:
            return args(4, "tensor_group", 16, false);
        case Format::fp8:
            return args(8, "tensor", nullptr, false);
        case Format::fp8_row:
            return args(8, "channel", nullptr, false);
        case Format::fp8_block128:
            return args(8, "block", nullptr, false);
        case Format::mxfp4:
            return mx_args(4, false);
        case Format::mxfp8:
            return mx_args(8, false);
        case Format::int4: {
            Json j = args(4, "group", 128, false);
            j["type"] = "int";
            return j;
        }
        case Format::nvfp4_bs32:
        case Format::none:
            break;  // these formats have no compressed_tensors_format()
    }
    __builtin_unreachable();
}

Json input_args(ActivationFormat activation) {
    switch (activation) {
        case ActivationFormat::none:
            return nullptr;
        case ActivationFormat::nvfp4:
            return nvfp4_input_args();
        case ActivationFormat::fp8:
            return args(8, "tensor", nullptr, false);
        case ActivationFormat::fp8_token:
            return args(8, "token", nullptr, true);
        case ActivationFormat::fp8_group128:
            return args(8, "group", 128, true);
        case ActivationFormat::mxfp4:
            return mx_args(4, true);
        case ActivationFormat::mxfp8:
            return mx_args(8, true);
    }
    __builtin_unreachable();
}

struct SchemeModules {
    Scheme scheme;
    std::string_view format;
    std::vector<std::string> modules;
};

Result<std::vector<SchemeModules>> group_modules(const ExportSpec& spec) {
    std::vector<SchemeModules> groups;  // in order of first appearance
    for (const ExportTensor& t : spec.tensors) {
        if (t.format == Format::none) continue;
        if (t.experts)
            return fail("{}: compressed-tensors has no stacks of experts: use --format modelopt", show_name(t.name));
        const Scheme scheme{t.format, t.activation};
        const std::string_view format = compressed_tensors_format(scheme);
        if (format.empty())
            return fail("{}: compressed-tensors has no {} weights with {} inputs", show_name(t.name),
                        format_name(t.format),
                        t.activation == ActivationFormat::none ? "unquantized" : activation_name(t.activation));
        auto at = std::ranges::find(groups, scheme, &SchemeModules::scheme);
        if (at == groups.end()) at = groups.insert(at, {scheme, format, {}});
        at->modules.emplace_back(module_of_weight(t.name));
    }
    return groups;
}

Result<Json> kv_scheme(KvFormat kv) {
    switch (kv) {
        case KvFormat::none:
            return Json(nullptr);
        case KvFormat::fp8:
        case KvFormat::fp8_cast:
            return args(8, "tensor", nullptr, false);
        case KvFormat::nvfp4:
        case KvFormat::nvfp4_cast:
        case KvFormat::fp8_page:
            return fail("compressed-tensors has no settled form for the KV cache format {}", kv_name(kv));
    }
    __builtin_unreachable();
}

}  // namespace

Result<Json> compressed_tensors_section(const ExportSpec& spec) {
    NIBBLE_TRY(auto groups, group_modules(spec));
    if (groups.empty()) return fail("no tensor is quantized: the format of the output must be plain");
    NIBBLE_TRY(auto kv, kv_scheme(spec.kv));
    // A single group targets every linear except the ignored ones; several groups list their modules.
    const bool one = groups.size() == 1;
    Json config_groups = Json::object();
    bool same_format = true;
    for (size_t i = 0; i < groups.size(); ++i) {
        SchemeModules& g = groups[i];
        same_format &= g.format == groups[0].format;
        std::ranges::sort(g.modules);
        config_groups[fmt::format("group_{}", i)] = {{"targets", one ? Json::array({"Linear"}) : Json(g.modules)},
                                                     {"weights", weight_args(g.scheme.format)},
                                                     {"input_activations", input_args(g.scheme.activation)},
                                                     {"output_activations", nullptr},
                                                     {"format", g.format}};
    }
    return Json{{"config_groups", std::move(config_groups)},
                {"format", same_format ? groups[0].format : std::string_view("mixed-precision")},
                {"global_compression_ratio", nullptr},
                {"ignore", unquantized_modules(spec)},
                {"kv_cache_scheme", std::move(kv)},
                {"quant_method", "compressed-tensors"},
                {"quantization_status", "compressed"},
                {"sparsity_config", Json::object()},
                {"transform_config", Json::object()},
                {"version", library_version}};
}

}  // namespace nibble
