// gpu_models MODEL... or --shape NAME...: every model on a GPU beside the same model on the CPU, both in BF16: distance
// of the logits, the likeliest token, and that a row's bits on the GPU depend on no chunking, no company and no earlier
// call. Texts are the input_ids of MODEL/expect.safetensors where there is one (its logits are FP32's: the CPU's
// distance from them is the measure of the GPU's), else the same random tokens every time. A shape is a published
// model's real widths with random weights and a small vocabulary, each in every --format: kernels that only wide models
// take are compared there.
#include "checkpoint/random_checkpoint.h"
#include "device/report.h"
#include "models/compare.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <map>

namespace nibble::bench {
namespace {

struct Config {
    std::string device = "cuda", kv, json;
    SsmStateFormat ssm_state = SsmStateFormat::f32;
    std::vector<std::string> models, shapes, formats{"nvfp4"};
    int64_t tokens = 200;
    int threads = 0, layers = 0, rounds = 1;
    bool weights_only = false, no_cpu = false;
};

struct Candidate {
    std::string name, path;  // no path: random weights
    std::string shape, format;
    int layers = 0;
};

// So few that the CPU keeps up, and every kind of layer among them: the hybrid's first attention is its sixth.
int few_layers(const std::string& shape) { return shape == "nemotron-3-nano" ? 7 : 2; }

std::vector<Candidate> candidates(const Config& config) {
    std::vector<Candidate> all;
    for (const std::string& path : config.models) all.push_back({.name = path, .path = path});
    for (const std::string& shape : config.shapes)
        for (const std::string& format : config.formats) {
            const int layers = config.layers ? config.layers : few_layers(shape);
            all.push_back({.name = fmt::format("{} in {}, random weights, {} layers", shape, format, layers),
                           .shape = shape,
                           .format = format,
                           .layers = layers});
        }
    return all;
}

Result<std::unique_ptr<Checkpoint>> open(const Candidate& c, const Config& config) {
    if (!c.path.empty()) return Checkpoint::open(c.path);
    return random_checkpoint(
        {.shape = c.shape, .format = c.format, .inputs = !config.weights_only, .layers = c.layers, .vocab = 8192});
}

Result<bool> run_one(const Candidate& candidate, const ModelOptions& options, const Config& config, ThreadPool& pool,
                     Report& report) {
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> checkpoint, open(candidate, config));
    NIBBLE_TRY(const DeviceChoice choice, parse_device(config.device));
    NIBBLE_TRY(const auto device, DeviceModel::load(checkpoint, options, choice, pool));
    NIBBLE_TRY(Texts texts, read_texts(candidate.path, device->config(), config.tokens));
    bool good = true;
    if (!config.no_cpu) {
        if (texts.gold.empty() || !config.kv.empty()) {
            ModelOptions exact = options;
            exact.compute = Compute::f32;
            NIBBLE_TRY(const Model gold, Model::load(checkpoint, exact, pool));
            NIBBLE_TRY(texts.gold, all_rows(gold, texts.ids));
        }
        NIBBLE_TRY(const Model cpu, Model::load(checkpoint, options, pool));
        NIBBLE_TRY(const Distance d, compare(cpu, *device, texts));
        good = d.good();
        report.check(candidate.name + ": distance from FP32", d.rows, good ? 0 : d.rows, d.device_to_gold.median);
        fmt::print(
            "  a row's distance from FP32: CPU {:.4f} ({} of {} rows far out), GPU {:.4f} ({}); between them {:.4f}; "
            "same likeliest token {}, KL {:.1e}{}\n",
            d.cpu_to_gold.median, d.cpu_to_gold.far, d.rows, d.device_to_gold.median, d.device_to_gold.far,
            d.to_cpu.median, d.same_top, d.kl, good ? "" : "  TOO FAR");
    }
    NIBBLE_TRY(const std::vector<Difference> differences, check_invariance(*device, texts, config.rounds));
    for (const Difference& d : differences) {
        report.check(candidate.name + ": " + d.what, d.of, d.rows);
        good = good && d.rows == 0;
        if (d.rows > 0)
            fmt::print("  {}: {} of {} rows have other bits, the first {}, up to {:.1e} apart\n", d.what, d.rows, d.of,
                       d.first, d.worst);
    }
    if (good) fmt::print("  {} invariances hold\n", differences.size());
    return good;
}

int run(const Config& config) {
    ThreadPool pool(config.threads);
    ModelOptions options;
    options.quantize_activations = !config.weights_only;
    options.ssm_state = config.ssm_state;
    if (!config.kv.empty()) options.kv = config.kv == "bf16" ? KvFormat::none : kv_from_name(config.kv);
    Report report;
    report.json["device"] = config.device;
    int failed = 0;
    const std::vector<Candidate> all = candidates(config);
    for (const Candidate& candidate : all) {
        fmt::print("{}{}{}\n", candidate.name, config.weights_only ? ", weights only" : "",
                   config.kv.empty() ? "" : ", KV " + config.kv);
        const auto good = run_one(candidate, options, config, pool, report);
        if (!good.ok()) fmt::print("  {}\n", good.error().message());
        failed += !good.ok() || !*good;
        if (!good.ok()) report.check(candidate.name + ": " + good.error().message(), 0, 1);
        std::fflush(stdout);
    }
    fmt::print("{}\n", failed ? fmt::format("{} of {} models FAILED", failed, all.size()) : "all models agree");
    const Status written = report.write(config.json);
    if (!written.ok()) fmt::print(stderr, "gpu_models: {}\n", written.error().message());
    return failed || !written.ok() ? 1 : 0;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
    nibble::bench::Config config;
    CLI::App app{"Models on a GPU beside the same models on the CPU"};
    app.add_option("models", config.models, "checkpoints");
    app.add_option("--shape", config.shapes,
                   "random weights in the shape of llama-8b, qwen3-30b-a3b, nemotron-3-nano ...");
    app.add_option("--format", config.formats, "of a --shape's linears: bf16, fp8, nvfp4 ...")->capture_default_str();
    app.add_option("--layers", config.layers, "of a --shape; default: a few")->check(CLI::Range(1, 1000));
    app.add_option("--device", config.device, "cuda or cuda:N");
    app.add_option("--json", config.json, "write the results here");
    app.add_option("--kv", config.kv, "bf16 or fp8_cast; default: as the checkpoint says");
    app.add_option("--ssm-state", config.ssm_state, "of Mamba-2 layers")
        ->transform(CLI::Transformer(std::map<std::string, nibble::SsmStateFormat>{
            {"f32", nibble::SsmStateFormat::f32},
            {"bf16", nibble::SsmStateFormat::bf16},
            {"fp16", nibble::SsmStateFormat::fp16},
            {"fp16_stochastic", nibble::SsmStateFormat::fp16_stochastic}}));
    app.add_option("--tokens", config.tokens, "of a random text")->check(CLI::Range(8, 100000));
    app.add_option("--rounds", config.rounds, "of all invariances")->check(CLI::Range(1, 100000));
    app.add_option("--threads", config.threads, "of the CPU");
    app.add_flag("--weights-only", config.weights_only, "leave activations unquantized");
    app.add_flag("--no-cpu", config.no_cpu, "the GPU against itself only");
    CLI11_PARSE(app, argc, argv);
    if (config.models.empty() && config.shapes.empty()) return app.exit(CLI::RequiredError("MODEL or --shape"));
    return nibble::bench::run(config);
}
