// Input: a safetensors file. It must be refused with a message, or every view lies in the file and lookup finds every
// name.
#include "base/checked.h"
#include "io/safetensors.h"
#include "message.h"

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const Bytes bytes = std::as_bytes(std::span(data, size));
    const auto file = SafetensorsFile::parse(bytes);
    if (!file.ok()) {
        require_message(file.error());
        return 0;
    }
    // The views tile the end of the file, and each has the size of its shape.
    const std::byte* expected = bytes.data() + bytes.size() - file->data_bytes();
    for (const TensorRecord& t : file->tensors()) {
        require(t.data.data() == expected);
        expected += t.data.size();
        require(checked_elements(t.shape).value() * dtype_bytes(t.dtype) == static_cast<int64_t>(t.data.size()));
        require(file->find(t.name) == &t);
    }
    require(expected == bytes.data() + bytes.size());
    return 0;
}
