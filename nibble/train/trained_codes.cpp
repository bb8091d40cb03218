#include "train/trained_codes.h"

#include "formats/mx.h"
#include "train/stored_nvfp4.h"

#include <algorithm>

namespace nibble {
namespace {

constexpr int64_t tile = 128;

// Returns the checkpoint format of a forward weight's rounding.
Result<Format> stored_format(const ForwardWeight& w) {
    const std::string& name = w.parts[0].name;
    if (!w.rules.quantized) return Format::none;
    switch (w.rules.w.format) {
        case CastFormat::bf16:
            return Format::none;
        case CastFormat::nvfp4:
            return Format::nvfp4;
        case CastFormat::mxfp8:
            return Format::mxfp8;
        case CastFormat::fp8_block:
            return Format::fp8_block128;
        case CastFormat::fp8:
        case CastFormat::fp8_e5m2:
        case CastFormat::fp8_block2:
            break;
    }
    return fail("export: '{}' is {} in the forward product; only nvfp4, mxfp8 and fp8_block can be exported", name,
                rule_text(w.rules.w));
}

// Checks that every part has whole blocks.
Status check_blocks(const ForwardWeight& w, Format format) {
    if (!format_fits(format, w.cols))
        return fail("export: '{}' has {} inputs, which is not a multiple of the blocks of {}", w.parts[0].name, w.cols,
                    format_name(format));
    if (format != Format::fp8_block128) return Ok{};
    for (size_t p = 1; p < w.parts.size(); ++p)
        if (w.parts[p].first_row % tile != 0)
            return fail(
                "export: fp8_block128 has one scale per {} rows, but '{}' begins in row {} of its layer's product",
                tile, w.parts[p].name, w.parts[p].first_row);
    return Ok{};
}

// Writes rows [first, first + m.rows) of an operand.
void store_mxfp8(const CastOperand& o, int64_t first, QuantMatrix& m) {
    const int64_t blocks = m.cols / mx_block;
    for (int64_t r = 0; r < m.rows; ++r)
        for (int64_t c = 0; c < m.cols; ++c) {
            const uint8_t scale = o.scale_codes[static_cast<size_t>((first + r) * blocks + c / mx_block)];
            m.block_scales[static_cast<size_t>(r * blocks + c / mx_block)] = scale;
            const float x = o.values[static_cast<size_t>((first + r) * o.cols + c)];
            m.codes[static_cast<size_t>(r * m.cols + c)] = e4m3_from_float_saturating(x * mx_inverse_scale(scale));
        }
}

void store_tiles(const CastOperand& o, int64_t first, QuantMatrix& m) {
    const int64_t blocks = o.cols / tile;
    for (int64_t r = 0; r < m.rows; ++r) {
        for (int64_t c = 0; c < m.cols; ++c)
            m.codes[static_cast<size_t>(r * m.cols + c)] =
                e4m3_from_float_saturating(o.values[static_cast<size_t>((first + r) * o.cols + c)]);
        for (int64_t b = 0; r % tile == 0 && b < blocks; ++b)
            m.float_scales[static_cast<size_t>(r / tile * blocks + b)] =
                o.block_scales[static_cast<size_t>((first + r) * blocks + b)];
    }
}

}  // namespace

Result<Format> TrainedCodes::format_of(const ForwardWeights& products) {
    // This error comes before those about sizes and formats, because it is the actual reason.
    for (size_t u = 0; u < products.units(); ++u)
        if (const ForwardWeight w = products.forward_weight(u); w.rules.rank > 0)
            return fail(
                "export: '{}' has a BF16 term of rank {}, which no checkpoint format can store; rank: 0 trains without "
                "it, nibble_nvfp4_late ends without it",
                w.parts[0].name, w.rules.rank);
    Format found = Format::none;
    for (size_t u = 0; u < products.units(); ++u) {
        const ForwardWeight w = products.forward_weight(u);
        NIBBLE_TRY(const Format format, stored_format(w));
        if (format == Format::none) continue;
        NIBBLE_CHECK(check_blocks(w, format));
        if (found != Format::none && found != format)
            return fail("export: '{}' is {}, but others are {}; an export has one format", w.parts[0].name,
                        format_name(format), format_name(found));
        found = format;
    }
    if (found == Format::none) return fail("export: the forward products of this recipe quantize nothing");
    return found;
}

Result<std::unique_ptr<TrainedCodes>> TrainedCodes::create(std::shared_ptr<const Parameters> parameters,
                                                           const ForwardWeights& products, ThreadPool& pool) {
    std::unique_ptr<TrainedCodes> made(new TrainedCodes);
    NIBBLE_TRY(made->format_, format_of(products));
    const auto tensors = parameters->tensors();
    made->tensors_.assign(tensors.begin(), tensors.end());
    made->codes_.resize(tensors.size());
    made->parameters_ = std::move(parameters);
    for (size_t u = 0; u < products.units(); ++u) {
        const ForwardWeight w = products.forward_weight(u);
        NIBBLE_TRY(const Format format, stored_format(w));
        if (w.rules.x.stored && w.input_scale == 0)
            return fail("export: '{}' has no input_scale before the first step", w.parts[0].name);
        CastOperand operand;
        if (format != Format::none) operand = products.forward_operand(u, pool);
        for (const ForwardWeight::Part& part : w.parts) {
            CheckpointTensor& t = made->tensors_[part.id];
            if (format == Format::none) {
                t.listed_module = t.name == part.name + ".weight";  // false for a head that is the embedding
                continue;
            }
            QuantMatrix m(format, t.rows(), t.cols());
            if (format == Format::nvfp4) store_nvfp4(operand, part.first_row, m);
            if (format == Format::mxfp8) store_mxfp8(operand, part.first_row, m);
            if (format == Format::fp8_block128) store_tiles(operand, part.first_row, m);
            t.format = format;
            if (w.rules.x.stored) t.activation = ActivationFormat::nvfp4, t.input_scale = w.input_scale;
            if (format == Format::mxfp8) t.activation = ActivationFormat::mxfp8;
            if (format == Format::fp8_block128) t.activation = ActivationFormat::fp8_group128;
            t.stored_type = std::string(format_name(format));
            t.stored_bytes = std::ssize(m.codes) + std::ssize(m.block_scales) + 4 * std::ssize(m.float_scales);
            made->codes_[part.id] = std::move(m);
        }
    }
    return made;
}

Dialect TrainedCodes::target() const {
    return format_ == Format::fp8_block128 ? Dialect::compressed_tensors : Dialect::modelopt;
}

Result<MatrixView> TrainedCodes::read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const {
    if (tensors_[index].quantized()) return fail("tensor '{}' is quantized", tensors_[index].name);
    return parameters_->read_plain(index, begin, count, scratch);
}

Result<QuantView> TrainedCodes::read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix&) const {
    if (!tensors_[index].quantized()) return fail("tensor '{}' is not quantized", tensors_[index].name);
    return codes_[index].view().panel(begin, count);
}

}  // namespace nibble
