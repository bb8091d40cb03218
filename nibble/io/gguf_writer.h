// Writes GGUF version 3 in two phases: first the layout (all metadata, names and sizes, and therefore the exact header
// and every offset), then the bytes, in any order, from any thread, across restarts.
//
// NIBBLE_TRY(auto layout, GgufLayout::make(metadata, {{"blk.0.ffn_up.weight", GgmlType::nvfp4, {128, 64}}}));
// NIBBLE_TRY(auto writer, GgufFileWriter::create("out.gguf.part", std::move(layout)));
// NIBBLE_CHECK(writer.write(0, 0, blocks));
// NIBBLE_CHECK(writer.finish());
//
// Tensors are stored in the order of the list. Each, including the last, is padded with zeros to the alignment.
#pragma once

#include "io/gguf.h"
#include "io/tensor_file_writer.h"

namespace nibble {

struct GgufTensorSpec {
    std::string name;
    GgmlType type = GgmlType::f32;
    std::vector<int64_t>
        shape;  // in Hugging Face order, written reversed; leading dimensions of 1 are dropped, as in ggml
};

class GgufLayout : public TensorFileLayout<GgufTensorSpec> {
public:
    // Makes a layout. Copies the metadata, so views in arrays need not outlive the call. The alignment is 32 unless the
    // metadata contain general.alignment. Errors: an empty key, a duplicate tensor name or one over 63 bytes, a shape
    // that is not 1 to 4 positive dimensions, rows that are not whole blocks, overflow.
    static Result<GgufLayout> make(const GgufMetadata& metadata, std::vector<GgufTensorSpec> tensors);

private:
    GgufLayout() = default;
};

using GgufFileWriter = TensorFileWriter<GgufLayout>;

}  // namespace nibble
