#include "model/cpu/embedding.h"

#include "architecture/embedding_factor.h"
#include "checkpoint/checkpoint.h"
#include "model/cpu/widen.h"
#include "model/weight_source.h"

#include <algorithm>

namespace nibble {

Result<Embedding> Embedding::load(const ModelConfig& config, WeightSource& weights) {
    Embedding e;
    e.checkpoint_ = &weights.checkpoint();
    NIBBLE_TRY(e.tensor_, weights.find(config.embedding, config.vocab, config.hidden));
    NIBBLE_TRY(e.decoder_, select_quantize_kernels());
    e.vocab_ = config.vocab, e.width_ = e.columns_ = config.hidden;
    e.scale_ = embedding_factor(config, weights.options().compute != Compute::f32);
    e.copies_ = config.width() / config.hidden;
    return e;
}

Result<Embedding> Embedding::load_columns(const std::string& table, std::pair<int64_t, int64_t> shape, int64_t first,
                                          int64_t count, WeightSource& weights) {
    Embedding e;
    e.checkpoint_ = &weights.checkpoint();
    NIBBLE_TRY(e.tensor_, weights.find(table, shape.first, shape.second));
    NIBBLE_TRY(e.decoder_, select_quantize_kernels());
    e.vocab_ = shape.first, e.width_ = shape.second, e.first_ = first, e.columns_ = count;
    e.scale_ = width_factor(count, weights.options().compute != Compute::f32);
    return e;
}

Status Embedding::forward(std::span<const int32_t> tokens, float* x, Workspace& work) const {
    const CheckpointTensor& t = checkpoint_->tensors()[tensor_];
    Matrix plain;
    QuantMatrix quantized;
    for (const int32_t token : tokens) {
        if (token < 0 || token >= vocab_) return fail("token id {} is not in the vocabulary of {}", token, vocab_);
        if (t.quantized()) {
            // 128 x 128 tiles are read from their first row.
            const int64_t begin = t.format == Format::fp8_block128 ? token / 128 * 128 : token;
            NIBBLE_TRY(const QuantView view, checkpoint_->read_quant(tensor_, begin, token - begin + 1, quantized));
            const Arena::Scope scope(work.arena);
            float* rows = work.arena.floats(view.rows * width_);
            decoder_->decode(view, rows);
            std::copy_n(rows + (token - begin) * width_ + first_, columns_, x);
        } else {
            NIBBLE_TRY(MatrixView view, checkpoint_->read_plain(tensor_, token, 1, plain));
            view.data += first_ * dtype_bytes(view.dtype), view.cols = columns_;
            widen(view, x);
        }
        if (scale_ != 1.0f)
            for (int64_t i = 0; i < columns_; ++i) x[i] *= scale_;
        if (work.bf16()) work.elementwise->round_bf16(x, columns_);
        if (work.elementwise->first_nonfinite(x, columns_) >= 0)
            return fail("tensor '{}': row {} (token {}) is not finite", t.name, token, token);
        for (int64_t copy = 1; copy < copies_; ++copy) std::copy_n(x, columns_, x + copy * columns_);
        x += copies_ * columns_;
    }
    return Ok{};
}

}  // namespace nibble
