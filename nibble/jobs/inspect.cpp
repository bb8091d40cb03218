#include "nibble/inspect.h"

#include "architecture/canonical_config.h"
#include "architecture/config_json.h"
#include "base/json.h"
#include "base/utf8.h"
#include "checkpoint/checkpoint.h"
#include "jobs/inspect_shards.h"
#include "jobs/job.h"
#include "jobs/open_checkpoint.h"
#include "page/numbers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

namespace nibble {
namespace {

struct TypeTotals {
    int64_t tensors = 0, elements = 0, bytes = 0;
};

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

int64_t elements_of(const CheckpointTensor& t) { return checked_elements(t.shape).value_or(0); }

double bits_of(int64_t bytes, int64_t elements) { return elements ? 8.0 * double(bytes) / double(elements) : 0; }

std::string architecture_of(const Json& config) {
    const auto it = config.find("architectures");
    if (it != config.end() && it->is_array() && !it->empty() && it->front().is_string()) return it->front();
    return config.value("model_type", std::string("unknown"));
}

Json inspect_json(const Checkpoint& checkpoint) {
    Json tensors = Json::array();
    TypeTotals totals;
    for (const CheckpointTensor& t : checkpoint.tensors()) {
        Json row{{"name", t.name},
                 {"shape", t.shape},
                 {"type", t.stored_type},
                 {"format", format_name(t.format)},
                 {"activation", activation_name(t.activation)},
                 {"bytes", t.stored_bytes},
                 {"bits_per_element", bits_of(t.stored_bytes, elements_of(t))},
                 {"file", t.file}};
        if (t.input_scale) row["input_scale"] = *t.input_scale;
        tensors.push_back(std::move(row));
        totals.tensors += 1;
        totals.elements += elements_of(t);
        totals.bytes += t.stored_bytes;
    }
    return Json{{"path", checkpoint.path().string()},
                {"architecture", architecture_of(checkpoint.config())},
                {"dialect", dialect_name(checkpoint.dialect())},
                {"kv_cache", kv_name(checkpoint.kv())},
                {"totals",
                 {{"tensors", totals.tensors},
                  {"elements", totals.elements},
                  {"bytes", totals.bytes},
                  {"bits_per_element", bits_of(totals.bytes, totals.elements)}}},
                {"notes", std::vector<std::string>(checkpoint.notes().begin(), checkpoint.notes().end())},
                {"tensors", std::move(tensors)}};
}

std::string inspect_text(const Checkpoint& checkpoint, bool summary) {
    std::map<std::string, TypeTotals> types;
    TypeTotals all;
    size_t widest_name = 6, widest_shape = 5;
    for (const CheckpointTensor& t : checkpoint.tensors()) {
        for (TypeTotals* totals : {&types[t.stored_type], &all}) {
            totals->tensors += 1;
            totals->elements += elements_of(t);
            totals->bytes += t.stored_bytes;
        }
        widest_name = std::max(widest_name, printable(t.name).size());
        widest_shape = std::max(widest_shape, shape_text(t.shape).size());
    }
    std::string text = fmt::format("{}\n  {}, {} checkpoint, KV cache {}\n", printable(checkpoint.path().string()),
                                   printable(architecture_of(checkpoint.config())), dialect_name(checkpoint.dialect()),
                                   kv_name(checkpoint.kv()));
    text += fmt::format("\n  {:<14} {:>8} {:>16} {:>10} {:>8}\n", "type", "tensors", "elements", "size", "bits");
    const auto line = [&](std::string_view name, const TypeTotals& t) {
        text += fmt::format("  {:<14} {:>8} {:>16} {:>10} {:>8.3f}\n", name, t.tensors, t.elements,
                            human_bytes(t.bytes), bits_of(t.bytes, t.elements));
    };
    for (const auto& [name, totals] : types) line(name, totals);
    line("total", all);
    if (summary) return text;
    text += fmt::format("\n  {:<{}}  {:<{}}  {:<12} {:>7}  {}\n", "tensor", widest_name, "shape", widest_shape, "type",
                        "bits", "activation");
    for (const CheckpointTensor& t : checkpoint.tensors())
        text += fmt::format("  {:<{}}  {:<{}}  {:<12} {:>7.3f}  {}{}\n", printable(t.name), widest_name,
                            shape_text(t.shape), widest_shape, t.stored_type, bits_of(t.stored_bytes, elements_of(t)),
                            t.activation == ActivationFormat::none ? "" : activation_name(t.activation),
                            t.input_scale ? fmt::format(" x {:.6g}", *t.input_scale) : "");
    return text;
}

}  // namespace

Result<JobReport> inspect(const InspectOptions& options, const JobHooks& hooks) {
    return as_job([&]() -> Result<JobReport> {
        NIBBLE_TRY(std::unique_ptr<Checkpoint> opened, open_checkpoint(options.path, hooks).as(ErrorKind::checkpoint));
        const std::shared_ptr<const Checkpoint> checkpoint = std::move(opened);
        if (options.shards > 0) {
            NIBBLE_TRY(ShardText shards, inspect_shards(*checkpoint, options.shards).within(options.path));
            return JobReport{.text = [text = std::move(shards.text)] { return text; },
                             .json =
                                 [json = std::move(shards.json)] {
                                     return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
                                 }};
        }
        Json json = inspect_json(*checkpoint);
        if (options.configs) {
            NIBBLE_TRY(const Json canonical, canonical_config(checkpoint->config()).as(ErrorKind::checkpoint));
            json["config"] = tag_special_floats(checkpoint->config());
            json["canonical_config"] = tag_special_floats(canonical);
        }
        return JobReport{.text = [checkpoint, summary = options.summary] { return inspect_text(*checkpoint, summary); },
                         .json = [json] { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }};
    });
}

}  // namespace nibble
