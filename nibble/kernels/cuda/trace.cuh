// TEMPORARY: time stamps of thread blocks.
#pragma once
#ifdef NIBBLE_TRACE
#include <cstdio>
namespace nibble::cuda {
constexpr int trace_blocks = 160, trace_launches = 256;
struct TraceRecord { unsigned long long t[6]; int id, sm; };
static __device__ unsigned trace_next[trace_blocks];
static __device__ TraceRecord trace_records[trace_blocks][trace_launches];
static __device__ __forceinline__ unsigned long long trace_now() { unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
static __device__ __forceinline__ int trace_sm() { int s; asm volatile("mov.u32 %0, %smid;" : "=r"(s)); return s; }
}
#define TRACE_SPACE __shared__ unsigned long long trace_t[6];
#define TRACE(i) do { if (threadIdx.x == 0) trace_t[i] = trace_now(); } while (0)
#define TRACE_END(block, kind) do { if (threadIdx.x == 0 && (block) < trace_blocks) { trace_t[5] = trace_now(); unsigned s = trace_next[block]++; auto& r = trace_records[block][s % trace_launches]; for (int q = 0; q < 6; ++q) r.t[q] = trace_t[q]; r.id = kind; r.sm = trace_sm(); } } while (0)
#define TRACE_DUMP(name) void trace_dump_##name(FILE* f) { static TraceRecord host[trace_blocks][trace_launches]; cudaMemcpyFromSymbol(host, trace_records, sizeof(host)); for (int b = 0; b < trace_blocks; ++b) for (auto& r : host[b]) if (r.t[5]) fprintf(f, #name " %d %d %d %llu %llu %llu %llu %llu %llu\n", r.id, b, r.sm, r.t[0], r.t[1], r.t[2], r.t[3], r.t[4], r.t[5]); }
#else
#define TRACE_SPACE
#define TRACE(i) do {} while (0)
#define TRACE_END(block, kind) do {} while (0)
#define TRACE_DUMP(name)
#endif
