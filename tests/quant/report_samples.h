// Reports for tests whose codes, scales and errors are real: small random matrices are quantized with formats/, and
// their counts are multiplied to the tensor's size.
#pragma once

#include "quant/quant_report.h"

namespace nibble::test {

QuantReport tiny_report();     // two layers, no search, one warning
QuantReport smollm2_report();  // 30 layers of a 135M model: 210 NVFP4 matrices; embeddings and norms unchanged
QuantReport moe_report();      // 48 layers of 128 experts: 18,432 expert matrices in NVFP4, attention in FP8
QuantReport mixed_report();    // every format once per layer

}  // namespace nibble::test
