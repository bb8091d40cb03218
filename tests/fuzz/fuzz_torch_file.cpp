// Input: a file of torch.save(), or (if it is not a ZIP archive) the pickle inside of one. It must be refused with a
// message, or every view lies in the file and has the size of its shape.
#include "base/checked.h"
#include "io/pickle.h"
#include "io/torch_file.h"
#include "message.h"

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const Bytes bytes = std::as_bytes(std::span(data, size));
    constexpr std::string_view globals[] = {"collections.OrderedDict", "torch._utils._rebuild_tensor_v2",
                                            "torch.FloatStorage"};
    if (const auto pickle = parse_pickle(bytes, globals); !pickle.ok()) require_message(pickle.error());
    const auto file = TorchFile::parse(bytes);
    if (!file.ok()) {
        require_message(file.error());
        return 0;
    }
    for (const TensorRecord& t : file->tensors()) {
        require(checked_elements(t.shape).value() * dtype_bytes(t.dtype) == static_cast<int64_t>(t.data.size()));
        if (t.data.empty()) continue;
        require(t.data.data() >= bytes.data());
        require(t.data.data() + t.data.size() <= bytes.data() + bytes.size());
    }
    return 0;
}
