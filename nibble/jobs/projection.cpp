#include "jobs/projection.h"

#include "architecture/shards.h"
#include "base/json.h"
#include "jobs/projection_devices.h"
#include "model/state_plan.h"
#include "page/numbers.h"
#include "quant/plan_json.h"
#include "quant/recipe.h"
#include "quant/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Figure {
    std::string name;
    double value = 0;
    std::string unit;  // "bytes", "seconds", "tokens/s"
    std::string formula;
};

struct Projection {
    std::string architecture;
    std::vector<Figure> figures;
    std::vector<std::string> notes;
};

std::string figure_text(const Figure& f) {
    if (f.unit == "bytes") return human_bytes(static_cast<int64_t>(f.value));
    if (f.unit == "seconds") return human_seconds(f.value);
    return fmt::format("{:.0f} {}", f.value, f.unit);
}

int64_t element_count(const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
}

// Bytes of a model after quantization, of all its tensors and of those that one token reads.
struct ModelBytes {
    double source = 0, stored = 0, read = 0;
    double read_weights = 0;             // weights that one token multiplies by
    double largest_block = 0;            // bytes of the source's largest block
    std::vector<double> stored_by_rank;  // bytes that each rank of one host stores
    std::vector<double> read_by_rank;
};

// Returns the share of a block's experts that a token reads, by the prefix of their tensors.
std::map<std::string, double> expert_shares(const ModelConfig& model) {
    std::map<std::string, double> shares;
    const auto add = [&](const std::string& prefix, const MixerConfig& mixer) {
        if (const auto* moe = std::get_if<MoeConfig>(&mixer))
            shares[prefix + "." + moe->experts_name + "."] = double(moe->top_k) / moe->experts;
    };
    for (const BlockConfig& block : model.blocks) {
        add(block.prefix, block.mixer);
        if (const auto* parallel = std::get_if<ParallelConfig>(&block.mixer))
            for (const Branch& branch : parallel->branches) add(branch.prefix, branch.mixer);
    }
    return shares;
}

int64_t rows_in(const std::vector<RowRange>& ranges) {
    int64_t rows = 0;
    for (const RowRange& r : ranges) rows += r.end - r.begin;
    return rows;
}

ModelBytes model_bytes(const ModelConfig& model, std::span<const TensorEntry> tensors, const Plan& plan, int ranks) {
    ModelBytes out;
    out.stored_by_rank.resize(static_cast<size_t>(ranks));
    out.read_by_rank.resize(static_cast<size_t>(ranks));
    std::map<std::string, double> stored;
    for (const PlanEntry& entry : plan.entries) stored[entry.tensor] = double(planned_bytes(entry));
    const auto shares = expert_shares(model);
    std::map<std::string, double> blocks;
    for (const TensorEntry& tensor : tensors) {
        const double elements = double(element_count(tensor.shape)), bytes = stored[tensor.name];
        double share = 1;
        for (const auto& [prefix, part] : shares)
            if (tensor.name.starts_with(prefix)) share = part;
        // A token reads one row of the embedding, but all rows of a head that is tied to it.
        if (tensor.role == TensorRole::embedding && model.head != model.embedding) share = 0;
        out.source += 2 * elements;
        out.stored += bytes;
        out.read += bytes * share;
        out.read_weights += elements * share;
        for (const BlockConfig& block : model.blocks)
            if (tensor.name.starts_with(block.prefix + ".")) blocks[block.prefix] += 2 * elements;
        int64_t all = 0;
        for (const RowSegment& segment : tensor.segments) all += segment.rows;
        for (int rank = 0; rank < ranks; ++rank) {
            const double part = all ? double(rows_in(rank_rows(tensor, ranks, rank))) / double(all) : 1.0;
            // The experts of a token lie on other ranks for every token: on average each rank reads its share of them.
            out.stored_by_rank[static_cast<size_t>(rank)] += bytes * part;
            out.read_by_rank[static_cast<size_t>(rank)] += bytes * share * part;
        }
    }
    for (const auto& [prefix, bytes] : blocks) out.largest_block = std::max(out.largest_block, bytes);
    return out;
}

// Returns the largest number of ranks of a host into which the model can be divided.
int degree_of(std::span<const TensorEntry> tensors, int devices) {
    while (devices > 1 && !allows_ranks(tensors, devices)) --devices;
    return devices;
}

Result<Plan> plan_of_config(const ProjectionOptions& options, const Json& config,
                            std::span<const TensorEntry> tensors) {
    std::vector<CheckpointTensor> source;
    for (const TensorEntry& tensor : tensors) {
        CheckpointTensor& t = source.emplace_back();
        t.name = tensor.name;
        t.shape = tensor.shape;
        t.experts = tensor.experts;
        t.stored_bytes = 2 * element_count(tensor.shape);
    }
    NIBBLE_TRY(const Recipe recipe, load_recipe(options.recipe));
    // Scales of activations would come from a calibration.
    NIBBLE_TRY(Plan plan, resolve(recipe, source, config, {.statistics = true, .folded = true}));
    if (std::ranges::none_of(plan.entries, [](const PlanEntry& e) { return e.spec.format != Format::none; }))
        return fail(ErrorKind::recipe, "recipe {} quantizes nothing of this model", options.recipe);
    return plan;
}

Projection figures_of(const ProjectionOptions& o, const ProjectionDevice& d, const ModelConfig& model,
                      std::span<const TensorEntry> tensors, const Plan& plan) {
    const int degree = degree_of(tensors, o.devices);
    const ModelBytes b = model_bytes(model, tensors, plan, degree);
    const double storage = o.storage_gb * 1e9, ranks = double(o.hosts) * o.devices;
    const auto blocks = double(model.blocks.size());
    std::set<int> layer_numbers;
    for (const BlockConfig& block : model.blocks) layer_numbers.insert(block.layer);
    const auto layers = double(layer_numbers.size());
    Projection p{.architecture = model.architecture, .figures = {}, .notes = {}};
    const auto add = [&](std::string name, double value, std::string unit, std::string formula) {
        p.figures.push_back({std::move(name), value, std::move(unit), std::move(formula)});
    };
    add("source", b.source, "bytes", fmt::format("{} weights x 2", human_large(int64_t(b.source / 2))));
    add("quantized", b.stored, "bytes", fmt::format("sum over tensors in the formats of recipe {}", o.recipe));
    add("read per token", b.read, "bytes",
        fmt::format("quantized tensors of a token: {} weights, without rows of the embedding and unused experts",
                    human_large(int64_t(b.read_weights))));

    const double read = b.source / (o.hosts * storage), write = b.stored / (o.hosts * storage),
                 work = b.source / (ranks * d.quantize.value);
    add("quantize", std::max({read, write, work}), "seconds",
        fmt::format("max(read {}, write {}, work {}): source / (hosts x {} GB/s), quantized / the same, source / "
                    "(ranks x {:.1f} GB/s)",
                    human_seconds(read), human_seconds(write), human_seconds(work), o.storage_gb,
                    d.quantize.value / 1e9));
    const double tokens = double(o.calib_sequences) * double(o.calib_sequence);
    const double turns = std::ceil(blocks / ranks) / blocks,
                 products = 2 * b.read_weights * tokens / d.products.value * turns;
    add("calibrate", std::max(read, products), "seconds",
        fmt::format("max(read {}, products {}): 2 x weights of a token x {:.0f} tokens / {:.0f} TFLOP/s x "
                    "ceil({:.0f} blocks / {:.0f} ranks) / blocks",
                    human_seconds(read), human_seconds(products), tokens, d.products.value / 1e12, blocks, ranks));
    add("memory per rank, calibrating", b.largest_block + 4096.0 * double(model.width()) * 4, "bytes",
        "the largest block in BF16 and a batch of 4,096 rows in FP32");

    const std::vector<StateLayout> kept = planned_states(model, degree, LatentCache::latents);
    const double stored_rank = *std::ranges::max_element(b.stored_by_rank) / o.hosts,
                 token = double(token_bytes(kept)) / o.hosts, states = double(sequence_bytes(kept)) / o.hosts,
                 cache = token * double(o.context) + states;
    add("cache per rank, of a token", token, "bytes", "keys and values in BF16, of the rank's heads or whole latents");
    add("states per rank, of a sequence", states, "bytes", "Mamba, delta-rule and convolution states in FP32");
    add("memory per rank, serving", stored_rank + cache, "bytes",
        fmt::format("{} of weights, and cache and states of a sequence of {} tokens, {}: largest share of {} ranks, "
                    "divided by {} hosts (a pipeline)",
                    human_bytes(int64_t(stored_rank)), o.context, human_bytes(int64_t(cache)), degree, o.hosts));
    const double read_rank = *std::ranges::max_element(b.read_by_rank), memory_time = read_rank / d.bandwidth.value,
                 layer_time = layers * d.layer_seconds.value;
    const double steps = degree > 1 ? std::log2(double(degree)) : 0,
                 exchange_time = degree > 1 ? blocks * (d.exchange_seconds.value + (steps - 1) * 1e-6) : 0;
    add("one sequence, limit", 1 / memory_time, "tokens/s",
        fmt::format("{} / {:.2f} TB/s", human_bytes(int64_t(read_rank)), d.bandwidth.value / 1e12));
    add("one sequence", 1 / (memory_time + layer_time + exchange_time), "tokens/s",
        fmt::format("1 / ({:.2f} ms memory + {:.0f} layers x {:.0f} us + {:.0f} exchanges x {:.0f} us)",
                    memory_time * 1e3, layers, d.layer_seconds.value * 1e6, degree > 1 ? blocks : 0.0,
                    degree > 1 ? exchange_time / blocks * 1e6 : 0.0));
    if (degree < o.devices)
        p.notes.push_back(fmt::format("the model cannot be divided by {} devices; {} of each host are used to serve it",
                                      o.devices, degree));
    if (stored_rank + cache > d.memory_bytes.value)
        p.notes.push_back(fmt::format("the model does not fit: {} a rank, {} has {}",
                                      human_bytes(int64_t(stored_rank + cache)), d.name,
                                      human_bytes(int64_t(d.memory_bytes.value))));
    p.notes.emplace_back("activations and the workspace are not counted");
    p.notes.emplace_back("nibble calibrates over ranks on CPUs; for GPUs the time is that of the same division");
    return p;
}

std::vector<std::pair<std::string_view, SourcedNumber>> constants_of(const ProjectionDevice& d) {
    return {{"memory, bytes", d.memory_bytes},       {"memory bandwidth, bytes/s", d.bandwidth},
            {"products, operations/s", d.products},  {"quantizing, bytes/s", d.quantize},
            {"time of a layer, s", d.layer_seconds}, {"time of an exchange, s", d.exchange_seconds}};
}

std::string projection_text(const ProjectionOptions& o, const ProjectionDevice& d, const Projection& p) {
    std::string text = fmt::format("{} ({})\n  projection for {} host{} with {} {} each, recipe {}\n\n", o.model,
                                   p.architecture, o.hosts, o.hosts == 1 ? "" : "s", o.devices, d.name, o.recipe);
    for (const Figure& f : p.figures) text += fmt::format("  {:<30} {:>14}  = {}\n", f.name, figure_text(f), f.formula);
    text += "\n  constants\n";
    for (const auto& [name, number] : constants_of(d))
        text += fmt::format("  {:<30} {:>14.4g}  {}: {}\n", name, number.value,
                            number.measured ? "measured" : "assumed", number.source);
    text += fmt::format("  {:<30} {:>14.4g}  {}\n\n", "storage of a host, bytes/s", o.storage_gb * 1e9,
                        "given by --storage");
    for (const std::string& note : p.notes) text += fmt::format("  note: {}\n", note);
    return text;
}

Json projection_json(const ProjectionOptions& o, const ProjectionDevice& d, const Projection& p) {
    Json figures = Json::array(), constants = Json::array();
    for (const Figure& f : p.figures)
        figures.push_back({{"name", f.name}, {"value", f.value}, {"unit", f.unit}, {"formula", f.formula}});
    for (const auto& [name, number] : constants_of(d))
        constants.push_back(
            {{"name", name}, {"value", number.value}, {"measured", number.measured}, {"source", number.source}});
    return {{"model", o.model},   {"architecture", p.architecture},
            {"hosts", o.hosts},   {"devices", o.devices},
            {"device", d.name},   {"recipe", o.recipe},
            {"figures", figures}, {"constants", constants},
            {"notes", p.notes}};
}

}  // namespace

Result<JobReport> project(const ProjectionOptions& options) {
    const auto devices = projection_devices();
    const auto device = std::ranges::find(devices, options.device, &ProjectionDevice::name);
    if (device == devices.end()) {
        std::vector<std::string_view> names;
        for (const ProjectionDevice& d : devices) names.push_back(d.name);
        return fail(ErrorKind::usage, "--device {}: choose {}", options.device, fmt::join(names, ", "));
    }
    fs::path path = options.model;
    if (std::error_code ignored; fs::is_directory(path, ignored)) path /= "config.json";
    NIBBLE_TRY(const Json config, read_json_file(path));
    NIBBLE_TRY(const ModelConfig model, model_config(config).within(path.string()));
    const std::vector<TensorEntry> tensors = sharded_tensors(model);
    NIBBLE_TRY(const Plan plan, plan_of_config(options, config, tensors));
    const auto made = std::make_shared<const Projection>(figures_of(options, *device, model, tensors, plan));
    return JobReport{[options, device, made] { return projection_text(options, *device, *made); },
                     [options, device, made] { return projection_json(options, *device, *made).dump(2) + "\n"; }};
}

}  // namespace nibble
