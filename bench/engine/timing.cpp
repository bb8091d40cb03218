#include "engine/timing.h"

#include "bench/graph_time.h"
#include "kernels/matmul_cuda.h"
#include "kernels/product_cuda.h"

#include <algorithm>
#include <cstdio>

namespace nibble::bench {

Status time_products(const Kit& given, Report& report) {
    Kit kit = given;
    NIBBLE_CHECK(cuda::prepare_products(kit.device));
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8192, 8192},
                               {4096, 4096},
                               {6144, 4096},
                               {28672, 4096},
                               {4096, 14336},
                               {128256, 4096},
                               {1536, 576}})
        for (const int64_t m : {1, 8, 16, 64, 256, 2048, 8192}) {
            if (m >= 2048 && n > 28672) continue;
            const DeviceArena::Mark mark = kit.arena.mark();
            const int64_t bytes = cuda::operand_bytes(n, k);
            const auto copies = static_cast<int>(std::max<int64_t>(2, (int64_t{400} << 20) / bytes + 1));
            NIBBLE_TRY(std::byte * tiles, kit.arena.allocate(bytes * copies));
            const std::vector<uint16_t> noise = kit.normal_bf16(int64_t{1} << 20, 1.0f);
            const int64_t piece = std::ssize(noise) * 2, all = bytes * copies;
            for (int64_t at = 0; at < all; at += piece) {
                const int64_t here = std::min(piece, all - at);
                NIBBLE_CHECK(
                    at ? copy_on_device(tiles + at, tiles, here, kit.stream)
                       : copy_to_device(tiles, reinterpret_cast<const std::byte*>(noise.data()), here, kit.stream));
            }
            NIBBLE_TRY(std::byte * x, kit.arena.allocate(m * k * 2));
            for (int64_t at = 0; at < m * k * 2; at += piece)
                NIBBLE_CHECK(copy_on_device(x + at, tiles, std::min(piece, std::min(m * k * 2 - at, all)), kit.stream));
            NIBBLE_TRY(float* y, kit.arena.allocate_array<float>(m * n));
            double us[2] = {};
            for (const bool overlap : {false, true}) {
                NIBBLE_TRY(us[overlap], graph_time(kit.stream,
                                                   {m >= 2048  ? 4
                                                    : m >= 256 ? 12
                                                               : 4 * copies,
                                                    7},
                                                   [&](int i) {
                                                       return cuda::product(
                                                           {.x = x, .tokens = m},
                                                           {.rows = n, .cols = k, .tiles = tiles + i % copies * bytes},
                                                           y, 0, overlap, kit.stream);
                                                   }));
            }
            const double best = std::min(us[0], us[1]);
            const double read = static_cast<double>(bytes + m * (2 * k + 4 * n));
            const double operations = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
            fmt::print("product {:>6}x{:<6} m {:>4} {:>9.2f} us overlap {:>9.2f} us {:>5.2f} TB/s {:>4.0f} TF\n", n, k,
                       m, us[0], us[1], read / best * 1e-6, operations / best * 1e-6);
            std::fflush(stdout);
            report.timing({{"n", n},
                           {"k", k},
                           {"m", m},
                           {"us", us[0]},
                           {"us_overlap", us[1]},
                           {"tb_per_second", read / best * 1e-6},
                           {"tflops", operations / best * 1e-6}});
            kit.arena.release(mark);
        }
    return Ok{};
}

// W8A8 on the FP8 tensor cores, per tensor and 128 x 128 with 1 x 128; inputs quantized before.
Status time_codes(const Kit& given, Report& report) {
    Kit kit = given;
    NIBBLE_CHECK(cuda::prepare_products(kit.device));
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8192, 8192},
                               {7168, 16384},
                               {16384, 7168},
                               {4096, 4096},
                               {6144, 4096},
                               {28672, 4096},
                               {4096, 14336}})
        for (const int64_t m : {1, 8, 16, 64, 128, 512, 8192})
            for (const bool blocks : {false, true}) {
                if (m == 8192 && (n > 8192 || k > 8192)) continue;
                const DeviceArena::Mark mark = kit.arena.mark();
                const int64_t bytes = cuda::codes_bytes(n, k), pitch = cuda::codes_pitch(k), groups = k / 128;
                const auto copies = static_cast<int>(std::max<int64_t>(2, (int64_t{400} << 20) / bytes + 1));
                std::vector<uint8_t> noise(size_t{1} << 22);
                for (uint8_t& c : noise) c = static_cast<uint8_t>(kit.random() & 0xBF);  // below 2, never NaN
                NIBBLE_TRY(const std::byte* pool, kit.upload_bytes(noise));
                const auto fill = [&](std::byte* to, int64_t all) -> Status {
                    for (int64_t at = 0; at < all; at += std::ssize(noise))
                        NIBBLE_CHECK(copy_on_device(to + at, pool, std::min(std::ssize(noise), all - at), kit.stream));
                    return Ok{};
                };
                NIBBLE_TRY(std::byte * tiles, kit.arena.allocate(bytes * copies));
                NIBBLE_CHECK(fill(tiles, bytes * copies));
                NIBBLE_TRY(std::byte * x, kit.arena.allocate(m * pitch));
                NIBBLE_CHECK(fill(x, m * pitch));
                NIBBLE_TRY(float* y, kit.arena.allocate_array<float>(m * n));
                cuda::ProductInput in{.x = x, .codes = true, .tokens = m};
                cuda::Operand w{.rows = n, .cols = k, .codes = true};
                if (blocks) {
                    NIBBLE_TRY(in.group_scales, kit.upload(kit.normal(m * groups, 1.0f)));
                    NIBBLE_TRY(w.tile_scales, kit.upload(kit.normal(((n + 127) / 128) * groups, 1.0f)));
                }
                double us[2] = {};
                for (const bool overlap : {false, true}) {
                    NIBBLE_TRY(us[overlap], graph_time(kit.stream,
                                                       {m >= 2048  ? 4
                                                        : m >= 512 ? 12
                                                                   : 2 * copies,
                                                        7},
                                                       [&](int i) {
                                                           w.tiles = tiles + i % copies * bytes;
                                                           return cuda::product(in, w, y, 0, overlap, kit.stream);
                                                       }));
                }
                const double best = std::min(us[0], us[1]), read = static_cast<double>(bytes + m * (k + 4 * n));
                const double operations =
                    2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
                fmt::print("W8A8 {} {:>6}x{:<6} m {:>4} {:>9.2f} us overlap {:>9.2f} us {:>5.2f} TB/s {:>4.0f} TF\n",
                           blocks ? "block128" : "tensor  ", n, k, m, us[0], us[1], read / best * 1e-6,
                           operations / best * 1e-6);
                std::fflush(stdout);
                report.timing({{"w8a8", blocks ? "block128" : "tensor"},
                               {"n", n},
                               {"k", k},
                               {"m", m},
                               {"us", us[0]},
                               {"us_overlap", us[1]},
                               {"tflops", operations / best * 1e-6}});
                kit.arena.release(mark);
            }
    return Ok{};
}

// Experts in NVFP4 records, each token's six drawn at random without repetition; L2 cold through copies of the weights.
Status time_grouped(const Kit& given, Report& report) {
    Kit kit = given;
    NIBBLE_CHECK(cuda::prepare_grouped_matmul(kit.device));
    constexpr int count = 128, top_k = 6;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1856, 2688}, {2688, 1856}})
        for (const int tokens : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048}) {
            const DeviceArena::Mark mark = kit.arena.mark();
            const int64_t bytes = cuda::packed_bytes(n, k), all = bytes * count;
            const int copies = tokens < 64 ? 6 : 3;
            NIBBLE_TRY(std::byte * records, kit.arena.allocate(all * copies));
            // Any bytes are valid records.
            const std::vector<uint16_t> noise = kit.normal_bf16(int64_t{1} << 22, 1.0f);
            const int64_t piece = std::ssize(noise) * 2;
            for (int64_t at = 0; at < all * copies; at += piece) {
                const int64_t here = std::min(piece, all * copies - at);
                NIBBLE_CHECK(
                    at ? copy_on_device(records + at, records, here, kit.stream)
                       : copy_to_device(records, reinterpret_cast<const std::byte*>(noise.data()), here, kit.stream));
            }
            constexpr int draws = 8;
            std::vector<const int32_t*> begins, rows;
            double hit = 0;
            for (int d = 0; d < draws; ++d) {
                std::vector<std::vector<int32_t>> of(count);
                for (int t = 0; t < tokens; ++t)
                    for (int i = 0; i < top_k;) {
                        auto& list = of[kit.random() % count];
                        if (!list.empty() && list.back() == t) continue;
                        list.push_back(t), ++i;
                    }
                std::vector<int32_t> begin{0}, sorted;
                for (const auto& list : of) {
                    sorted.insert(sorted.end(), list.begin(), list.end());
                    begin.push_back(static_cast<int32_t>(sorted.size()));
                    hit += !list.empty() / double{draws};
                }
                NIBBLE_TRY(const int32_t* device_begin, kit.upload(begin));
                NIBBLE_TRY(const int32_t* device_rows, kit.upload(sorted));
                begins.push_back(device_begin), rows.push_back(device_rows);
            }
            NIBBLE_TRY(const float* scales, kit.upload(std::vector<float>(static_cast<size_t>(count * n), 1e-6f)));
            NIBBLE_TRY(const std::byte* x, kit.upload_bytes(kit.normal_bf16(tokens * k, 1.0f)));
            NIBBLE_TRY(float* y, kit.arena.allocate_array<float>(tokens * top_k * n));
            double us[2] = {};
            for (const bool overlap : {false, true}) {
                NIBBLE_TRY(us[overlap], graph_time(kit.stream, {tokens > 64 ? 24 : 48, 7}, [&](int i) {
                               const cuda::PackedExperts w{.count = count,
                                                           .first = {n, k, records + i % copies * all},
                                                           .row_scales = scales,
                                                           .begin = begins[size_t(i % draws)]};
                               return cuda::grouped_matmul(
                                   {.x = x, .rows = rows[size_t(i % draws)], .slots = tokens * top_k}, w, {.y = y},
                                   overlap, kit.stream);
                           }));
            }
            const double best = std::min(us[0], us[1]), read = hit * static_cast<double>(bytes);
            const double operations = 2.0 * tokens * top_k * static_cast<double>(n) * static_cast<double>(k);
            fmt::print(
                "experts W4A16 {:>5}x{:<5} {:>4} tokens, {:>5.1f} hit {:>8.2f} us overlap {:>8.2f} us {:>5.2f} TB/s "
                "{:>4.0f} TF\n",
                n, k, tokens, hit, us[0], us[1], read / best * 1e-6, operations / best * 1e-6);
            std::fflush(stdout);
            report.timing({{"experts_w4a16", count},
                           {"n", n},
                           {"k", k},
                           {"tokens", tokens},
                           {"hit", hit},
                           {"us", us[0]},
                           {"us_overlap", us[1]},
                           {"tb_per_second", read / best * 1e-6}});
            kit.arena.release(mark);
        }
    return Ok{};
}

// Experts in BF16 operands, each token's drawn at random: what is read are the experts hit.
Status time_experts(const Kit& given, Report& report) {
    Kit kit = given;
    constexpr int count = 128, top_k = 6;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1856, 2688}, {2688, 1856}})
        for (const int tokens : {1, 64, 2048}) {
            const DeviceArena::Mark mark = kit.arena.mark();
            const int64_t bytes = cuda::operand_bytes(n, k);
            NIBBLE_TRY(std::byte * tiles, kit.arena.allocate(bytes * count));
            NIBBLE_CHECK(fill_device(tiles, 0x3C, bytes * count, kit.stream));
            std::vector<int32_t> hits(count), begin{0}, rows;
            for (int t = 0; t < tokens; ++t)
                for (int i = 0; i < top_k; ++i) ++hits[kit.random() % count];
            int64_t hit = 0;
            for (const int h : hits) begin.push_back(begin.back() + h), hit += h > 0;
            for (int i = 0; i < begin.back(); ++i) rows.push_back(i % tokens);
            NIBBLE_TRY(std::byte * x, kit.arena.allocate(tokens * k * 2));
            NIBBLE_CHECK(fill_device(x, 0x3C, tokens * k * 2, kit.stream));
            NIBBLE_TRY(float* y, kit.arena.allocate_array<float>(begin.back() * n));
            cuda::Experts experts{.count = count, .first = {.rows = n, .cols = k, .tiles = tiles}};
            NIBBLE_TRY(experts.begin, kit.upload(begin));
            cuda::ProductInput in{.x = x, .tokens = begin.back()};
            NIBBLE_TRY(in.rows, kit.upload(rows));
            NIBBLE_TRY(const double us, graph_time(kit.stream, {8, 7}, [&](int) {
                           return cuda::grouped_product(in, experts, y, 0, true, kit.stream);
                       }));
            const double read = static_cast<double>(hit * bytes);
            const double operations = 2.0 * begin.back() * static_cast<double>(n) * static_cast<double>(k);
            fmt::print("experts {:>6}x{:<6} {:>4} tokens, {} of {} hit {:>9.2f} us {:>5.2f} TB/s {:>4.0f} TF\n", n, k,
                       tokens, hit, count, us, read / us * 1e-6, operations / us * 1e-6);
            std::fflush(stdout);
            report.timing({{"experts", count}, {"n", n}, {"k", k}, {"tokens", tokens}, {"us", us}});
            kit.arena.release(mark);
        }
    return Ok{};
}

}  // namespace nibble::bench
