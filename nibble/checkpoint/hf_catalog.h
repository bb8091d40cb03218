// What a Hugging Face folder holds, as canonical tensors over the stored ones. A dialect's reader decides which modules
// are quantized and how, and takes their parts; everything nobody took is a plain tensor, or an error when it looks
// like a part of some quantization.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/stacked_experts.h"
#include "checkpoint/stored_parts.h"
#include "io/model_files.h"

#include <functional>
#include <unordered_map>
#include <unordered_set>

namespace nibble {

struct CatalogEntry {
    CheckpointTensor tensor;
    const ModelTensor* data = nullptr;  // plain bytes, or codes
    int64_t first = 0;                  // plain: element of `data` where the tensor begins (one expert of a stack)
    int64_t stride = 0;                 // plain and stored as [in, out]: elements from one input to the next
    const ModelTensor* block_scales = nullptr;
    const ModelTensor* float_scales = nullptr;
    float tensor_scale = 1.0f;
};

class Catalog {
public:
    // `files` must outlive the catalog. `decoded` is the dtype that quantized matrices decode to.
    Catalog(const ModelFiles& files, Dialect dialect, DType decoded, ScaleReading scales = ScaleReading::checked)
        : files_(files), dialect_(dialect), decoded_(decoded), scales_(scales) {}

    // Modules that have at least one tensor only quantized linears have ("P.weight_scale", "P.weight_packed" ...), in
    // file order.
    std::vector<std::string> quantized_modules() const;

    // The modules of all tensors, in file order.
    std::vector<std::string_view> modules() const;

    // Takes the parts of one quantized linear. Error: a part is missing, has another dtype or shape than the scheme
    // asks, or a scalar is not a positive number (ScaleReading::checked). `says` names the place of the scheme for
    // messages: "quant_algo NVFP4".
    Status take_quantized(std::string_view module, Scheme scheme, std::string_view stored_type, std::string_view says);

    // Takes the KV cache scales under their canonical names. `json_kv`: what the configuration says. Error: scales
    // although it says nothing.
    Status take_kv_scales(KvFormat json_kv);

    // Adds all other tensors as plain ones, stacked experts as one matrix each (stacked_experts.h). `listed` says
    // whether an unquantized module is named in the list of exceptions.
    Status take_plain(const std::function<bool(std::string_view module)>& listed, const Json& config);

    KvFormat kv() const { return kv_; }
    // Entries in file order, with the names checked for collisions.
    Result<std::vector<CatalogEntry>> finish();

private:
    Result<const ModelTensor*> take_part(std::string_view module, const StoredPart& part, std::string_view says);
    void add_experts(const ModelTensor& t, const ExpertStack& stack,
                     const std::function<bool(std::string_view module)>& listed);
    Result<float> read_scalar(const ModelTensor& tensor, bool divides) const;
    std::string file_of(const ModelTensor& tensor) const { return files_.shard_names()[size_t(tensor.shard)]; }

    const ModelFiles& files_;
    Dialect dialect_;
    DType decoded_;
    ScaleReading scales_;
    KvFormat kv_ = KvFormat::none;
    std::unordered_set<const ModelTensor*> taken_;
    std::vector<CatalogEntry> entries_;
};

// "[64, 128]"
std::string shape_text(std::span<const int64_t> shape);

// The readers. Each takes the quantized modules and KV scales of its dialect from the catalog and returns the predicate
// for take_plain(). `quantization` is what the configuration file says; messages name `where` it stands.
using ListedModule = std::function<bool(std::string_view module)>;
Result<ListedModule> read_modelopt(const Json* config_section, const Json* hf_quant_config, Catalog& catalog);
Result<ListedModule> read_compressed_tensors(const Json& quantization, Catalog& catalog);
Result<ListedModule> read_fp8_block(const Json& quantization, Catalog& catalog);

}  // namespace nibble
