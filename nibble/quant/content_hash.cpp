#include "quant/content_hash.h"

#include <xxhash.h>

namespace nibble {

uint64_t content_hash(const QuantView& panel, int64_t first_row) {
    const Format format = panel.format;
    const int64_t cols = panel.cols;
    uint64_t sum = 0;
    const auto add = [&](const void* data, int64_t begin, int64_t end, uint64_t place) {
        if (end > begin)
            sum +=
                XXH3_64bits_withSeed(static_cast<const char*>(data) + begin, static_cast<size_t>(end - begin), place);
    };
    for (int64_t r = 0; r < panel.rows; ++r) {
        const uint64_t place = 4 * static_cast<uint64_t>(first_row + r);
        add(panel.codes, code_bytes(format, r, cols), code_bytes(format, r + 1, cols), place);
        add(panel.block_scales, block_scale_bytes(format, r, cols), block_scale_bytes(format, r + 1, cols), place + 1);
        add(panel.float_scales, 4 * float_scale_count(format, r, cols), 4 * float_scale_count(format, r + 1, cols),
            place + 2);
    }
    return sum;
}

}  // namespace nibble
