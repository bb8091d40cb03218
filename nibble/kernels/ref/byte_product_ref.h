// kernels/byte_product.h as plain loops.
#pragma once

#include "kernels/byte_product_args.h"

namespace nibble::ref {

void byte_pack_rows(const BytePanel& panel);
void byte_pack_columns(const BytePanel& panel);
void byte_prepare(const uint32_t* words, int64_t count, uint32_t* out);
void byte_tile(const ByteTile& tile);
void byte_put(const ByteOutput& out);

}  // namespace nibble::ref
