#include "jobs/loaded_model.h"

#include "base/fields.h"
#include "checkpoint/source_files.h"
#include "io/journal.h"
#include "jobs/join_ranks.h"
#include "jobs/open_checkpoint.h"
#include "jobs/words.h"
#include "model/device_model.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace nibble {
namespace {

namespace fs = std::filesystem;

void add_ids(const Json& ids, std::vector<int32_t>& out) {
    int32_t id = -1;
    if (json_value(ids, id) && id >= 0) out.push_back(id);
    if (ids.is_array())
        for (const Json& i : ids)
            if (json_value(i, id) && id >= 0) out.push_back(id);
}

Result<Compute> parse_compute(std::string_view word) {
    if (word == "bf16") return Compute::bf16;
    if (word == "f32") return Compute::f32;
    return fail(ErrorKind::usage, "--compute {}: choose bf16 or f32", word);
}

Result<SsmStateFormat> parse_ssm_state(std::string_view word) {
    if (word == "f32") return SsmStateFormat::f32;
    if (word == "bf16") return SsmStateFormat::bf16;
    if (word == "fp16") return SsmStateFormat::fp16;
    if (word == "fp16_stochastic") return SsmStateFormat::fp16_stochastic;
    return fail(ErrorKind::usage, "--ssm-state {}: choose f32, bf16, fp16 or fp16_stochastic", word);
}

}  // namespace

Result<ModelOptions> model_options(const ModelSettings& settings) {
    ModelOptions options;
    options.quantize_activations = !settings.weights_only;
    options.kernels = settings.kernels;
    NIBBLE_TRY(options.compute, parse_compute(settings.compute));
    NIBBLE_TRY(options.sums, parse_sum_order(settings.sums));
    NIBBLE_TRY(options.ssm_state, parse_ssm_state(settings.ssm_state));
    if (settings.kv.empty()) return options;
    if (settings.kv == "bf16")
        options.kv = KvFormat::none;
    else if (!(options.kv = kv_from_name(settings.kv)))
        return fail(ErrorKind::usage,
                    "--kv: unknown format '{}'; choices: bf16, fp8, fp8_cast, fp8_page, nvfp4, nvfp4_cast",
                    settings.kv);
    return options;
}

Json to_json(const ModelSettings& settings) {
    Json json{{"compute", settings.compute}};
    if (!settings.kv.empty()) json["kv"] = settings.kv;
    if (settings.ssm_state != "f32") json["ssm_state"] = settings.ssm_state;
    if (settings.weights_only) json["activations"] = "not quantized";
    if (settings.sums != "lanes") json["sums"] = settings.sums;
    if (settings.device != "cpu") json["device"] = "cuda";  // sums have another order
    return json;
}

Result<std::unique_ptr<LanguageModel>> load_model(std::shared_ptr<const Checkpoint> checkpoint,
                                                  const ModelOptions& options, const DeviceChoice& device,
                                                  ThreadPool& pool) {
    if (device.cuda && options.compute == Compute::f32)
        return fail(ErrorKind::usage,
                    "--device cuda rounds to BF16 between operators: --compute f32 has no kernels there");
    if (device.cuda) return open_device_model(std::move(checkpoint), options, device, pool);
    NIBBLE_TRY(Model model, Model::load(std::move(checkpoint), options, pool));
    return std::unique_ptr<LanguageModel>(std::make_unique<Model>(std::move(model)));
}

Result<LoadedModel> LoadedModel::open(const fs::path& path, const ModelSettings& settings, ThreadPool& pool,
                                      const JobHooks& hooks, bool prediction, int64_t most_tokens) {
    NIBBLE_TRY(ModelOptions options, model_options(settings));
    options.prediction = prediction;
    options.most_tokens = most_tokens;
    options.stop_requested = hooks.stop_requested;
    NIBBLE_TRY(const DeviceChoice device, parse_device(settings.device).within("--device"));
    NIBBLE_TRY(std::unique_ptr<Checkpoint> checkpoint, open_checkpoint(path, hooks));
    NIBBLE_TRY(const JobIdentity files, source_files(*checkpoint));
    LoadedModel loaded{path, std::move(checkpoint), nullptr};
    if (settings.tensor_parallel_size == 1) {
        NIBBLE_TRY(loaded.model, load_model(loaded.checkpoint, options, device, pool).within(path.string()));
    } else {
        NIBBLE_TRY(loaded.model, load_divided(loaded.checkpoint, settings, options, pool, hooks).within(path.string()));
    }
    NIBBLE_CHECK(check_source_unchanged(*loaded.checkpoint, files));
    if (const std::string note = loaded.model->note(); !note.empty()) hooks.emit_note(note);
    return loaded;
}

Result<Json> generation_config(const Checkpoint& checkpoint) {
    NIBBLE_TRY(const auto files, checkpoint.side_files());
    for (const Checkpoint::SideFile& file : files) {
        if (file.name != "generation_config.json") continue;
        NIBBLE_TRY(Json json, file.copy_from.empty() ? parse_json(file.content) : read_json_file(file.copy_from));
        if (!json.is_object()) return fail("generation_config.json: is not an object");
        return json;
    }
    return Json::object();
}

Result<std::vector<int32_t>> end_tokens(const LoadedModel& loaded, const ModelText& text) {
    return end_tokens(loaded.model->config(), *loaded.checkpoint, text).within(loaded.path.string());
}

Result<std::vector<int32_t>> end_tokens(const ModelConfig& model, const Checkpoint& checkpoint, const ModelText& text) {
    std::vector<int32_t> ids = model.eos;
    NIBBLE_TRY(const Json config, generation_config(checkpoint));
    if (const auto eos = config.find("eos_token_id"); eos != config.end()) add_ids(*eos, ids);
    if (const auto eos = text.variables.find("eos_token"); eos != text.variables.end() && eos->is_string())
        if (const auto id = text.tokenizer.id_of(eos->get_ref<const std::string&>()))
            ids.push_back(static_cast<int32_t>(*id));
    std::ranges::sort(ids);
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

std::string name_of(const fs::path& path) {
    const fs::path clean = fs::absolute(path).lexically_normal();  // so that "." has a name, too
    return (clean.has_filename() ? clean : clean.parent_path()).filename().string();
}

Result<std::string> fingerprint(const Checkpoint& checkpoint, const ModelSettings& settings) {
    std::string facts = to_json(settings).dump(-1, ' ', false, Json::error_handler_t::replace);
    for (const CheckpointTensor& t : checkpoint.tensors())
        facts += fmt::format("\n{} {} {} {}", t.name, fmt::join(t.shape, "x"), t.stored_type, t.stored_bytes);
    NIBBLE_TRY(const JobIdentity files, source_files(checkpoint));
    for (const auto& [name, value] : files) facts += fmt::format("\n{} {}", name, value);
    return hash_text(facts + checkpoint.config().dump());
}

}  // namespace nibble
