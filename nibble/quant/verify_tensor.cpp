#include "quant/verify_tensor.h"

#include "checkpoint/decode.h"
#include "checkpoint/stored_parts.h"
#include "formats/minifloat.h"
#include "quant/content_hash.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstring>

namespace nibble {
namespace {

// Kinds of defects. They are counted per panel, so a tensor gets one line per kind.
enum Kind : size_t {
    nan_code,
    nan_scale,
    negative_scale,
    zero_scale,
    bad_float_scale,
    nonfinite_plain,
    changed_row,
    source_nonfinite,
    kinds
};
constexpr std::array<std::string_view, kinds> kind_text{
    "codes are NaN",
    "block scales are NaN",
    "block scales are negative",
    "block scales are zero",
    "scales are not finite and positive",
    "values are not finite",
    "rows differ from the source, though the tensor is not quantized",
    "weights of the source are not finite",
};

struct PanelFindings {
    std::string unreadable;  // the reason why the panel cannot be read
    std::array<int64_t, kinds> count{};
    std::array<int64_t, kinds> first_row{};  // row in the tensor
    QuantStats stats;
    uint64_t content = 0;

    void add(Kind kind, int64_t row, int64_t n = 1) {
        if (n > 0 && count[kind] == 0) first_row[kind] = row;
        count[kind] += n;
    }
};

// True if any byte is bad. No branch per byte, so the loop is vectorized.
template <class Bad>
bool any_of(std::span<const uint8_t> bytes, Bad bad) {
    uint8_t found = 0;
    for (const uint8_t byte : bytes) found |= static_cast<uint8_t>(bad(byte));
    return found != 0;
}

bool usable(float scale) { return std::isfinite(scale) && scale > 0; }

class VerifyTensor : public UnitWork {
public:
    VerifyTensor(VerifyContext& context, size_t index)
        : context_(context),
          index_(index),
          tensor_(context.checkpoint.tensors()[index]),
          panels_(tensor_.format, tensor_.rows(), tensor_.cols()) {
        if (const auto computed = context.computed.find(tensor_.name); computed != context.computed.end())
            computed_ = computed->second;
        if (!context.options.source) return;
        const auto found = context.in_source.find(tensor_.name);
        if (found == context.in_source.end()) return;
        source_index_ = found->second;
        source_ = &context.options.source->tensors()[source_index_];
        panels_ = Panels(panel_format(source_->format, tensor_.format), tensor_.rows(), tensor_.cols());
    }

    Result<int64_t> next_stage() override {
        if (!started_) {
            started_ = true;
            compare_declarations();
            results_.resize(static_cast<size_t>(panels_.count()));
            if (panels_.count() > 0) return panels_.count();
        }
        conclude();
        return int64_t{0};
    }

    Status run(int64_t panel, int worker) override {
        PanelFindings& found = results_[static_cast<size_t>(panel)];
        const int64_t begin = panels_.begin(panel), rows = panels_.size(panel);
        PanelScratch& scratch = context_.scratch[static_cast<size_t>(worker)];
        PanelScratch& source_scratch = context_.source_scratch[static_cast<size_t>(worker)];
        if (tensor_.quantized()) {
            const auto view = context_.checkpoint.read_quant(index_, begin, rows, scratch.read_quant);
            if (view.ok())
                NIBBLE_CHECK(look_at(*view, panel, begin, source_scratch, found));
            else
                found.unreadable = view.error().message();
        } else {
            const auto view = context_.checkpoint.read_plain(index_, begin, rows, scratch.read);
            if (!view.ok())
                found.unreadable = view.error().message();
            else if (comparable())
                NIBBLE_CHECK(compare(*view, begin, source_scratch, found));
            else if (is_plain_float(view->dtype))
                look_at_values(*view, begin, found);
        }
        context_.checkpoint.done_with(index_, begin, rows);
        context_.meter.add(tensor_.stored_bytes / panels_.count(), tensor_.name);
        return Ok{};
    }

private:
    // Returns true if the source's shape agrees and its values can be read.
    bool comparable() const {
        return source_ && source_->shape == tensor_.shape &&
               (source_->quantized() || is_plain_float(source_->dtype) || !tensor_.quantized());
    }

    void compare_declarations() {
        const VerifyOptions& options = context_.options;
        if (options.source && !source_) {
            if (!is_kv_scale_name(tensor_.name)) texts_.push_back("is not in the source");
        } else if (source_ && source_->shape != tensor_.shape) {
            texts_.push_back(fmt::format("shape [{}] differs from the source's [{}]", fmt::join(tensor_.shape, ", "),
                                         fmt::join(source_->shape, ", ")));
        } else if (source_ && !tensor_.quantized() && !source_->quantized() && tensor_.dtype != source_->dtype &&
                   !(rounds_plain(context_.checkpoint.dialect()) && is_plain_float(source_->dtype))) {
            texts_.push_back(
                fmt::format("is {}, in the source {}", dtype_name(tensor_.dtype), dtype_name(source_->dtype)));
        }
        if (tensor_.input_scale && !usable(*tensor_.input_scale))
            texts_.push_back(fmt::format("input_scale {} is not finite and positive", *tensor_.input_scale));
        if (options.expected) {
            const auto wanted = options.expected->find(tensor_.name);
            const ExpectedFormat want = wanted == options.expected->end() ? ExpectedFormat{} : wanted->second;
            if (want.format != tensor_.format && !(want.format == Format::none && source_ && source_->quantized()))
                texts_.push_back(fmt::format("is stored as {}, the recipe says {}", tensor_.stored_type,
                                             want.format == Format::none ? "unquantized" : format_name(want.format)));
        }
    }

    Status look_at(const QuantView& view, int64_t panel, int64_t begin, PanelScratch& source_scratch,
                   PanelFindings& found) {
        if (panel == 0) tensor_scale_ = view.tensor_scale;
        look_at_codes(view, begin, found);
        look_at_scales(view, begin, found);
        if (computed_) found.content = content_hash(view, begin);
        return computed_ || !comparable() ? Status(Ok{}) : measure(view, begin, source_scratch, found);
    }

    void look_at_codes(const QuantView& view, int64_t begin, PanelFindings& found) const {
        if (format_layout(view.format).code_bits != 8) return;
        for (int64_t r = 0; r < view.rows; ++r) {
            const std::span codes(view.codes + r * view.cols, static_cast<size_t>(view.cols));
            const auto is_nan = [](uint8_t code) { return (code & 0x7F) == 0x7F; };
            if (any_of(codes, is_nan)) found.add(nan_code, begin + r, std::ranges::count_if(codes, is_nan));
        }
    }

    void look_at_scales(const QuantView& view, int64_t begin, PanelFindings& found) const {
        const FormatLayout layout = format_layout(view.format);
        const int64_t per_row = layout.block ? view.cols / layout.block : 0;
        for (int64_t r = 0; r < view.rows; ++r) {
            const std::span scales(view.block_scales + r * per_row, static_cast<size_t>(per_row));
            const bool suspect = layout.e8m0_scales
                                     ? any_of(scales, [](uint8_t s) { return s == 0xFF; })
                                     : any_of(scales, [](uint8_t s) { return static_cast<uint8_t>(s - 1) > 0x7D; });
            if (!suspect) continue;
            for (const uint8_t scale : scales) {
                if (layout.e8m0_scales ? scale == 0xFF : (scale & 0x7F) == 0x7F)
                    found.add(nan_scale, begin + r);
                else if (!layout.e8m0_scales && scale >= 0x80)
                    found.add(negative_scale, begin + r);
                else if (!layout.e8m0_scales && scale == 0)
                    found.add(zero_scale, begin + r);
            }
        }
        const int64_t floats = float_scale_count(view.format, view.rows, view.cols);
        for (int64_t i = 0; i < floats; ++i)
            if (!usable(view.float_scales[i])) found.add(bad_float_scale, begin + i * view.rows / floats);
    }

    // Returns true if the tensor is a bound of clipped activations (Gemma 4's audio tower), which is infinite if
    // nothing is clipped.
    bool is_bound() const {
        return tensor_.shape.empty() && (tensor_.name.ends_with("_min") || tensor_.name.ends_with("_max"));
    }

    void look_at_values(const MatrixView& view, int64_t begin, PanelFindings& found) const {
        if (is_bound()) return;
        for (int64_t r = 0; r < view.rows; ++r) {
            int64_t bad = 0;
            for (int64_t c = 0; c < view.cols; ++c) {
                const std::byte* at = view.data + r * view.row_bytes() + c * dtype_bytes(view.dtype);
                if (view.dtype == DType::f64) {
                    double x;
                    std::memcpy(&x, at, 8);
                    bad += !std::isfinite(x);
                    continue;
                }
                uint32_t bits = 0;
                std::memcpy(&bits, at, static_cast<size_t>(dtype_bytes(view.dtype)));
                const uint32_t exponent = view.dtype == DType::f16    ? 0x7C00u
                                          : view.dtype == DType::bf16 ? 0x7F80u
                                                                      : 0x7F800000u;
                bad += (bits & exponent) == exponent;
            }
            found.add(nonfinite_plain, begin + r, bad);
        }
    }

    Status measure(const QuantView& view, int64_t begin, PanelScratch& scratch, PanelFindings& found) {
        NIBBLE_TRY(const MatrixView weights, read_weights(*context_.options.source, source_index_, begin, view.rows,
                                                          context_.kernels, scratch, DecodedTo::fp32));
        const Scan scan = context_.kernels.scan(weights);
        if (scan.first_nonfinite >= 0) {
            found.add(source_nonfinite, begin + scan.first_nonfinite / weights.cols);
        } else {
            context_.kernels.measure(weights, view, found.stats);
        }
        context_.options.source->done_with(source_index_, begin, view.rows);
        return Ok{};
    }

    // Compares with the source: unchanged tensors by bytes, in a GGUF file by the values that are read, and a quantized
    // source that was decoded by value.
    Status compare(const MatrixView& view, int64_t begin, PanelScratch& scratch, PanelFindings& found) {
        const Checkpoint& source = *context_.options.source;
        MatrixView want;
        if (source_->quantized()) {
            NIBBLE_TRY(want, read_weights(source, source_index_, begin, view.rows, context_.kernels, scratch));
        } else {
            NIBBLE_TRY(want, source.read_plain(source_index_, begin, view.rows, scratch.read));
            if (rounds_plain(context_.checkpoint.dialect())) want = plain_as(want, view.dtype, scratch.wide);
        }
        if (want.dtype == view.dtype)
            for (int64_t r = 0; r < view.rows; ++r) {
                const int64_t bytes = view.row_bytes();
                if (std::memcmp(view.data + r * bytes, want.data + r * bytes, static_cast<size_t>(bytes)) != 0)
                    found.add(changed_row, begin + r);
            }
        source.done_with(source_index_, begin, view.rows);
        return Ok{};
    }

    void conclude() {
        PanelFindings all;
        for (const PanelFindings& panel : results_) {
            if (all.unreadable.empty()) all.unreadable = panel.unreadable;
            for (size_t kind = 0; kind < kinds; ++kind)
                all.add(static_cast<Kind>(kind), panel.first_row[kind], panel.count[kind]);
            all.stats += panel.stats;
            all.content += panel.content;
        }
        if (!all.unreadable.empty()) texts_.push_back(fmt::format("cannot be read: {}", all.unreadable));
        if (format_layout(tensor_.format).tensor_scale && !usable(tensor_scale_))
            texts_.push_back(fmt::format("tensor scale {} is not finite and positive", tensor_scale_));
        for (size_t kind = 0; kind < kinds; ++kind)
            if (all.count[kind] > 0)
                texts_.push_back(
                    fmt::format("{} {}, the first in row {}", all.count[kind], kind_text[kind], all.first_row[kind]));

        TensorFindings& result = context_.tensors[index_];
        TensorReport& report = result.report;
        report.name = tensor_.name;
        report.shape = tensor_.shape;
        report.dtype = source_ ? source_->dtype : tensor_.dtype;
        report.format = tensor_.format;
        report.activation = tensor_.activation;
        report.elements = tensor_.rows() * tensor_.cols();
        report.source_bytes = source_ ? source_->stored_bytes : 0;
        report.stored_bytes = tensor_.stored_bytes;
        report.tensor_scale = tensor_scale_;
        report.input_scale = tensor_.input_scale;
        if (computed_) {
            if (all.content != computed_->content_hash)
                texts_.push_back("the stored codes and scales are not those that were computed");
            if (tensor_scale_ != computed_->tensor_scale)
                texts_.push_back(fmt::format("tensor scale {} is not the one that was computed, {}", tensor_scale_,
                                             computed_->tensor_scale));
            report = *computed_;
        } else if (tensor_.quantized() && all.stats.elements > 0) {
            report.method = tensor_.stored_type;
            report.add(all.stats);
        }
        if (!computed_ && report.quantized() && loses_most(report, context_.options.suspicious_sqnr_db))
            texts_.push_back(
                fmt::format("decodes to other weights than the source's: SQNR {:.1f} dB", report.sqnr_db()));
        result.texts = std::move(texts_);
        result.tensor_scale = tensor_scale_;
    }

    VerifyContext& context_;
    const size_t index_;
    const CheckpointTensor& tensor_;
    Panels panels_;
    const CheckpointTensor* source_ = nullptr;
    const TensorReport* computed_ = nullptr;
    size_t source_index_ = 0;
    bool started_ = false;
    float tensor_scale_ = 1;
    std::vector<PanelFindings> results_;
    std::vector<std::string> texts_;
};

}  // namespace

std::unique_ptr<UnitWork> verify_tensor(VerifyContext& context, size_t index) {
    return std::make_unique<VerifyTensor>(context, index);
}

}  // namespace nibble
