// Input: a GGUF file. It must be refused with a one-line message, or every view lies in the file. The importer must
// refuse it or give complete results (names, config, tokenizer, decoded rows).
#include "base/json.h"
#include "checkpoint/gguf_import.h"
#include "message.h"

using namespace nibble;

namespace {

template <class T>
bool check(const Result<T>& result) {
    if (result.ok()) return true;
    require_message(result.error());
    return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const Bytes bytes = std::as_bytes(std::span(data, size));
    auto file = GgufFile::parse(bytes);
    if (!check(file)) return 0;
    for (const GgufTensor& t : file->tensors()) {
        require(t.data.data() >= bytes.data() && t.data.data() + t.data.size() <= bytes.data() + bytes.size());
        require(ggml_tensor_bytes(t.type, t.shape).ok());
        require(file->find_tensor(t.name) == &t);
    }
    for (const GgufKv& kv : file->metadata().entries()) {
        require(file->metadata().find(kv.key) == &kv.value);
        check(file->metadata().integers(kv.key));
        check(file->metadata().strings(kv.key));
    }
    const auto source = GgufSource::from(*std::move(file));
    if (!check(source)) return 0;
    const auto side_files = gguf_side_files(*source);
    if (check(side_files))
        for (const auto& side : *side_files) require(parse_json(side.content).ok());
    for (const GgufSourceTensor& t : source->tensors()) {
        const int64_t rows = std::min<int64_t>(t.rows(), t.shape.size() == 1 ? t.rows() : 3);
        std::vector<uint16_t> values(rows * t.cols());  // no more than the file has, at most 8 codes per byte
        check(source->read_rows_bf16(t, t.rows() - rows, t.rows(), values.data()));
    }
    return 0;
}
