// PTX instructions without a CUDA C++ equivalent: copies, their barriers, products of tensor cores (mma.sync; Hopper's
// wgmma with A in registers).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::cuda {

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- Barriers in shared memory ------------------------------------------------------------------------------------

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Call after barrier_init, before the copy engine or another thread uses the barrier (other threads also need
// __syncthreads).
__device__ inline void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive_if(uint32_t barrier, bool condition) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %1, 0;\n\t"
        "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n\t}" ::"r"(barrier),
        "r"(static_cast<int>(condition))
        : "memory");
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n\t.reg .pred done;\n\t"
        "again:\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@done bra ready;\n\tbra again;\n\tready:\n\t}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
// Returns true if barrier_wait() would return at once.
__device__ inline bool barrier_test(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n\t.reg .pred done;\n\tmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, done;\n\t}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done;
}
// Copies `bytes` (a multiple of 16); completes on the barrier.
__device__ inline void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// The same for bytes that are not read again soon: they are evicted from the L2 first.
__device__ inline void bulk_copy_once(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    constexpr uint64_t evict_first = 0x12F0000000000000;  // the value of createpolicy.fractional.L2::evict_first
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(evict_first)
        : "memory");
}

// Ensures that this thread's loads from shared memory have reached registers, so that the copy engine may overwrite the
// memory (after a barrier, or __syncwarp() and one lane's request). Neither an arrival nor a request waits for loads in
// flight (tools/early-release shows it in the machine code). These loads wait in the load unit for all earlier requests
// of any thread block of the multiprocessor: a burst of misses, including the next kernel's early ones, takes longer
// than a copy from device memory, which bypasses that unit (inferred). Sums then contained parts of the next record:
// NVFP4 mixtures had wrong bits in most runs, and only this fence fixed it. A slot refilled by
// cp.async, through the same unit, is safe.
__device__ inline void loads_done() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Prefetches into L1 data that is read once at the end of a kernel.
__device__ inline void prefetch(const void* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p) : "memory"); }

// Arrives at the same barrier of thread block `rank` of the cluster. Without .release.cluster, which fences the whole
// GPU (470 TF were lost with it, 200 without): only reads of the tensor cores precede, and they are complete.
__device__ inline void barrier_arrive_at(uint32_t barrier, uint32_t rank, bool condition) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b32 there;\n\tsetp.ne.b32 p, %2, 0;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "@p mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(barrier),
        "r"(rank), "r"(static_cast<int>(condition))
        : "memory");
}
// The release waits for all earlier stores: arrive before stores that no block of the cluster reads.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

// Returns a float from the shared memory of thread block `rank` of the cluster, at this block's address `at`.
__device__ inline float cluster_float(uint32_t at, uint32_t rank) {
    float value;
    asm volatile(
        "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %1, %2;\n\t"
        "ld.shared::cluster.f32 %0, [there];\n\t}"
        : "=f"(value)
        : "r"(at), "r"(rank)
        : "memory");
    return value;
}

// ---- Copies of 16 bytes, mma.sync ---------------------------------------------------------------------------------

__device__ inline void copy16(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Copies zeros if not `present`; `from` must be readable in any case.
__device__ inline void copy16_or_zero(uint32_t to, const void* from, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0)
                 : "memory");
}
__device__ inline void copy8(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
// Waits for all copies of this thread.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Arrives when the thread's previous copies are done. The barrier counts this arrival.
__device__ inline void barrier_arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
// d[16, 8] += a[16, 16] b[8, 16]^T in BF16.
__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Programmatic dependent launch --------------------------------------------------------------------------------

// overlap_next() lets the next kernel start. The wait below blocks until previous kernels are done and their writes are
// visible.
__device__ inline void overlap_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- wgmma --------------------------------------------------------------------------------------------------------

// Hopper only. Other architectures compile these kernels too, so that one binary serves all, and trap in them. Launch
// code chooses mma.sync there (on_hopper() in tensor/cuda/call.h), with the same bits.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define NIBBLE_WGMMA_ASM(...) __trap()
#else
#define NIBBLE_WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#endif

__device__ inline void wgmma_fence() { NIBBLE_WGMMA_ASM("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { NIBBLE_WGMMA_ASM("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ inline void wgmma_wait() {
    NIBBLE_WGMMA_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Makes accumulators available: reads of them cannot move before this point. The compiler does not know that they are
// written until the wait, and ptxas would serialize products if it found writes between them (C7515).
template <int Count>
__device__ inline void pin(float (&v)[Count]) {
#pragma unroll
    for (float& x : v) asm volatile("" : "+f"(x)::"memory");
}

// Descriptor of B in shared memory: rows of 128 bytes (64 BF16 of K), 16-byte chunks XORed with row % 8, groups of
// eight rows aligned to 1024 bytes and adjacent. Returns the lower half; the upper half is a constant. Add 2 per 32
// bytes of K, and address / 16 per block.
__device__ inline uint32_t swizzled_operand(uint32_t address) { return ((address & 0x3FFFFu) >> 4) | 1u << 16; }
#define NIBBLE_SWIZZLED_UPPER "0x40000040"  // 128-byte swizzle, groups 1024 bytes apart

enum class HalfType : uint8_t { bf16, f16 };  // type of wgmma's operands

// d[64, N] (+)= a[64, 16] b[N, 16]^T. Lane 4 g + c of warp w holds d[4 i + 2 h + e]: row 16 w + g + 8 h, column 8 i + 2
// c + e. `add` 0 starts from zero.
template <int N, HalfType Type = HalfType::bf16>
struct Wgmma;

#define NIBBLE_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NIBBLE_D8(d, i) NIBBLE_D4(d, i), NIBBLE_D4(d, i + 4)
#define NIBBLE_D16(d, i) NIBBLE_D8(d, i), NIBBLE_D8(d, i + 8)
#define NIBBLE_D32(d, i) NIBBLE_D16(d, i), NIBBLE_D16(d, i + 16)
#define NIBBLE_D48(d, i) NIBBLE_D32(d, i), NIBBLE_D16(d, i + 32)
#define NIBBLE_D64(d, i) NIBBLE_D32(d, i), NIBBLE_D32(d, i + 32)
#define NIBBLE_WGMMA(N, type, names, a0, a1, a2, a3, b, add, ...)                                                      \
    template <>                                                                                                        \
    struct Wgmma<N, HalfType::type> {                                                                                  \
        static __device__ __forceinline__ void run(float (&d)[N / 2], const uint32_t* a, uint32_t operand, int more) { \
            NIBBLE_WGMMA_ASM("{\n\t.reg .pred p;\n\t.reg .b64 rows;\n\tsetp.ne.b32 p, " add                            \
                             ", 0;\n\t"                                                                                \
                             "mov.b64 rows, {" b ", " NIBBLE_SWIZZLED_UPPER                                            \
                             "};\n\t"                                                                                  \
                             "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #type "." #type " {" names "}, {" a0    \
                             ", " a1 ", " a2 ", " a3 "}, rows, p, 1, 1, 0;\n\t}"                                       \
                             : __VA_ARGS__                                                                             \
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(operand), "r"(more));                   \
        }                                                                                                              \
    }
#define NIBBLE_N8_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NIBBLE_N16_0 NIBBLE_N8_0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NIBBLE_N32_0 NIBBLE_N16_0 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NIBBLE_N48_0 NIBBLE_N32_0 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NIBBLE_N64_0                                                                                       \
    NIBBLE_N32_0                                                                                           \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51" \
    ", %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
NIBBLE_WGMMA(16, bf16, NIBBLE_N8_0, "%8", "%9", "%10", "%11", "%12", "%13", NIBBLE_D8(d, 0));
NIBBLE_WGMMA(32, bf16, NIBBLE_N16_0, "%16", "%17", "%18", "%19", "%20", "%21", NIBBLE_D16(d, 0));
NIBBLE_WGMMA(48, bf16, NIBBLE_N16_0 ", %16, %17, %18, %19, %20, %21, %22, %23", "%24", "%25", "%26", "%27", "%28",
             "%29", NIBBLE_D16(d, 0), NIBBLE_D8(d, 16));
NIBBLE_WGMMA(64, bf16, NIBBLE_N32_0, "%32", "%33", "%34", "%35", "%36", "%37", NIBBLE_D32(d, 0));
NIBBLE_WGMMA(64, f16, NIBBLE_N32_0, "%32", "%33", "%34", "%35", "%36", "%37", NIBBLE_D32(d, 0));
NIBBLE_WGMMA(96, bf16, NIBBLE_N48_0, "%48", "%49", "%50", "%51", "%52", "%53", NIBBLE_D48(d, 0));
NIBBLE_WGMMA(128, bf16, NIBBLE_N64_0, "%64", "%65", "%66", "%67", "%68", "%69", NIBBLE_D64(d, 0));
NIBBLE_WGMMA(128, f16, NIBBLE_N64_0, "%64", "%65", "%66", "%67", "%68", "%69", NIBBLE_D64(d, 0));
#undef NIBBLE_WGMMA

}  // namespace nibble::cuda
