// Reads the language model's values from config.json, at the top level or in the text section of a multimodal
// configuration.
#pragma once

#include "base/dtype.h"
#include "base/json.h"

#include <optional>
#include <string_view>

namespace nibble {

// Returns the value of transformers 5's `key`, under any known name (architecture/canonical_config.h); null: it is in
// neither place. `config` may be null or not an object.
const Json* text_value(const Json& config, const char* key);
Json* text_value(Json& config, const char* key);
// Returns 0 if the value is absent or not an integer.
int64_t text_integer(const Json& config, const char* key);
// Returns num_hidden_layers, or the length of the list of layer kinds; 0 if both are absent.
int64_t text_layers(const Json& config);

// Returns the dtype of the weights that config.json declares: BF16, F16 or F32. Loaders cast to it, whatever the files
// hold.
std::optional<DType> declared_dtype(const Json& config);

// Layers for multi-token prediction (speculative decoding): "mtp.layers.0…", "model.mtp_layers.0…", and, for DeepSeek
// and GLM, layers of the text model from num_hidden_layers on. transformers does not load them, so Model Optimizer
// copies them unchanged.
class PredictionLayers {
public:
    explicit PredictionLayers(const Json& config)
        : layers_(text_layers(config)), announced_(text_integer(config, "num_nextn_predict_layers")) {}
    bool contains(std::string_view tensor) const { return contains(tensor, true); }
    // Like contains(), but layers from num_hidden_layers on count only up to num_nextn_predict_layers. Layers beyond
    // mean that config.json and the tensors disagree.
    bool announces(std::string_view tensor) const { return contains(tensor, false); }

private:
    bool contains(std::string_view tensor, bool any_later) const;
    int64_t layers_;  // 0: unknown
    int64_t announced_;
};

}  // namespace nibble
