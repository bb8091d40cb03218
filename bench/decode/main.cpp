// gpu_decode: checks the kernels between the products, then times whole decoding steps of a Llama-3.1-8B shape in
// NVFP4 with random weights under a CUDA graph, after checking that a sequence's logits do not depend on its company.
#include "decode/model.h"
#include "bench/graph_time.h"
#include "device/report.h"
#include "formats/minifloat.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

namespace nibble::bench {
namespace {

struct Config {
    std::string device = "cuda", json;
    int64_t memory_gib = 60;
    int repeats = 7, layers = 32, context = 1024;
    std::vector<int> batches{1, 8, 16, 64};
    bool fp8_kv = false, parts = false, no_timing = false;
};

// A step without a kernel, with overlap: the difference is what the kernel costs where it stands.
Status time_parts(const Stream& stream, const DecodeModel& model, double whole, const Config& config, Report& report) {
    using Part = DecodeModel::Part;
    for (const auto& [part, name] : {std::pair{Part::norm, "norms"},
                                     {Part::qkv, "q, k, v"},
                                     {Part::rope, "rope"},
                                     {Part::attention, "attention"},
                                     {Part::out, "output"},
                                     {Part::up, "gate, up"},
                                     {Part::down, "down"},
                                     {Part::head, "head"}}) {
        NIBBLE_TRY(const double us,
                   graph_time(stream, {1, config.repeats}, [&](int) { return model.step(true, stream, part); }));
        const int times = part == Part::head ? 1 : config.layers;
        fmt::print("  {:<10} {:>8.1f} us a step, {:>6.2f} us each layer\n", name, whole - us, (whole - us) / times);
        report.timing({{"part", name}, {"us_of_a_step", whole - us}});
    }
    return Ok{};
}

// A step launched kernel by kernel, with overlap, the host ahead as far as it gets.
Result<double> launch_time(const Stream& stream, const DecodeModel& model, int repeats) {
    NIBBLE_TRY(Event begin, Event::create());
    NIBBLE_TRY(Event end, Event::create());
    std::vector<double> us;
    for (int r = -1; r < repeats; ++r) {
        NIBBLE_CHECK(stream.synchronize());
        NIBBLE_CHECK(begin.record(stream));
        NIBBLE_CHECK(model.step(true, stream));
        NIBBLE_CHECK(end.record(stream));
        NIBBLE_CHECK(end.synchronize());
        NIBBLE_TRY(const float ms, end.since(begin));
        if (r >= 0) us.push_back(1e3 * static_cast<double>(ms));
    }
    std::ranges::nth_element(us, us.begin() + std::ssize(us) / 2);
    return us[us.size() / 2];
}

// From the call that launches the graph to the host's waking up.
Result<double> wall_time(const Stream& stream, const DecodeModel& model, int repeats) {
    NIBBLE_TRY(const Graph graph, Graph::capture(stream, [&] { return model.step(true, stream); }));
    std::vector<double> us;
    for (int r = -1; r < repeats; ++r) {
        const auto start = std::chrono::steady_clock::now();
        NIBBLE_CHECK(graph.launch(stream));
        NIBBLE_CHECK(stream.synchronize());
        if (r >= 0)
            us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    std::ranges::nth_element(us, us.begin() + std::ssize(us) / 2);
    return us[us.size() / 2];
}

Result<bool> time_model(const Stream& stream, const DeviceInfo& device, DeviceArena& arena, const Config& config,
                        Report& report) {
    bool good = true;
    std::vector<std::pair<int, bool>> cases;
    for (const int batch : config.batches)
        for (const bool fuse : {false, true}) cases.emplace_back(batch, fuse);
    std::vector<float> alone, alone_fused;  // other rows are gate's and up's
    for (const auto& [batch, fuse] : cases) {
        const DeviceArena::Mark mark = arena.mark();
        ModelShape shape{.layers = config.layers, .context = config.context, .sequences = batch, .fuse = fuse};
        if (config.fp8_kv) shape.kv = cuda::KvType::e4m3;
        NIBBLE_TRY(const DecodeModel model, DecodeModel::make(shape, device, arena, stream));
        double us[2] = {};
        for (const bool overlap : {false, true}) {
            NIBBLE_TRY(us[overlap],
                       graph_time(stream, {1, config.repeats}, [&](int) { return model.step(overlap, stream); }));
            std::vector<float> logits(static_cast<size_t>(shape.vocabulary));
            NIBBLE_CHECK(copy_to_host(reinterpret_cast<std::byte*>(logits.data()),
                                      reinterpret_cast<const std::byte*>(model.logits()),
                                      static_cast<int64_t>(logits.size() * 4), stream));
            NIBBLE_CHECK(stream.synchronize());
            std::vector<float>& first = fuse ? alone_fused : alone;
            if (first.empty()) first = logits;
            int64_t differ = 0, infinite = 0;
            for (size_t i = 0; i < logits.size(); ++i) {
                differ += float_bits(logits[i]) != float_bits(first[i]);
                infinite += !std::isfinite(logits[i]);
            }
            good = good && differ == 0 && infinite == 0;
            if (differ || infinite)
                fmt::print("batch {} overlap {}: {} logits of the first sequence differ, {} not finite\n", batch,
                           overlap, differ, infinite);
        }
        NIBBLE_TRY(const double launched, launch_time(stream, model, config.repeats));
        NIBBLE_TRY(const double wall, wall_time(stream, model, config.repeats));
        const double best = std::min(us[0], us[1]);
        fmt::print(
            "Llama-8B shape, {} layers, {} KV, {} x {} tokens, {}: {:>9.1f} us, overlap {:>9.1f} us a step "
            "({:.1f} without a graph, {:.1f} by the host's clock), {:>8.1f} tok/s, {:.2f} TB/s\n",
            config.layers, config.fp8_kv ? "fp8" : "bf16", batch, config.context,
            fuse ? "fused" : "norms and activation apart", us[0], us[1], launched, wall, batch / best * 1e6,
            model.bytes() / best * 1e-6);
        std::fflush(stdout);
        report.timing({{"layers", config.layers},
                       {"kv", config.fp8_kv ? "fp8" : "bf16"},
                       {"sequences", batch},
                       {"context", config.context},
                       {"fused", fuse},
                       {"us", us[0]},
                       {"us_overlap", us[1]},
                       {"us_without_graph", launched},
                       {"us_of_the_host", wall},
                       {"tokens_per_second", batch / best * 1e6}});
        if (config.parts && fuse) NIBBLE_CHECK(time_parts(stream, model, us[1], config, report));
        arena.release(mark);
    }
    return good;
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
    if (!config.no_timing) {
        NIBBLE_TRY(const bool same, time_model(stream, info, arena, config, report));
        good = good && same;
    }
    fmt::print("{}\n", good ? "all checks passed" : "CHECKS FAILED");
    NIBBLE_CHECK(report.write(config.json));
    return good;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
    nibble::bench::Config config;
    CLI::App app{
        "Times decoding steps of a Llama-shaped model in NVFP4, checking that logits do not depend on the batch"};
    app.add_option("--device", config.device, "cuda or cuda:N");
    app.add_option("--json", config.json, "write the results here");
    app.add_option("--memory", config.memory_gib, "GiB of device memory");
    app.add_option("--repeats", config.repeats, "timed steps")->check(CLI::Range(1, 1000));
    app.add_option("--layers", config.layers, "of the model");
    app.add_option("--context", config.context, "tokens of every sequence");
    app.add_option("--batch", config.batches, "sequences");
    app.add_flag("--parts", config.parts, "also what each kernel adds to a step");
    app.add_flag("--fp8-kv", config.fp8_kv, "E4M3 cache");
    app.add_flag("--no-timing", config.no_timing);
    CLI11_PARSE(app, argc, argv);
    const auto good = nibble::bench::run(config);
    if (!good) {
        fmt::print(stderr, "gpu_decode: {}\n", good.error().message());
        return 1;
    }
    return *good ? 0 : 1;
}
