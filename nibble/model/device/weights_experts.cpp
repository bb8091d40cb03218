// Loads the experts of a mixture as the operand of one grouped product.
#include "model/device/weights.h"

#include <algorithm>

namespace nibble {

namespace {

// Reorders rows of gate, then up: each tile of sixteen has eight rows of gate and eight of up.
void pair_rows(std::span<float> rows) {
    const std::vector<float> from(rows.begin(), rows.end());
    const size_t half = from.size() / 2;
    for (size_t i = 0; i < half; ++i) {
        rows[i / 8 * 16 + i % 8] = from[i];
        rows[i / 8 * 16 + 8 + i % 8] = from[half + i];
    }
}

}  // namespace

// Writes the parts of one expert as records and appends their scales (one per row) to `all`.
Status DeviceWeights::upload_expert(std::span<const Linear> parts, const cuda::PackedSpan& to, bool paired,
                                    Scales& all) {
    int64_t row = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
        Scales scales;
        if (mode() == Mode::load)
            NIBBLE_CHECK(upload(parts[p], true, scales, [&](const auto& view, int64_t at) -> Status {
                if constexpr (std::is_same_v<std::decay_t<decltype(view)>, QuantView>)
                    return paired ? cuda::prepack(view, 2 * at + (p == 0 ? 0 : 8), to, refused_, *stream_, {8, 16})
                                  : cuda::prepack(view, row + at, to, refused_, *stream_);
                else
                    return fail("'{}.weight' is not quantized", parts[p].name);
            }));
        merge(all, std::move(scales), parts[p].rows);
        row += parts[p].rows;
    }
    return Ok{};
}

// y = sum * (input scale * weight scale), rounded as in the product of one expert. The two scales are multiplied here,
// so experts may have different input scales.
Result<DeviceExperts::Part> DeviceWeights::expert_part(std::span<const std::span<const Linear>> experts, bool paired) {
    const Linear& first = experts[0][0];
    DeviceExperts::Part out{
        .name = first.name, .format = first.format, .activation = first.activation, .w4a16 = runs_on_records(first)};
    const auto count = std::ssize(experts);
    int64_t rows = 0;
    for (const Linear& part : experts[0]) rows += part.rows;
    const bool tiles = first.format == Format::fp8_block128, scaled = first.format != Format::none;
    const bool stored = stores_input_scale(first.activation), biased = !first.bias.empty();
    const bool codes = runs_on_codes(first);
    if (tiles && rows % 128 && !codes)
        return fail("'{}.weight' has {} rows: experts in {} need a multiple of 128 on --device cuda", first.name, rows,
                    format_name(first.format));
    NIBBLE_CHECK(check_inputs(first));
    if (replace_ && replace_(first.name)) {
        if (biased) return fail("'{}' has a bias, which the products of training recipes do not add", first.name);
        for (const std::span<const Linear> expert : experts) {
            out.names.emplace_back();
            for (const Linear& part : expert) out.names.back().push_back(part.name);
            out.others.push_back(replace_(expert[0].name));
            if (!out.others.back())
                return fail("the training recipe replaces the product of other experts but not of '{}'",
                            expert[0].name);
        }
        out.weights.count = static_cast<int>(count);
        out.weights.first = {.rows = rows, .cols = first.cols};
        return out;
    }
    const int64_t size = out.w4a16 ? cuda::packed_bytes(rows, first.cols)
                         : codes   ? cuda::codes_bytes(rows, first.cols)
                                   : cuda::operand_bytes(rows, first.cols);
    NIBBLE_TRY(std::byte * memory, allocate(size * count));
    if (mode() == Mode::load && !out.w4a16) NIBBLE_CHECK(fill_device(memory, 0, size * count, *stream_));
    Scales all;
    std::vector<float> bias, inputs;
    for (int64_t e = 0; e < count; ++e) {
        out.names.emplace_back();
        for (const Linear& part : experts[size_t(e)]) {
            out.names.back().push_back(part.name);
            if (part.format != first.format || part.activation != first.activation)
                return fail("'{}.weight' is {}, '{}.weight' is {}: --device cuda runs experts of one format", part.name,
                            format_name(part.format), first.name, format_name(first.format));
        }
        const size_t rows_before = all.rows.size(), bias_before = bias.size();
        int64_t row = 0;
        if (out.w4a16)
            NIBBLE_CHECK(
                upload_expert(experts[size_t(e)], {rows, first.cols, memory + e * size, first.format}, paired, all));
        for (const Linear& part : experts[size_t(e)]) {
            bias.insert(bias.end(), part.bias.begin(), part.bias.end());
            if (out.w4a16) continue;
            Scales scales;
            if (mode() == Mode::load) {
                NIBBLE_CHECK(upload(part, false, scales, [&](const auto& view, int64_t at) -> Status {
                    if constexpr (std::is_same_v<std::decay_t<decltype(view)>, QuantView>)
                        if (codes) return cuda::make_codes(view, rows, row + at, memory + e * size, *stream_);
                    return cuda::make_operand(view, rows, row + at, memory + e * size, *stream_);
                }));
            } else if (tiles) {
                scales.tiles.resize(static_cast<size_t>((part.rows + 127) / 128 * ((part.cols + 127) / 128)));
            }
            const size_t before = all.rows.size();
            if (scaled) merge(all, std::move(scales), part.rows);
            if (stored)
                for (size_t i = before; i < all.rows.size(); ++i) all.rows[i] = part.input_scale * all.rows[i];
            row += part.rows;
        }
        if (paired) {
            pair_rows(std::span(all.rows).subspan(rows_before));
            pair_rows(std::span(bias).subspan(bias_before));
        }
        inputs.push_back(experts[size_t(e)][0].input_scale);
    }
    NIBBLE_TRY(const float* device_rows, vector(all.rows));
    NIBBLE_TRY(const float* device_tiles, vector(all.tiles));
    NIBBLE_TRY(const float* device_bias, vector(biased ? std::span<const float>(bias) : std::span<const float>()));
    if (stored) {
        NIBBLE_TRY(out.input_scales, vector(inputs));
    }
    if (out.w4a16) {
        out.packed = {.count = static_cast<int>(count),
                      .first = {rows, first.cols, memory, first.format},
                      .row_scales = device_rows,
                      .bias = device_bias};
        return out;
    }
    out.weights.count = static_cast<int>(count);
    out.weights.first = {.rows = rows,
                         .cols = first.cols,
                         .tiles = memory,
                         .codes = codes,
                         .row_scales = device_rows,
                         .tile_scales = device_tiles,
                         .bias = device_bias};
    return out;
}

Result<DeviceExperts> DeviceWeights::experts(std::span<const LinearStack* const> stacks, bool gated) {
    const LinearStack& first = *stacks[0];
    DeviceExperts out{.rows = first.rows(), .cols = first.parts[0].cols, .experts = std::ssize(stacks)};
    const bool one = std::ranges::all_of(stacks, [](const LinearStack* s) { return s->one; }) && stackable(first.parts);
    out.paired = gated && interleaves_ && one && first.parts.size() == 2 && runs_on_records(first.parts[0]) &&
                 first.parts[0].rows == first.parts[1].rows && first.parts[0].rows % 8 == 0;
    std::vector<std::span<const Linear>> experts;
    for (size_t p = 0; p < (one ? 1 : first.parts.size()); ++p) {
        experts.clear();
        for (const LinearStack* s : stacks)
            experts.push_back(one ? std::span(s->parts) : std::span(s->parts).subspan(p, 1));
        NIBBLE_TRY(DeviceExperts::Part part, expert_part(experts, out.paired));
        out.parts.push_back(part);
    }
    return cover_ ? cover_->over(std::move(out)) : std::move(out);
}

Result<DeviceExperts> DeviceWeights::experts(std::span<const Linear* const> linears) {
    DeviceExperts out{.rows = linears[0]->rows, .cols = linears[0]->cols, .experts = std::ssize(linears)};
    std::vector<std::span<const Linear>> experts;
    for (const Linear* l : linears) experts.emplace_back(l, 1);
    NIBBLE_TRY(DeviceExperts::Part part, expert_part(experts, false));
    out.parts.push_back(part);
    return cover_ ? cover_->over(std::move(out)) : std::move(out);
}

}  // namespace nibble
