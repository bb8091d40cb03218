// Writes safetensors files in two phases: the layout (all names and sizes, so the exact header and every offset) first,
// then the bytes, in any order, from any thread, across restarts.
//
//   NIBBLE_TRY(auto layout, SafetensorsLayout::make({{"w", DType::bf16, {4, 8}}, {"b", DType::f32, {4}}}));
//   NIBBLE_TRY(auto writer, SafetensorsFileWriter::create("out.safetensors.part", std::move(layout)));
//   NIBBLE_CHECK(writer.write(0, 0, weight_bytes));  // 0: the place in the list, wherever the data lies in the file
//   NIBBLE_CHECK(writer.write(1, 0, bias_bytes));
//   NIBBLE_CHECK(writer.finish());                   // then rename_durably() of io/atomic_file.h
//
// The files equal those of the reference library (safetensors 0.8, `serialize`): tensors by dtype (U64, I64, F64, F32,
// U32, I32, BF16, F16, U16, I16, F8_E8M0, F8_E4M3, F8_E5M2, I8, U8, BOOL), then by name in byte order; compact JSON,
// padded with spaces to a multiple of 8 bytes. One freedom: with several metadata keys the reference's order is random,
// ours is sorted.
#pragma once

#include "base/dtype.h"
#include "io/tensor_file_writer.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nibble {

struct TensorSpec {
    std::string name;
    DType dtype = DType::u8;
    std::vector<int64_t> shape;
};

class SafetensorsLayout : public TensorFileLayout<TensorSpec> {
public:
    using Metadata = std::map<std::string, std::string>;

    // Errors: a name twice, the name "__metadata__", a name that is not UTF-8, sizes that overflow, a header over the
    // limit of 100 MB. Empty metadata writes no "__metadata__".
    static Result<SafetensorsLayout> make(std::vector<TensorSpec> tensors,
                                          const Metadata& metadata = {{"format", "pt"}});

private:
    SafetensorsLayout() = default;
};

using SafetensorsFileWriter = TensorFileWriter<SafetensorsLayout>;

}  // namespace nibble
