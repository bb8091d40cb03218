// Writes safetensors files in two phases: first the layout (all names and sizes, and therefore the exact header and
// every offset), then the bytes, in any order, from any thread, across restarts.
//
//   NIBBLE_TRY(auto layout, SafetensorsLayout::make({{"w", DType::bf16, {4, 8}}, {"b", DType::f32, {4}}}));
//   NIBBLE_TRY(auto writer, SafetensorsFileWriter::create("out.safetensors.part", std::move(layout)));
//   NIBBLE_CHECK(writer.write(0, 0, weight_bytes));  // 0: the index in the list; the file may have another order
//   NIBBLE_CHECK(writer.write(1, 0, bias_bytes));
//   NIBBLE_CHECK(writer.finish());                   // then rename_durably() of io/atomic_file.h
//
// The files equal those of the reference library (safetensors 0.8, `serialize`): tensors by dtype (U64, I64, F64, F32,
// U32, I32, BF16, F16, U16, I16, F8_E8M0, F8_E4M3, F8_E5M2, I8, U8, BOOL), then by name in byte order; compact JSON,
// padded with spaces to a multiple of 8 bytes. One difference: several metadata keys are
// sorted; their order is random in the reference library.
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

    // Makes a layout. Errors: a duplicate name, the name "__metadata__", a name that is not UTF-8, sizes that overflow,
    // a header over the limit of 100 MB. Empty metadata write no "__metadata__".
    static Result<SafetensorsLayout> make(std::vector<TensorSpec> tensors,
                                          const Metadata& metadata = {{"format", "pt"}});

private:
    SafetensorsLayout() = default;
};

using SafetensorsFileWriter = TensorFileWriter<SafetensorsLayout>;

}  // namespace nibble
