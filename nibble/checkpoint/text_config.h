// What config.json says about the language model, wherever it says it: at the top level, or in the text model's part of
// a multimodal configuration.
#pragma once

#include "base/dtype.h"
#include "base/json.h"

#include <optional>
#include <string_view>

namespace nibble {

// The field `key` of transformers 5 in whichever spelling (architecture/canonical_config.h) the file has; null when
// neither place has it. `config` may be null or no object.
const Json* text_value(const Json& config, const char* key);
Json* text_value(Json& config, const char* key);
// 0 when absent or no integer.
int64_t text_integer(const Json& config, const char* key);
// num_hidden_layers, or the length of the list of layer kinds; 0 when neither is there.
int64_t text_layers(const Json& config);

// The dtype of the weights that config.json declares: BF16, F16 or F32.
// Loaders cast to it, whatever the files hold.
std::optional<DType> declared_dtype(const Json& config);

// Layers for multi-token prediction (speculative decoding): "mtp.layers.0…", "model.mtp_layers.0…", and, as DeepSeek
// and GLM have it, layers of the text model from num_hidden_layers on. transformers does not load them, so Model
// Optimizer copies them as they are.
class PredictionLayers {
public:
    explicit PredictionLayers(const Json& config)
        : layers_(text_layers(config)), announced_(text_integer(config, "num_nextn_predict_layers")) {}
    bool contains(std::string_view tensor) const { return contains(tensor, true); }
    // The same, but layers from num_hidden_layers on only as far as num_nextn_predict_layers announces them: others
    // mean that config.json and the tensors disagree.
    bool announces(std::string_view tensor) const { return contains(tensor, false); }

private:
    bool contains(std::string_view tensor, bool any_later) const;
    int64_t layers_;  // 0: unknown
    int64_t announced_;
};

}  // namespace nibble
