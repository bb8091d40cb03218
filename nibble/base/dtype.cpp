#include "base/dtype.h"

#include <array>

namespace nibble {
namespace {

struct Row {
    DType dtype;
    int bytes;
    std::string_view name, torch;
};

constexpr std::array rows{
    Row{DType::boolean, 1, "BOOL", "bool"},
    Row{DType::u8, 1, "U8", "uint8"},
    Row{DType::i8, 1, "I8", "int8"},
    Row{DType::f8_e4m3, 1, "F8_E4M3", "float8_e4m3fn"},
    Row{DType::f8_e5m2, 1, "F8_E5M2", "float8_e5m2"},
    Row{DType::f8_e8m0, 1, "F8_E8M0", "float8_e8m0fnu"},
    Row{DType::i16, 2, "I16", "int16"},
    Row{DType::u16, 2, "U16", "uint16"},
    Row{DType::f16, 2, "F16", "float16"},
    Row{DType::bf16, 2, "BF16", "bfloat16"},
    Row{DType::i32, 4, "I32", "int32"},
    Row{DType::u32, 4, "U32", "uint32"},
    Row{DType::f32, 4, "F32", "float32"},
    Row{DType::i64, 8, "I64", "int64"},
    Row{DType::u64, 8, "U64", "uint64"},
    Row{DType::f64, 8, "F64", "float64"},
};

const Row& row(DType dtype) { return rows[static_cast<size_t>(dtype)]; }

constexpr bool rows_in_enum_order() {
    for (size_t i = 0; i < rows.size(); ++i)
        if (static_cast<size_t>(rows[i].dtype) != i) return false;
    return true;
}
static_assert(rows_in_enum_order());

}  // namespace

int dtype_bytes(DType dtype) { return row(dtype).bytes; }
std::string_view dtype_name(DType dtype) { return row(dtype).name; }
std::string_view dtype_torch_name(DType dtype) { return row(dtype).torch; }

std::optional<DType> dtype_from_name(std::string_view name) {
    for (const Row& r : rows)
        if (r.name == name) return r.dtype;
    return std::nullopt;
}

std::optional<DType> dtype_from_torch_name(std::string_view name) {
    if (name.starts_with("torch.")) name.remove_prefix(6);
    for (const Row& r : rows)
        if (r.torch == name) return r.dtype;
    return std::nullopt;
}

bool is_plain_float(DType dtype) {
    return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32 || dtype == DType::f64;
}

}  // namespace nibble
