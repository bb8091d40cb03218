// gpu_models MODEL...: every model on a GPU beside the same model on the CPU, both in BF16: distance of the logits, the
// likeliest token, and that a row's bits on the GPU depend on no chunking, no company and no earlier call. Texts are
// the input_ids of MODEL/expect.safetensors where there is one (its logits are FP32's: the CPU's distance from them is
// the measure of the GPU's), else the same random tokens every time.
#include "models/compare.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <map>

namespace nibble::bench {
namespace {

struct Config {
    std::string device = "cuda", kv;
    SsmStateFormat ssm_state = SsmStateFormat::f32;
    std::vector<std::string> models;
    int64_t tokens = 200;
    int threads = 0;
    bool weights_only = false, no_cpu = false;
};

Result<bool> run_one(const std::string& path, const ModelOptions& options, const Config& config, ThreadPool& pool) {
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::open(path));
    NIBBLE_TRY(const DeviceChoice choice, parse_device(config.device));
    NIBBLE_TRY(const auto device, DeviceModel::load(checkpoint, options, choice, pool));
    NIBBLE_TRY(Texts texts, read_texts(path, device->config(), config.tokens));
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
        fmt::print(
            "  a row's distance from FP32: CPU {:.4f} ({} of {} rows far out), GPU {:.4f} ({}); between them {:.4f}; "
            "same likeliest token {}, KL {:.1e}{}\n",
            d.cpu_to_gold.median, d.cpu_to_gold.far, d.rows, d.device_to_gold.median, d.device_to_gold.far,
            d.to_cpu.median, d.same_top, d.kl, good ? "" : "  TOO FAR");
    }
    NIBBLE_TRY(const std::vector<Difference> differences, check_invariance(*device, texts));
    for (const Difference& d : differences) {
        good = good && d.rows == 0;
        if (d.rows > 0)
            fmt::print("  {}: {} of {} rows have other bits, the first {}\n", d.what, d.rows, d.of, d.first);
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
    int failed = 0;
    for (const std::string& path : config.models) {
        fmt::print("{}{}{}\n", path, config.weights_only ? ", weights only" : "",
                   config.kv.empty() ? "" : ", KV " + config.kv);
        const auto good = run_one(path, options, config, pool);
        if (!good.ok()) fmt::print("  {}\n", good.error().message());
        failed += !good.ok() || !*good;
        std::fflush(stdout);
    }
    fmt::print("{}\n",
               failed ? fmt::format("{} of {} models FAILED", failed, config.models.size()) : "all models agree");
    return failed ? 1 : 0;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
    nibble::bench::Config config;
    CLI::App app{"Models on a GPU beside the same models on the CPU"};
    app.add_option("models", config.models, "checkpoints")->required();
    app.add_option("--device", config.device, "cuda or cuda:N");
    app.add_option("--kv", config.kv, "bf16 or fp8_cast; default: as the checkpoint says");
    app.add_option("--ssm-state", config.ssm_state, "of Mamba-2 layers")
        ->transform(CLI::Transformer(std::map<std::string, nibble::SsmStateFormat>{
            {"f32", nibble::SsmStateFormat::f32},
            {"bf16", nibble::SsmStateFormat::bf16},
            {"fp16", nibble::SsmStateFormat::fp16},
            {"fp16_stochastic", nibble::SsmStateFormat::fp16_stochastic}}));
    app.add_option("--tokens", config.tokens, "of a random text")->check(CLI::Range(8, 100000));
    app.add_option("--threads", config.threads, "of the CPU");
    app.add_flag("--weights-only", config.weights_only, "leave activations unquantized");
    app.add_flag("--no-cpu", config.no_cpu, "the GPU against itself only");
    CLI11_PARSE(app, argc, argv);
    return nibble::bench::run(config);
}
