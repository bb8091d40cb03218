#include "checkpoint/quant_keys.h"

#include "architecture/config_json.h"
#include "io/json_events.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

// With one of these keys, a weight is no longer "code times scale" in the order of the file.
constexpr std::array<std::string_view, 22> changing{
    "has_zero_point",  "zero_point",      "pre_quant_scale", "rotation",         "rotations", "rotate",
    "hadamard",        "rotation_config", "transform",       "transform_config", "sparsity",  "sparse",
    "sparsity_config", "sparse_algo",     "desc_act",        "permutation",      "svdquant",  "lora",
    "low_rank",        "codebook",        "codebooks",       "lookup_table"};

bool is_neutral(const Json& value) {
    if (value.is_null() || value == false || value == 0 || value == "dense") return true;
    if (value.is_object() && value.value("format", Json()) == "dense") return true;
    return (value.is_object() || value.is_array() || value.is_string()) && (value.empty() || value == "");
}

}  // namespace

Status refuse_changing_keys(const Json& object, std::string_view where) {
    const auto place = [&] { return where.empty() ? std::string() : std::string(where) + ": "; };
    if (!object.is_object()) return fail("{}must be an object, found {}", place(), show_value(object));
    for (const auto& [key, value] : object.items())
        if (std::ranges::find(changing, key) != changing.end() && !is_neutral(value))
            return fail("{}{}: {} is not known to nibble, and it changes what the stored weights mean", place(),
                        show_name(key), show_value(value));
    return Ok{};
}

}  // namespace nibble
