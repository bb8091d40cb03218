#include "train/host_plan.h"

#include "train/accumulation.h"
#include "train/rank_message.h"
#include "train/train_rules.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int64_t slab_rows = 256;                 // rows of logits at a time (model/loss.cpp)
constexpr int64_t of_program = int64_t{48} << 20;  // code, threads, file buffers
constexpr int64_t nvfp4_block = 16, fp8_block_side = 128;

struct UnitSize {
    int64_t rows = 0, cols = 0;
    int64_t elements() const { return rows * cols; }
};

UnitSize size_of(std::span<const Linear> unit) {
    UnitSize s{.cols = unit[0].cols};
    for (const Linear& part : unit) s.rows += part.rows;
    return s;
}

// Bytes of the right operand of a quantized product: FP32 values and scales.
int64_t operand_bytes(const UnitSize& s, const CastRule& rule) {
    int64_t bytes = 4 * s.elements();
    if (rule.format == CastFormat::nvfp4 || rule.format == CastFormat::mxfp8) bytes += s.elements() / nvfp4_block;
    if (rule.format == CastFormat::fp8_block || rule.format == CastFormat::fp8_block2)
        bytes += 4 * s.elements() / fp8_block_side;
    return bytes;
}

// Bytes that a recipe's forward product keeps for a unit's weights; 0: it is the engine's own product.
int64_t forward_bytes(const UnitSize& s, const UnitRules& r) {
    if (!r.quantized || (r.x.format == CastFormat::bf16 && r.w.format == CastFormat::bf16)) return 0;
    return r.engine ? s.elements() * 9 / 16 : operand_bytes(s, r.w);
}

bool is_mlp(const Block& block) {
    const MixerConfig& mixer = block.config().mixer;
    return std::holds_alternative<MlpConfig>(mixer) || std::holds_alternative<MoeConfig>(mixer);
}

struct Products {
    int64_t kept = 0;   // copies of weights
    int64_t arena = 0;  // maximum of the workspace's arena per product of one row, in addition to the block's own
    int64_t heap = 0;   // maximum of other heap memory per product, or while a copy is made
};

void count(const UnitSize& s, const UnitRules& r, int64_t n, int64_t plain_bytes, Products& p) {
    p.arena = std::max(p.arena, 4 * (n * s.rows + s.elements()));  // dy transposed, and the gradient
    int64_t heap = 4 * n * s.cols;                                 // x transposed and packed
    if (!r.quantized || r.plain_back) {
        p.kept += plain_bytes * s.elements();
    } else {
        p.kept += operand_bytes(s, r.w_back);
        heap = std::max(heap + 4 * (n * s.rows + 2 * n * s.cols),
                        18 * s.elements());  // stacked, in FP32, rounded, transposed, packed
    }
    if (const int64_t forward = forward_bytes(s, r); forward > 0) {
        p.kept += forward;
        heap = std::max({heap, 14 * s.elements(), 8 * n * (s.cols + s.rows)});
    }
    p.heap = std::max(p.heap, heap);
}

// FP32 bytes of a block in the backward pass: rows of its norm and its mixer, values and gradients.
int64_t block_bytes(const Block& block, int64_t n, int64_t hidden) {
    int64_t width = 2 * hidden;
    std::vector<std::string> seen;
    const auto units = block.mixer().units();
    for (const std::span<const Linear> unit : units) {
        const std::string group = input_group(unit[0].name);  // experts are computed one at a time
        if (std::ranges::find(seen, group) != seen.end()) continue;
        seen.push_back(group);
        const UnitSize s = size_of(unit);
        width += 2 * (s.rows + s.cols);
    }
    const MixerConfig& mixer = block.config().mixer;
    if (std::holds_alternative<MambaConfig>(mixer) || std::holds_alternative<GatedDeltaConfig>(mixer))
        width *= 2;  // states, decays and their gradients
    if (std::holds_alternative<MoeConfig>(mixer)) width += 5 * hidden;
    if (std::holds_alternative<ShortConvConfig>(mixer)) width += 6 * hidden;  // products and their gradients
    return 4 * n * width;
}

Result<int64_t> number_in(const fs::path& file) {
    std::ifstream in(file);
    int64_t value = 0;
    if (!(in >> value)) return fail("{}: has no number", file.string());  // also for "max": no limit
    return value;
}

}  // namespace

Result<TrainMemoryPlan> plan_host_memory(const TrainConfig& c, const Checkpoint& model, const HostRun& run,
                                         ThreadPool& pool) {
    const bool f32 = c.precision.recipe == TrainRecipe::fp32, adapters = c.lora.rank > 0;
    NIBBLE_TRY(const ModelConfig config, model_config(model));
    const WeightOptions like{.compute = f32 ? Compute::f32 : Compute::bf16, .kv = KvFormat::none};
    NIBBLE_TRY(const ModelParts parts, load_parts(config, model, like, pool, WeightSource::Mode::outline));
    const int64_t published = f32 ? 4 : 2, n = run.seq, hidden = config.hidden;
    int64_t elements = 0, matrices = 0, stored = 0, layers = 0;
    for (const CheckpointTensor& t : model.tensors()) elements += t.rows() * t.cols(), stored += t.stored_bytes;
    for (const Block& block : parts.blocks) layers = std::max<int64_t>(layers, block.config().layer + 1);

    Products products;
    int64_t packed = 0, block = 0, trained = adapters ? 0 : elements;
    for (const Block& b : parts.blocks) {
        const UnitPlace place{b.config().layer, layers, is_mlp(b)};
        const UnitRules rules = unit_rules(c.precision, place, false), late = unit_rules(c.precision, place, true);
        // A step of the engine has no backward pass.
        block = std::max({block, block_bytes(b, n, hidden), block_bytes(b, run.rollouts, hidden) / 2});
        for (const std::span<const Linear> unit : b.mixer().units()) {
            const UnitSize s = size_of(unit);
            packed += published * s.elements();
            if (adapters) {
                trained += c.lora.rank * (s.cols + s.rows);
                products.heap = std::max(products.heap, 4 * (2 * s.elements() + n * (s.rows + s.cols)));
                continue;
            }
            matrices += s.elements();
            Products late_products = products;
            count(s, late, n, published, late_products);
            count(s, rules, n, published, products);
            products.kept = std::max(products.kept, late_products.kept);
        }
    }
    const UnitSize head{parts.head.linear().rows, parts.head.linear().cols};
    packed += published * head.elements();
    const int64_t slab = std::min(slab_rows, n);
    if (!adapters) products.kept += published * head.elements();
    const int64_t of_head =
        4 * slab * (2 * hidden + head.rows) + (adapters ? 0 : 4 * (slab * (head.rows + hidden) + head.elements()));

    // Gradient rows of an untied embedding stay sparse until their sum is complete.
    const int64_t buffers = AccumulationPlan::make(run.rows).buffers;
    const int64_t sparse = adapters || config.head == config.embedding ? 0 : config.vocab * hidden;
    const bool muon = c.optimizer.kind == OptimizerKind::muon;
    const int64_t state = c.optimizer.bf16_states ? 2 : 4;
    const int64_t states = state * (2 * trained - (muon ? matrices : 0));
    // Received nodes of the tree, and updated masters of all ranks.
    const int64_t exchanged = run.ranks > 1 ? 4 * 2 * trained : 0;
    TrainMemoryPlan plan{.micro_batch = 1, .recompute = Recompute::block};
    plan.items = {{"masters", 4 * trained},
                  {"published weights", published * trained},
                  {"weights for the engine", adapters ? stored : packed},
                  {"weights by recipe", products.kept},
                  {"optimizer", states / run.ranks},
                  {"gradients", 4 * (buffers * (trained - sparse) + sparse)},
                  {"activations", 4 * n * hidden * (std::ssize(parts.blocks) + 2)},
                  {"working memory", std::max(block + products.arena, of_head) + products.heap},
                  {"teacher", run.teacher ? [&] {
                       int64_t bytes = 0;
                       for (const CheckpointTensor& t : run.teacher->tensors()) bytes += t.stored_bytes;
                       return bytes;
                   }()
                                          : 0},
                  {"between ranks", exchanged},
                  {"copy for checkpoints", run.saves ? 4 * trained + states : 0},
                  {"the program", of_program}};
    return plan;
}

Result<int64_t> plan_forward_weights(const TrainPrecision& precision, const Checkpoint& model, ThreadPool& pool) {
    const bool f32 = precision.recipe == TrainRecipe::fp32;
    NIBBLE_TRY(const ModelConfig config, model_config(model));
    const WeightOptions like{.compute = f32 ? Compute::f32 : Compute::bf16, .kv = KvFormat::none};
    NIBBLE_TRY(const ModelParts parts, load_parts(config, model, like, pool, WeightSource::Mode::outline));
    const int64_t published = f32 ? 4 : 2;
    int64_t layers = 0, bytes = published * parts.head.linear().rows * parts.head.linear().cols;
    for (const Block& block : parts.blocks) layers = std::max<int64_t>(layers, block.config().layer + 1);
    for (const Block& b : parts.blocks) {
        const UnitRules rules = unit_rules(precision, {b.config().layer, layers, is_mlp(b)}, false);
        for (const std::span<const Linear> unit : b.mixer().units())
            bytes += published * size_of(unit).elements() + forward_bytes(size_of(unit), rules);
    }
    return bytes;
}

int64_t available_memory(const fs::path& root) {
    int64_t least = -1;
    const auto take = [&](int64_t bytes) { least = least < 0 ? bytes : std::min(least, bytes); };
    std::ifstream meminfo(root / "proc/meminfo");
    for (std::string line; std::getline(meminfo, line);)
        if (line.starts_with("MemAvailable:")) take(1024 * std::strtoll(line.c_str() + 13, nullptr, 10));
    std::ifstream groups(root / "proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {  // such as "0::/a/b" and "4:memory:/a/b"
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool unified = controllers.empty();
        if (!unified && controllers != "memory") continue;
        const fs::path top = root / (unified ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
        // Limits of all parent groups also apply. In a container the path may be missing, but the top exists.
        fs::path place = fs::path(line.substr(second + 1)).relative_path();
        for (bool more = true; more; place = place.parent_path()) {
            more = !place.empty();
            const fs::path at = place.empty() ? top : top / place;
            const auto limit = number_in(at / (unified ? "memory.max" : "memory.limit_in_bytes"));
            const auto used = number_in(at / (unified ? "memory.current" : "memory.usage_in_bytes"));
            if (limit.ok() && used.ok()) take(std::max<int64_t>(0, *limit - *used));
        }
    }
    return least;
}

int64_t available_memory() { return available_memory("/"); }

std::string HostTogether::text(const TrainMemoryPlan& own) const {
    if (processes == 1) return own.text();
    return fmt::format("{}; {} processes of this machine {}", own.text(), processes, gib_of(bytes));
}

Result<HostTogether> check_host_memory(const TrainMemoryPlan& plan, int64_t available, RankGroup* ranks) {
    struct Machine {
        HostTogether all{.processes = 0};
        int64_t available = -1;
    };
    std::map<std::string, Machine> machines;
    const auto add = [&](const std::string& name, int64_t bytes, int64_t free) {
        Machine& m = machines[name];
        ++m.all.processes, m.all.bytes += bytes;
        if (free >= 0) m.available = m.available < 0 ? free : std::min(m.available, free);
    };
    const std::string own = machine_name();
    if (!ranks) {
        add(own, plan.total(), available);
    } else {
        RankBytes bytes;
        put_number(bytes, plan.total());
        put_number(bytes, available);
        put_numbers<char>(bytes, own);
        NIBBLE_TRY(const auto from, ranks->gather(std::move(bytes)));
        for (const RankBytes& one : from) {
            RankReader in(one);
            const int64_t total = in.number(), free = in.number();
            const auto name = in.numbers<char>();
            add({name.begin(), name.end()}, total, free);
        }
    }
    for (const auto& [name, m] : machines) {
        if (m.available < 0 || m.all.bytes <= m.available) continue;
        if (m.all.processes == 1 && name == own)
            return fail("the run does not fit in memory: {}; {} are available", plan.text(), gib_of(m.available));
        return fail("the run does not fit in memory: {}; {} processes {} need {}, {} are available", plan.text(),
                    m.all.processes, name == own ? "of this machine" : "of another machine", gib_of(m.all.bytes),
                    gib_of(m.available));
    }
    return machines[own].all;
}

}  // namespace nibble
