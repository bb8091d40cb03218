// Lists the kernels of a step. It uses the same plans and decisions as the step (queue_layers), without weights on the
// device.
#include "model/device/model.h"

#include <bit>

namespace nibble {
namespace {

constexpr int64_t least_context = 1024;  // attention is planned for sequences of at least this many tokens

Result<cuda::KernelChoice> attention_kernel(cuda::AttentionProblem problem, int64_t segments, int64_t rows,
                                            const DeviceInfo& device) {
    problem.most_segments = segments, problem.most_rows = rows;
    problem.most_tokens = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(rows, least_context))));
    problem.table_pitch = problem.most_tokens / problem.kv.page_tokens;
    NIBBLE_TRY(const cuda::AttentionPlan plan, cuda::plan_attention(problem, device));
    return cuda::describe(plan);
}

// Adds the kernels of attention. Decoding (one token of each of `tokens` sequences) and a prompt may use different
// kernels.
Status add_attention(const DeviceMixer& mixer, int64_t tokens, const DeviceInfo& device, std::vector<KernelUse>& uses) {
    const auto problem = mixer.attention();
    if (!problem) return Ok{};
    KernelUse use{.modules = {"attention"}, .inputs = problem->kv.type == cuda::KvType::bf16 ? "bf16" : "fp8"};
    NIBBLE_TRY(use.choice, attention_kernel(*problem, tokens, tokens, device));
    if (tokens == 1) {
        uses.push_back(std::move(use));
        return Ok{};
    }
    KernelUse prompt = use;
    NIBBLE_TRY(prompt.choice, attention_kernel(*problem, 1, tokens, device));
    use.modules[0] += fmt::format(", {} sequences", tokens);
    prompt.modules[0] += fmt::format(", a prompt of {}", tokens);
    uses.push_back(std::move(use));
    uses.push_back(std::move(prompt));
    return Ok{};
}

// Returns a short name: "model.layers.3.mlp.experts.0.up_proj" in "model.layers.3.mlp" becomes "experts.*.up_proj".
std::string module_below(const std::string& prefix, std::string name) {
    if (name.starts_with(prefix + ".")) name.erase(0, prefix.size() + 1);
    constexpr std::string_view first = "experts.0.";
    if (name.starts_with(first)) name.replace(0, first.size(), "experts.*.");
    return name;
}

}  // namespace

Result<KernelTable> DeviceModel::kernels(int64_t tokens) const {
    if (tokens < 1) return fail("a step of {} tokens", tokens);
    NIBBLE_CHECK(use_device(device_.index));
    NIBBLE_CHECK(memory_.reserve(DeviceArena::alignment, tokens));
    DeviceStep step = memory_.step();
    step.rows = tokens;
    KernelTable table{.device = device_.name, .tokens = tokens};
    const DeviceLayer* before = nullptr;
    for (const DeviceLayer& layer : layers_) {
        LayerKernels& to = table.layers.emplace_back();
        to.prefix = layer.config.prefix, to.layer = layer.config.layer;
        NIBBLE_TRY(const InputPlan plan, layer.mixer->plan(step));
        NIBBLE_CHECK(
            layer.mixer->kernels(tokens == 1 && norm_inside(before, layer, plan), step, to.uses).within(to.prefix));
        if (fused_decode_ && tokens == 1)
            for (KernelUse& use : to.uses) use.choice = fused_decode_->describe();
        NIBBLE_CHECK(add_attention(*layer.mixer, tokens, device_, to.uses).within(to.prefix));
        before = &layer;
    }
    LayerKernels& head = table.layers.emplace_back();
    head.prefix = head_.name;
    NIBBLE_CHECK(head_.kernels(tokens, step, head.uses));
    for (LayerKernels& layer : table.layers)
        for (KernelUse& use : layer.uses)
            for (std::string& module : use.modules) module = module_below(layer.prefix, std::move(module));
    return table;
}

Result<KernelTable> DeviceModel::kernel_table(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options,
                                              const DeviceChoice& device, int64_t tokens, ThreadPool& pool) {
    NIBBLE_TRY(const Outline outline, open(*checkpoint, options, device, pool));
    NIBBLE_CHECK(outline.model->make_fused_decode());
    return outline.model->kernels(tokens);
}

}  // namespace nibble
