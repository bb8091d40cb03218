#include "gpu_bench/fused_decode.h"

#include "kernels/fused_decode_cuda.h"

#include <vector>

namespace nibble::bench {
namespace {

Status decode_rows(Kit& kit, bool records, int repeats, KernelTable& table) {
    constexpr int copies = 4;  // 0.5 GB of records, 0.9 GB of codes
    constexpr int64_t hidden = 4096, inter = 14336;
    const std::pair<int64_t, int64_t> shapes[] = {
        {hidden, hidden}, {2 * inter, hidden}, {hidden, inter}, {6144, hidden}};
    const DeviceArena::Mark mark = kit.arena.mark();
    std::vector<uint8_t> noise(size_t{1} << 22);
    for (uint8_t& c : noise) c = static_cast<uint8_t>(kit.random() & 0xBF);  // below 2, never NaN
    NIBBLE_TRY(const std::byte* pool, kit.upload_bytes(noise));
    NIBBLE_TRY(const float* norm, kit.upload(kit.normal(hidden, 1.0f)));
    NIBBLE_TRY(const std::byte* rows, kit.upload_bytes(kit.normal_bf16(hidden, 1.0f)));
    NIBBLE_TRY(const std::byte* h, kit.upload_bytes(kit.normal_bf16(hidden, 1.0f)));
    NIBBLE_TRY(std::byte * h_out, kit.arena.allocate(2 * hidden));
    constexpr int64_t between_bytes = 2 * 4 * hidden + 2 * inter + 4 * 6144;
    NIBBLE_TRY(std::byte * between, kit.arena.allocate(2 * between_bytes));
    NIBBLE_CHECK(fill_device(between, 0xFF, 2 * between_bytes, kit.stream));
    NIBBLE_TRY(uint64_t * meet, kit.arena.allocate_array<uint64_t>(1));
    NIBBLE_CHECK(fill_device(reinterpret_cast<std::byte*>(meet), 0, 8, kit.stream));
    cuda::FusedProduct layer[copies][4];
    for (auto& products : layer)
        for (int i = 0; i < 4; ++i) {
            const auto [n, k] = shapes[i];
            const int64_t bytes = records ? cuda::packed_bytes(n, k) : cuda::codes_bytes(n, k);
            NIBBLE_TRY(std::byte * tiles, kit.arena.allocate(bytes));
            for (int64_t at = 0; at < bytes; at += std::ssize(noise))
                NIBBLE_CHECK(copy_on_device(tiles + at, pool, std::min(std::ssize(noise), bytes - at), kit.stream));
            NIBBLE_TRY(float* y, kit.arena.allocate_array<float>(n));
            if (records)
                products[i] = {.packed = {n, k, tiles, Format::nvfp4}, .y = y};
            else
                products[i] = {.w = {.rows = n, .cols = k, .tiles = tiles, .codes = true, .scale = 1e-4f},
                               .input_scale = 0.01f,
                               .y = y};
            if (i == 0) products[i].x = rows;
            if (i == 1) products[i].activated = products[i].gated = true;
            if (i % 2) products[i].norm = norm;
        }
    struct Part {
        const char* name;
        int first, count;
    };
    for (const Part& part : {Part{"layer", 0, 4}, {"projection", 0, 1}, {"gate, up, down", 1, 2}, {"qkv", 3, 1}}) {
        int64_t bytes = 0;
        for (int i = part.first; i < part.first + part.count; ++i)
            bytes += shapes[i].first * shapes[i].second * (records ? 9 : 16) / 16;
        const int last = part.first + part.count - 1;
        const auto launch = [&](int i, bool overlap) {
            const cuda::FusedDecode decode{.products = std::span(layer[i % copies]).subspan(part.first, part.count),
                                           .h = h,
                                           .h_out = h_out,
                                           .eps = 1e-5f,
                                           .between = between + i % 2 * between_bytes,
                                           .used = between + (i + 1) % 2 * between_bytes,
                                           .used_bytes = between_bytes,
                                           .meet = meet};
            return cuda::run_fused_decode(decode, overlap, kit.device, kit.stream);
        };
        KernelRow row{.kernel = records ? "fused NVFP4" : "fused FP8",
                      .shape = part.name,
                      .tokens = 1,
                      .bytes = static_cast<double>(bytes),
                      .operations = 2.0 * static_cast<double>(bytes) * (records ? 16.0 / 9 : 1.0),
                      .fp8 = !records};
        std::vector<float> outputs[2];
        GraphTime times[2];
        for (const bool overlap : {false, true}) {
            for (int i = 0; i < 2; ++i) NIBBLE_CHECK(launch(i, overlap));  // fills both buffers of sentinels once
            NIBBLE_TRY(outputs[overlap], kit.download<float>(layer[1][last].y, shapes[last].first));
            NIBBLE_TRY(times[overlap],
                       time_graph(kit.stream, {16, repeats}, [&](int i) { return launch(i, overlap); }));
        }
        for (size_t i = 0; i < outputs[0].size(); ++i, ++row.check.compared)
            if (float_bits(outputs[0][i]) != float_bits(outputs[1][i]))
                row.check.note(
                    fmt::format("output {}: {} with early loads, {} without", i, outputs[1][i], outputs[0][i]));
        row.time = times[1], row.baseline_us = times[0].us;
        table.add(row);
    }
    kit.arena.release(mark);
    return Ok{};
}

}  // namespace

Status bench_fused_decode(Kit& kit, int repeats, KernelTable& table) {
    NIBBLE_CHECK(decode_rows(kit, false, repeats, table));
    return decode_rows(kit, true, repeats, table);
}

}  // namespace nibble::bench
