// Llama-3.1-8B's layer as one kernel, and shorter chains of it, over copies of the weights.
#include "bench/graph_time.h"
#include "engine/timing.h"
#include "kernels/product_chain_cuda.h"

#include <vector>

namespace nibble::bench {

namespace {

Status time_chain(const Kit& given, Report& report, bool records) {
    Kit kit = given;
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
    cuda::ChainedProduct layer[copies][4];
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
        double us[2] = {};
        for (const bool overlap : {false, true}) {
            NIBBLE_TRY(us[overlap], graph_time(kit.stream, {16, 7}, [&](int i) {
                           const cuda::ProductChain chain{
                               .products = std::span(layer[i % copies]).subspan(part.first, part.count),
                               .h = h,
                               .h_out = h_out,
                               .eps = 1e-5f,
                               .between = between + i % 2 * between_bytes,
                               .used = between + (i + 1) % 2 * between_bytes,
                               .used_bytes = between_bytes,
                               .meet = meet};
                           return cuda::chain_products(chain, overlap, kit.device, kit.stream);
                       }));
        }
        const double best = std::min(us[0], us[1]);
        fmt::print("chain {:<8} {:<16} {:>9.2f} us overlap {:>9.2f} us {:>5.2f} TB/s\n", records ? "records" : "codes",
                   part.name, us[0], us[1], static_cast<double>(bytes) / best * 1e-6);
        report.timing({{"chain", part.name}, {"records", records}, {"us", us[0]}, {"us_overlap", us[1]}});
    }
    kit.arena.release(mark);
    return Ok{};
}

}  // namespace

Status time_chains(const Kit& kit, Report& report) {
    NIBBLE_CHECK(time_chain(kit, report, false));
    return time_chain(kit, report, true);
}

}  // namespace nibble::bench
