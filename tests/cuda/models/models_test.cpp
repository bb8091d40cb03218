// Compares every model on a GPU with the same model on the CPU, both in BF16: distance of the logits, the most likely
// token, and independence of a GPU row's bits from chunks, other rows and earlier calls. Texts are the input_ids of
// MODEL/expect.safetensors if it exists (its logits are FP32; the CPU's distance from them limits the GPU's), else
// fixed random tokens. A shape has a published model's real sizes with random weights, few layers and a small
// vocabulary, to cover kernels for wide models. Environment:
//   NIBBLE_CUDA_MODELS  folders of checkpoints, separated by colons, in addition to the shapes
//   NIBBLE_CUDA_KV      bf16 or fp8_cast; default: as in the checkpoint
//   NIBBLE_CUDA_TOKENS  tokens of a random text (default 200)
//   NIBBLE_CUDA_ROUNDS  rounds of all invariance checks (default 1)
//   NIBBLE_CUDA_NO_CPU  if set, the GPU is compared with itself only
#include "checkpoint/random_checkpoint.h"
#include "cuda/models/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace nibble::bench {
namespace {

std::string setting(const char* name, const char* otherwise = "") {
    const char* value = std::getenv(name);
    return value ? value : otherwise;
}

struct Candidate {
    std::string path;  // empty: random weights
    std::string shape, format;
    int layers = 0;
    bool weights_only = false;
};

// Few layers, so that the CPU is fast enough, but all kinds of layers: the hybrid's first attention is its sixth layer.
std::vector<Candidate> model_candidates() {
    std::vector<Candidate> all;
    for (const bool weights_only : {false, true}) {
        for (const char* shape : {"llama-8b", "qwen3-30b-a3b", "nemotron-3-nano"})
            for (const char* format : {"nvfp4", "fp8", "bf16"})
                if (!weights_only || std::string_view(format) != "bf16")
                    all.push_back({.shape = shape,
                                   .format = format,
                                   .layers = std::string_view(shape) == "nemotron-3-nano" ? 7 : 2,
                                   .weights_only = weights_only});
        for (const char* shape : {"qwen3.5-35b-a3b", "qwen3.6-27b"})  // three gated delta nets and an attention
            all.push_back({.shape = shape, .format = "nvfp4", .layers = 4, .weights_only = weights_only});
        std::string list = setting("NIBBLE_CUDA_MODELS");
        while (!list.empty()) {
            const size_t colon = std::min(list.find(':'), list.size());
            all.push_back({.path = list.substr(0, colon), .weights_only = weights_only});
            list.erase(0, colon + 1);
        }
    }
    return all;
}

std::string candidate_name(const testing::TestParamInfo<Candidate>& info) {
    const Candidate& c = info.param;
    std::string name = (c.path.empty() ? c.shape + "_" + c.format : c.path.substr(c.path.find_last_of('/') + 1)) +
                       (c.weights_only ? "_weights_only" : "");
    for (char& letter : name)
        if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
    return c.path.empty() ? name : fmt::format("{}_{}", name, info.index);
}

class CudaModels : public testing::TestWithParam<Candidate> {};

Result<std::unique_ptr<Checkpoint>> open_candidate(const Candidate& c) {
    if (!c.path.empty()) return Checkpoint::open(c.path);
    return random_checkpoint(
        {.shape = c.shape, .format = c.format, .inputs = !c.weights_only, .layers = c.layers, .vocab = 8192});
}

Status compare_with_cpu(const std::shared_ptr<const Checkpoint>& checkpoint, const ModelOptions& options,
                        const LanguageModel& device, Texts& texts, ThreadPool& pool) {
    if (texts.gold.empty() || options.kv) {
        ModelOptions exact = options;
        exact.compute = Compute::f32;
        NIBBLE_TRY(const Model gold, Model::load(checkpoint, exact, pool));
        NIBBLE_TRY(texts.gold, all_rows(gold, texts.ids));
    }
    NIBBLE_TRY(const Model cpu, Model::load(checkpoint, options, pool));
    NIBBLE_TRY(const Distance d, compare(cpu, device, texts));
    EXPECT_TRUE(d.good()) << fmt::format(
        "a row's distance from FP32: CPU {:.4f} ({} of {} rows far out), GPU {:.4f} ({}); between them {:.4f}; same "
        "likeliest token {}, KL {:.1e}",
        d.cpu_to_gold.median, d.cpu_to_gold.far, d.rows, d.device_to_gold.median, d.device_to_gold.far, d.to_cpu.median,
        d.same_top, d.kl);
    testing::Test::RecordProperty("rows", std::to_string(d.rows));
    testing::Test::RecordProperty("gpu_from_fp32", fmt::format("{:.4f}", d.device_to_gold.median));
    testing::Test::RecordProperty("cpu_from_fp32", fmt::format("{:.4f}", d.cpu_to_gold.median));
    return Ok{};
}

Status check_model(const Candidate& c) {
    ThreadPool pool;
    ModelOptions options;
    options.quantize_activations = !c.weights_only;
    if (const std::string kv = setting("NIBBLE_CUDA_KV"); !kv.empty())
        options.kv = kv == "bf16" ? KvFormat::none : kv_from_name(kv);
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> checkpoint, open_candidate(c));
    NIBBLE_TRY(const DeviceChoice choice, parse_device(setting("NIBBLE_DEVICE", "cuda")));
    NIBBLE_TRY(const auto device, DeviceModel::load(checkpoint, options, choice, pool));
    NIBBLE_TRY(Texts texts,
               read_texts(c.path, device->config(), std::atoll(setting("NIBBLE_CUDA_TOKENS", "200").c_str())));
    if (setting("NIBBLE_CUDA_NO_CPU").empty())
        NIBBLE_CHECK(compare_with_cpu(checkpoint, options, *device, texts, pool));
    NIBBLE_TRY(const std::vector<Difference> differences,
               check_invariance(*device, texts, std::atoi(setting("NIBBLE_CUDA_ROUNDS", "1").c_str())));
    EXPECT_FALSE(differences.empty());
    for (const Difference& d : differences) {
        EXPECT_GT(d.of, 0) << d.what;
        EXPECT_EQ(d.rows, 0) << fmt::format("{}: {} of {} rows have other bits, the first {}, up to {:.1e} apart",
                                            d.what, d.rows, d.of, d.first, d.worst);
    }
    return Ok{};
}

TEST_P(CudaModels, AgreeWithTheCpuAndThemselves) {
    const Status done = check_model(GetParam());
    EXPECT_TRUE(done.ok()) << done.error().message();
}

std::vector<std::string> lines_of(const KernelTable& table) {
    std::vector<std::string> lines;
    for (const LayerKernels& layer : table.layers)
        for (const KernelUse& use : layer.uses) {
            lines.push_back(fmt::format("{}: {} | {} | {} | {} | {}", layer.prefix, fmt::join(use.modules, ", "),
                                        use.weights, use.inputs, use.choice.kernel, use.choice.why));
            EXPECT_FALSE(use.choice.kernel.empty() || use.choice.why.empty()) << lines.back();
        }
    return lines;
}

// The kernel table of a planned model must equal that of the loaded model, whose launches read the same values.
Status check_kernel_table(const Candidate& c) {
    ThreadPool pool;
    ModelOptions options;
    options.quantize_activations = !c.weights_only;
    NIBBLE_TRY(std::shared_ptr<const Checkpoint> checkpoint, open_candidate(c));
    NIBBLE_TRY(const DeviceChoice choice, parse_device(setting("NIBBLE_DEVICE", "cuda")));
    NIBBLE_TRY(const auto device, DeviceModel::load(checkpoint, options, choice, pool));
    for (const int64_t tokens : {1, 2, 8, 9, 33, 64, 200, 2048}) {
        NIBBLE_TRY(const KernelTable planned, DeviceModel::kernel_table(checkpoint, options, choice, tokens, pool));
        NIBBLE_TRY(const KernelTable loaded, device->kernels(tokens));
        EXPECT_EQ(lines_of(planned), lines_of(loaded)) << tokens;
        EXPECT_EQ(loaded.layers.size(), device->config().blocks.size() + 1);
    }
    return Ok{};
}

TEST_P(CudaModels, HaveATableOfKernels) {
    const Status done = check_kernel_table(GetParam());
    EXPECT_TRUE(done.ok()) << done.error().message();
}

INSTANTIATE_TEST_SUITE_P(Models, CudaModels, testing::ValuesIn(model_candidates()), candidate_name);

}  // namespace
}  // namespace nibble::bench
