// The definition in kernels/attention.h as plain loops.
#pragma once

#include "kernels/attention.h"

namespace nibble::ref {

void attend(const AttentionShape& shape, std::span<const AttentionJob> jobs, ThreadPool& pool);
// The same with `split` positions per step of the online softmax, a divisor of kv_page_tokens; attend() uses
// kv_page_tokens.
void attend_in_splits(const AttentionShape& shape, std::span<const AttentionJob> jobs, ThreadPool& pool, int64_t split);

}  // namespace nibble::ref
