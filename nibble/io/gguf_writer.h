// Writes GGUF version 3 in two phases: the layout (all metadata, names and sizes, so the exact header and every offset)
// first, then the bytes, in any order, from any thread, across restarts.
//
//   NIBBLE_TRY(auto layout, GgufLayout::make(metadata, {{"blk.0.ffn_up.weight", GgmlType::nvfp4, {128, 64}}}));
//   NIBBLE_TRY(auto writer, GgufFileWriter::create("out.gguf.part", std::move(layout)));
//   NIBBLE_CHECK(writer.write(0, 0, blocks));
//   NIBBLE_CHECK(writer.finish());
//
// Tensors lie in the order of the list, each padded with zeros to the alignment, the last one too.
#pragma once

#include "io/gguf.h"
#include "io/tensor_file_writer.h"

namespace nibble {

struct GgufTensorSpec {
    std::string name;
    GgmlType type = GgmlType::f32;
    std::vector<int64_t>
        shape;  // Hugging Face order, written reversed; leading dimensions of 1 are dropped, as ggml does
};

class GgufLayout : public TensorFileLayout<GgufTensorSpec> {
public:
    // Copies what it needs of the metadata: views in arrays may die afterwards. The alignment is 32 unless the metadata
    // holds general.alignment. Errors: an empty key, a tensor name twice or over 63 bytes, a shape outside 1 to 4
    // positive dimensions, rows that are not whole blocks, overflow.
    static Result<GgufLayout> make(const GgufMetadata& metadata, std::vector<GgufTensorSpec> tensors);

private:
    GgufLayout() = default;
};

using GgufFileWriter = TensorFileWriter<GgufLayout>;

}  // namespace nibble
