// Reads the tensors of a file that torch.save() wrote (pytorch_model.bin) through a memory map: names, dtypes, shapes
// and views of the bytes. The pickle inside is read as data (io/pickle.h). Read is one dictionary from names to
// contiguous tensors or parameters; anything else in it is an error. Files of PyTorch before 1.6 are errors.
#pragma once

#include "io/safetensors.h"

#include <optional>
#include <vector>

namespace nibble {

class TorchFile {
public:
    // Maps a file. Views are valid as long as this object, also when it is moved. Errors name the path and the tensor.
    static Result<TorchFile> open(const std::filesystem::path& path);
    // Parses bytes in memory, which must outlive the object.
    static Result<TorchFile> parse(Bytes bytes);

    // Returns the tensors in the order of the dictionary. Views of tensors that share memory overlap.
    const std::vector<TensorRecord>& tensors() const { return tensors_; }
    // Returns the map that the views refer to; null after parse().
    const MappedFile* map() const { return map_ ? &*map_ : nullptr; }

private:
    TorchFile() = default;

    std::optional<MappedFile> map_;
    std::vector<TensorRecord> tensors_;
};

}  // namespace nibble
