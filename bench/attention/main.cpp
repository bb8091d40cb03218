// gpu_attention: checks paged decode attention, then times it against the bytes of keys and values it reads.
#include "attention/check.h"
#include "device/graph.h"
#include "device/report.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <numeric>
#include <random>

namespace nibble::bench {
namespace {

using cuda::KvType;

constexpr int head_dim = 128;

struct Config {
    std::string device = "cuda", json;
    int64_t memory_gib = 24;
    uint64_t seed = 1;
    int repeats = 15, page_tokens = 16;
    std::vector<std::string> shapes{"1x1024", "1x4096", "1x32768", "16x1024", "16x4096", "64x4096"};
    bool small = false, no_check = false, no_timing = false;
};

Result<double> time_shape(KvType type, int sequences, int tokens, const Stream& stream, const DeviceInfo& device,
                          DeviceArena& arena, const Config& config, Report& report) {
    constexpr int q_heads = 32, kv_heads = 8;
    const DeviceArena::Mark mark = arena.mark();
    const cuda::KvShape kv{type, kv_heads, config.page_tokens};
    const int64_t pitch = (tokens + kv.page_tokens - 1) / kv.page_tokens, pages = sequences * pitch;
    const int64_t cache_bytes = pages * kv.page_bytes();
    // Launches go through copies of the cache so that none finds its pages in L2.
    const auto copies = static_cast<int>((int64_t{640} << 20) / cache_bytes + 1);
    std::mt19937_64 random(config.seed);
    std::vector<uint32_t> piece(size_t{4} << 20);
    for (uint32_t& word : piece) {
        word = static_cast<uint32_t>(random());
        // BF16 of magnitude 2^-8 ... 2; E4M3 without NaN.
        word = type == KvType::bf16 ? (word & 0x83FF83FFu) | 0x3C003C00u : word & 0xBFBFBFBFu;
    }
    const auto piece_bytes = static_cast<int64_t>(piece.size() * 4);
    NIBBLE_TRY(std::byte * cache, arena.allocate(cache_bytes * copies));
    for (int64_t at = 0; at < cache_bytes * copies; at += piece_bytes) {
        const int64_t bytes = std::min(piece_bytes, cache_bytes * copies - at);
        NIBBLE_CHECK(at ? copy_on_device(cache + at, cache, bytes, stream)
                        : copy_to_device(cache, reinterpret_cast<const std::byte*>(piece.data()), bytes, stream));
    }
    std::vector<int32_t> table(static_cast<size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), random);
    const auto put = [&]<class T>(const std::vector<T>& host) -> Result<T*> {
        NIBBLE_TRY(T * p, arena.allocate_array<T>(static_cast<int64_t>(host.size())));
        NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(p), reinterpret_cast<const std::byte*>(host.data()),
                                    static_cast<int64_t>(host.size() * sizeof(T)), stream));
        return p;
    };
    std::vector<cuda::AttentionSegment> segments;
    for (int i = 0; i < sequences; ++i) segments.push_back({i, 1, tokens - 1, i});
    NIBBLE_TRY(const cuda::AttentionPlan plan, cuda::plan_attention({.kv = kv,
                                                                     .q_heads = q_heads,
                                                                     .softmax_scale = 0.088f,
                                                                     .table_pitch = pitch,
                                                                     .most_segments = sequences,
                                                                     .most_rows = sequences,
                                                                     .most_tokens = tokens},
                                                                    device));
    NIBBLE_TRY(const cuda::AttentionWork work, cuda::attention_work(plan, segments));
    cuda::AttentionInput in;
    NIBBLE_TRY(in.table, put(table));
    NIBBLE_TRY(in.work, put(work.words));
    const int64_t q_bytes = int64_t{sequences} * q_heads * head_dim * 2;
    NIBBLE_TRY(std::byte * q, arena.allocate(q_bytes));
    NIBBLE_CHECK(copy_on_device(q, cache, q_bytes, stream));
    in.q = q;
    NIBBLE_TRY(std::byte * out, arena.allocate(q_bytes));
    const std::vector<float> scales(kv_heads, 0.01f);
    NIBBLE_TRY(const float* device_scales, put(scales));
    NIBBLE_TRY(std::byte * workspace, arena.allocate(plan.workspace_bytes));
    double us[2] = {};
    for (const bool overlap : {false, true}) {
        NIBBLE_TRY(
            us[overlap],
            graph_time(stream, {cache_bytes > (int64_t{1} << 29) ? 8 : 4 * std::min(copies, 24), config.repeats},
                       [&](int i) {
                           const cuda::KvCache at{kv, cache + i % copies * cache_bytes, device_scales, device_scales};
                           return cuda::attend(plan, in, at, out, workspace, overlap, stream);
                       }));
    }
    fmt::print("attention {} {:>3} x {:<6} {:>8.2f} us overlap {:>8.2f} us {:>5.2f} TB/s  {} blocks\n",
               type == KvType::bf16 ? "bf16" : "e4m3", sequences, tokens, us[0], us[1],
               static_cast<double>(cache_bytes) / std::min(us[0], us[1]) * 1e-6, plan.blocks);
    std::fflush(stdout);
    report.timing({{"kv", type == KvType::bf16 ? "bf16" : "e4m3"},
                   {"sequences", sequences},
                   {"tokens", tokens},
                   {"page_tokens", config.page_tokens},
                   {"us", us[0]},
                   {"us_overlap", us[1]},
                   {"tb_per_second", static_cast<double>(cache_bytes) / std::min(us[0], us[1]) * 1e-6}});
    arena.release(mark);
    return std::min(us[0], us[1]);
}

// One prompt of `tokens`, its keys and values in the cache.
Status time_prefill(int tokens, int head_dim_here, const Stream& stream, const DeviceInfo& device, DeviceArena& arena,
                    const Config& config, Report& report) {
    constexpr int q_heads = 32, kv_heads = 8;
    const DeviceArena::Mark mark = arena.mark();
    const cuda::KvShape kv{KvType::bf16, kv_heads, 64, head_dim_here, head_dim_here};
    const int64_t pitch = (tokens + 63) / 64;
    std::mt19937_64 random(config.seed);
    std::vector<uint32_t> words(static_cast<size_t>(int64_t{tokens} * q_heads * head_dim_here / 2));
    for (uint32_t& word : words) word = (static_cast<uint32_t>(random()) & 0x83FF83FFu) | 0x3C003C00u;
    std::vector<int32_t> table(static_cast<size_t>(pitch));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), random);
    const auto put = [&]<class T>(const std::vector<T>& host) -> Result<T*> {
        NIBBLE_TRY(T * p, arena.allocate_array<T>(static_cast<int64_t>(host.size())));
        NIBBLE_CHECK(copy_to_device(reinterpret_cast<std::byte*>(p), reinterpret_cast<const std::byte*>(host.data()),
                                    static_cast<int64_t>(host.size() * sizeof(T)), stream));
        return p;
    };
    NIBBLE_TRY(const cuda::AttentionPlan plan, cuda::plan_attention({.kv = kv,
                                                                     .q_heads = q_heads,
                                                                     .softmax_scale = 0.088f,
                                                                     .table_pitch = pitch,
                                                                     .most_segments = 1,
                                                                     .most_rows = tokens,
                                                                     .most_tokens = tokens},
                                                                    device));
    NIBBLE_TRY(const cuda::AttentionWork work,
               cuda::attention_work(plan, std::vector<cuda::AttentionSegment>{{0, tokens, 0, 0}}));
    cuda::AttentionInput in;
    NIBBLE_TRY(const uint32_t* q, put(words));
    in.q = reinterpret_cast<const std::byte*>(q);
    NIBBLE_TRY(in.table, put(table));
    NIBBLE_TRY(in.work, put(work.words));
    cuda::KvCache cache{kv};
    NIBBLE_TRY(cache.pages, arena.allocate(pitch * kv.page_bytes()));
    for (int64_t at = 0; at < pitch * kv.page_bytes(); at += std::ssize(words) * 4)
        NIBBLE_CHECK(copy_on_device(cache.pages + at, in.q,
                                    std::min<int64_t>(std::ssize(words) * 4, pitch * kv.page_bytes() - at), stream));
    NIBBLE_TRY(std::byte * out, arena.allocate(std::ssize(words) * 4));
    NIBBLE_TRY(std::byte * workspace, arena.allocate(plan.workspace_bytes));
    NIBBLE_TRY(const double us, graph_time(stream, {4, 5}, [&](int) {
                   return cuda::attend(plan, in, cache, out, workspace, true, stream);
               }));
    const double operations = 2.0 * tokens * (tokens + 1.0) * q_heads * head_dim_here;
    fmt::print("prefill head {} {:>6} tokens {:>10.1f} us {:>4.0f} TF\n", head_dim_here, tokens, us,
               operations / us * 1e-6);
    std::fflush(stdout);
    report.timing({{"prefill", tokens}, {"head", head_dim_here}, {"us", us}, {"tflops", operations / us * 1e-6}});
    arena.release(mark);
    return Ok{};
}

Result<bool> run(const Config& config) {
    NIBBLE_TRY(const DeviceChoice choice, parse_device(config.device));
    NIBBLE_TRY(const DeviceInfo info, open_device(choice));
    fmt::print("{}: {} multiprocessors\n", info.name, info.multiprocessors);
    NIBBLE_TRY(Stream stream, Stream::create(info.index));
    NIBBLE_TRY(DeviceArena arena, DeviceArena::create(info.index, config.memory_gib << 30));
    Report report;
    report.json["device"] = info.name;
    bool good = true;
    if (!config.no_check) {
        NIBBLE_TRY(const auto checks, check_attention(stream, info, arena, config.seed, config.small));
        for (const Check& c : checks) {
            good = good && c.wrong == 0 && c.compared > 0;
            report.check(c.name, c.compared, c.wrong, c.worst);
            fmt::print("{:<68} {:>9} compared {:>7} wrong{}{}\n", c.name, c.compared, c.wrong,
                       c.worst > 0 ? fmt::format("  worst {:.2e}", c.worst) : "", c.wrong ? "  " + c.first : "");
        }
        fmt::print("{}\n", good ? "all checks passed" : "CHECKS FAILED");
        std::fflush(stdout);
    }
    if (!config.no_timing)
        for (const std::string& shape : config.shapes) {
            int sequences = 0, tokens = 0;
            if (std::sscanf(shape.c_str(), "%dx%d", &sequences, &tokens) != 2)
                return fail("--shape {}: expected SEQUENCESxTOKENS", shape);
            NIBBLE_TRY(const double wide,
                       time_shape(KvType::bf16, sequences, tokens, stream, info, arena, config, report));
            NIBBLE_TRY(const double narrow,
                       time_shape(KvType::e4m3, sequences, tokens, stream, info, arena, config, report));
            fmt::print("attention bf16 / e4m3 {:>3} x {:<6} {:.2f}\n", sequences, tokens, wide / narrow);
        }
    if (!config.no_timing)
        for (const auto& [tokens, head] : {std::pair{512, 128}, {4096, 128}, {16384, 128}, {16384, 64}})
            NIBBLE_CHECK(time_prefill(tokens, head, stream, info, arena, config, report));
    NIBBLE_CHECK(report.write(config.json));
    return good;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
    nibble::bench::Config config;
    CLI::App app{"Checks and times paged decode attention"};
    app.add_option("--device", config.device, "cuda or cuda:N");
    app.add_option("--json", config.json, "write the results here");
    app.add_option("--memory", config.memory_gib, "GiB of device memory");
    app.add_option("--seed", config.seed, "of the checked data");
    app.add_option("--repeats", config.repeats, "timed runs")->check(CLI::Range(1, 1000));
    app.add_option("--page", config.page_tokens, "tokens of a page in timed runs");
    app.add_option("--shape", config.shapes, "SEQUENCESxTOKENS to time");
    app.add_flag("--small", config.small, "short sequences only");
    app.add_flag("--no-check", config.no_check);
    app.add_flag("--no-timing", config.no_timing);
    CLI11_PARSE(app, argc, argv);
    const auto good = nibble::bench::run(config);
    if (!good) {
        fmt::print(stderr, "gpu_attention: {}\n", good.error().message());
        return 1;
    }
    return *good ? 0 : 1;
}
