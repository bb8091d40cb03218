#include "checkpoint/checkpoint.h"

#include "base/model_place.h"
#include "checkpoint/export.h"

namespace nibble {

std::string_view dialect_name(Dialect dialect) {
    switch (dialect) {
        case Dialect::plain:
            return "plain";
        case Dialect::modelopt:
            return "modelopt";
        case Dialect::compressed_tensors:
            return "compressed-tensors";
        case Dialect::fp8:
            return "fp8";
        case Dialect::mxfp4:
            return "mxfp4";
        case Dialect::gptq:
            return "gptq";
        case Dialect::awq:
            return "awq";
        case Dialect::gguf:
            return "gguf";
    }
    __builtin_unreachable();
}

int64_t CheckpointTensor::cols() const {
    int64_t n = 1;  // cannot overflow: readers have checked the product of the shape
    for (size_t i = 1; i < shape.size(); ++i) n *= shape[i];
    return n;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::filesystem::path& path, ScaleReading scales,
                                                     StackReading stacks) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error))
        return open_hf_checkpoint(path, scales, stacks).as(ErrorKind::checkpoint);
    if (!std::filesystem::exists(path, error)) return no_such_model(path);
    if (path.extension() == ".gguf") return open_gguf_checkpoint(path, scales).as(ErrorKind::checkpoint);
    return fail(ErrorKind::checkpoint, "{}: neither a folder with config.json and safetensors nor a .gguf file",
                path.string());
}

}  // namespace nibble
