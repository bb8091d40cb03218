#include "model/cpu/convolution.h"

#include "model/gradients.h"
#include "model/sequence.h"

#include <algorithm>

namespace nibble {

Result<Convolution> Convolution::load(const std::string& module, int64_t channels, int taps, bool bias,
                                      WeightSource& weights, WeightSource::Outputs outputs) {
    return load({{module, channels}}, taps, bias, weights, outputs);
}

Result<Convolution> Convolution::load(std::vector<Part> parts, int taps, bool bias, WeightSource& weights,
                                      WeightSource::Outputs outputs) {
    if (taps < 1 || taps > most_taps)
        return fail("{}: a kernel of {} taps is not in [1, {}]", parts.front().module, taps, most_taps);
    Convolution c;
    c.taps_ = taps;
    c.has_bias_ = bias;
    const auto read = [&](const std::string& tensor, int64_t count) {
        return outputs == WeightSource::Outputs::own ? weights.own_vector(tensor, count)
                                                     : weights.vector(tensor, count);
    };
    std::vector<std::vector<float>> filters;
    for (Part& part : parts) {
        NIBBLE_TRY(filters.emplace_back(), read(part.module + ".weight", part.channels * taps));
        if (bias) {
            NIBBLE_TRY(const std::vector<float> biases, read(part.module + ".bias", part.channels));
            c.bias_.insert(c.bias_.end(), biases.begin(), biases.end());
        }
        part.channels = std::ssize(filters.back()) / taps;
        c.channels_ += part.channels;
    }
    c.weight_.resize(static_cast<size_t>(c.channels_ * taps));
    c.bias_.resize(static_cast<size_t>(c.channels_));
    int64_t at = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
        const Part& part = parts[p];
        const std::vector<float>& rows = filters[p];
        for (int64_t i = 0; i < part.channels; ++i)
            for (int64_t j = 0; j < taps; ++j) c.weight_[j * c.channels_ + at + i] = rows[i * taps + j];
        at += part.channels;
    }
    c.parts_ = std::move(parts);
    return c;
}

void Convolution::forward(const Batch& batch, const float* x, int64_t stride, int index, float* out,
                          Workspace& work) const {
    const int64_t width = channels_, before = taps_ - 1;
    const std::vector<float> nothing(static_cast<size_t>(width));
    for (size_t i = 0; i < batch.segments().size(); ++i) {
        const Segment& segment = batch.segments()[i];
        const auto rows = static_cast<int64_t>(segment.tokens.size());
        const float* first = x + batch.row(i) * stride;
        float* history = segment.sequence ? segment.sequence->state(index) : nullptr;
        const auto input = [&](int64_t t) -> const float* {
            if (t >= 0) return first + t * stride;
            return history ? history + (before + t) * width : nothing.data();
        };
        work.parallel_rows(rows, (taps_ + 2) * width, [&](int64_t begin, int64_t end) {
            const float* taps[most_taps];
            for (int64_t t = begin; t < end; ++t) {
                for (int64_t j = 0; j <= before; ++j) taps[j] = input(t - before + j);
                work.ssm->convolve(taps, taps_, weight_.data(), bias_.data(), width, out + (batch.row(i) + t) * width);
            }
        });
        if (!history) continue;
        for (int64_t j = 0; j < before; ++j)  // ascending: a row that moves down is read before it is overwritten
            std::copy_n(input(rows - before + j), width, history + j * width);
    }
}

Status Convolution::backward(const Batch& batch, const float* x, int64_t stride, const float* d_out, float* d_x,
                             Workspace& work, GradientSink* sink) const {
    const int64_t width = channels_, taps = taps_, rows = batch.rows();
    std::vector<float> d_weight(sink ? static_cast<size_t>(width * taps) : 0);
    constexpr int64_t tile = 64;
    work.pool->parallel_for((width + tile - 1) / tile, [&](int64_t part) {
        const int64_t first = part * tile, n = std::min(tile, width - first);
        std::vector<double> dw(static_cast<size_t>(taps * tile));
        for (size_t s = 0; s < batch.segments().size(); ++s) {
            const auto tokens = static_cast<int64_t>(batch.segments()[s].tokens.size());
            const float* in = x + batch.row(s) * stride + first;
            const float* d = d_out + batch.row(s) * width + first;
            float* out = d_x + batch.row(s) * stride + first;
            for (int64_t t = 0; t < tokens; ++t) {
                float* o = out + t * stride;
                std::fill_n(o, n, 0.0f);
                // Tap j of token t + taps - 1 - j read token t.
                for (int64_t j = 0; j < taps; ++j) {
                    const int64_t reader = t + taps - 1 - j;
                    if (reader >= tokens) continue;
                    const float* g = d + reader * width;
                    const float* w = weight_.data() + j * width + first;
                    for (int64_t c = 0; c < n; ++c) o[c] += w[c] * g[c];
                    if (sink)
                        for (int64_t c = 0; c < n; ++c) dw[j * tile + c] += double{in[t * stride + c]} * g[c];
                }
            }
        }
        if (sink)
            for (int64_t c = 0; c < n; ++c)
                for (int64_t j = 0; j < taps; ++j)
                    d_weight[(first + c) * taps + j] = static_cast<float>(dw[j * tile + c]);
    });
    if (!sink) return Ok{};
    std::vector<float> sums(static_cast<size_t>(has_bias_ ? width : 0));
    if (has_bias_) column_sums(d_out, rows, width, width, sums.data(), work);
    int64_t at = 0;
    for (const Part& part : parts_) {
        NIBBLE_CHECK(sink->add(part.module + ".weight", d_weight.data() + at * taps, part.channels, taps));
        if (has_bias_) NIBBLE_CHECK(sink->add(part.module + ".bias", sums.data() + at, part.channels, 1));
        at += part.channels;
    }
    return Ok{};
}

}  // namespace nibble
