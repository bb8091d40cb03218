// Tensor lists for tests: headers of the golden tiny models, and lists made by the test.
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace nibble::test {

struct TensorList {
    std::vector<CheckpointTensor> tensors;
    Json config;
};

inline CheckpointTensor tensor(std::string name, std::vector<int64_t> shape, DType dtype = DType::bf16) {
    CheckpointTensor t;
    t.name = std::move(name);
    t.shape = std::move(shape);
    t.dtype = dtype;
    return t;
}

// Reads config.json and the header of model.safetensors.
inline TensorList read_model(const std::filesystem::path& folder) {
    TensorList list;
    auto config = read_json_file(folder / "config.json", {.python_constants = true});
    if (!config.ok()) throw std::runtime_error(config.error().message());
    list.config = *config;
    std::ifstream in(folder / "model.safetensors", std::ios::binary);
    uint64_t bytes = 0;
    in.read(reinterpret_cast<char*>(&bytes), 8);
    std::string header(bytes, '\0');
    in.read(header.data(), static_cast<std::streamsize>(bytes));
    if (!in) throw std::runtime_error("cannot read the header of " + folder.string());
    const Json tensors = Json::parse(header);
    for (const auto& [name, value] : tensors.items())
        if (name != "__metadata__")
            list.tensors.push_back(tensor(name, value["shape"].get<std::vector<int64_t>>(),
                                          *dtype_from_name(value["dtype"].get<std::string>())));
    return list;
}

}  // namespace nibble::test
