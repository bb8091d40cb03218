#include "jobs/served.h"

#include "base/map_faults.h"
#include "base/mapped_file.h"
#include "checkpoint/held_tensors.h"
#include "jobs/kernel_table.h"
#include "jobs/sampling.h"
#include "model/device_model.h"

#include <ctime>
#include <map>

namespace nibble {
namespace {

std::string license_of(const std::filesystem::path& path) {
    for (const char* name : {"LICENSE", "LICENSE.txt", "LICENSE.md"}) {
        auto text = read_text_file(path / name, 1 << 20);
        if (text.ok() && !text->empty()) return std::move(*text);
    }
    return {};
}

// Replaces tokens that tokenizer_config.json contains as objects by their text.
Json with_plain_tokens(const Json& json) {
    if (json.is_object() && json.contains("content") && json["content"].is_string()) return json["content"];
    Json out = json;
    if (out.is_structured())
        for (Json& item : out) item = with_plain_tokens(item);
    return out;
}

// Returns the response of GET /tokenizer_info in vLLM's form: tokenizer_config.json without paths, and the chat
// template.
Json tokenizer_info(const ModelText& text, std::span<const int32_t> eos) {
    Json info = text.config.is_object() ? with_plain_tokens(text.config) : Json::object();
    for (const char* path : {"vocab_file", "merges_file", "tokenizer_file", "name_or_path", "special_tokens_map_file"})
        info.erase(path);
    if (!info.contains("tokenizer_class")) info["tokenizer_class"] = "PreTrainedTokenizerFast";
    const auto has = info.find("eos_token");
    if ((has == info.end() || has->is_null()) && !eos.empty())
        if (const auto token = text.tokenizer.token(static_cast<TokenId>(eos[0]))) info["eos_token"] = *token;
    info.erase("chat_template");
    if (text.chat) info["chat_template"] = text.chat->source();
    return info;
}

Result<KernelTable> kernels_of(const LoadedModel& loaded, const ModelSettings& settings) {
    NIBBLE_TRY(const DeviceChoice device, parse_device(settings.device));
    if (device.cuda) {
        NIBBLE_TRY(const ModelOptions options, model_options(settings));
        ThreadPool pool(1);
        return device_kernel_table(loaded.checkpoint, options, device, 1, pool);
    }
    return cpu_kernel_table(*loaded.checkpoint, loaded.model->kernels(), settings.compute, settings.weights_only);
}

// Returns the tensors by format, the kernels, and the engine's limits.
Result<Json> facts_of(const LoadedModel& loaded, const Engine& engine, const ModelSettings& settings, double seconds) {
    std::map<std::string, std::pair<int64_t, int64_t>> formats;  // format -> (tensors, bytes)
    for (const CheckpointTensor& t : loaded.checkpoint->tensors()) {
        auto& [count, bytes] = formats[t.quantized() ? std::string(format_name(t.format)) : t.stored_type];
        ++count;
        bytes += static_cast<int64_t>(t.stored_bytes);
    }
    Json list = Json::array();
    for (const auto& [name, sum] : formats)
        list.push_back({{"format", name}, {"tensors", sum.first}, {"bytes", sum.second}});
    const ModelConfig& config = loaded.model->config();
    NIBBLE_TRY(const KernelTable kernels, kernels_of(loaded, settings));
    return Json{
        {"architecture", config.architecture},    {"kernels", loaded.model->kernels()},    {"formats", std::move(list)},
        {"layers", folded_kernels_json(kernels)}, {"context", engine.capacity()},          {"vocabulary", config.vocab},
        {"sequences", engine.limits().sequences}, {"kv_bytes", engine.limits().kv_memory}, {"load_seconds", seconds}};
}

// Copies to memory the tensors that a model on a CPU reads while it runs: rows of the embedding (its matrices are
// packed). The files may then be overwritten, truncated or removed.
Status hold_weights(const LoadedModel& loaded) {
    if (loaded.model->chooses()) return Ok{};  // the model is on a device
    const auto tensors = loaded.checkpoint->tensors();
    for (size_t i = 0; i < tensors.size(); ++i)
        if (tensors[i].name == loaded.model->config().embedding) NIBBLE_CHECK(hold_tensor(*loaded.checkpoint, i));
    return check_maps().as(ErrorKind::file);
}

}  // namespace

Result<ServedModel> load_served(const ServeOptions& config, ThreadPool& pool, const JobHooks& hooks) {
    const auto start = std::chrono::steady_clock::now();
    NIBBLE_TRY(const Speculation speculation, parse_speculation(config.cache.speculate).within("--speculate"));
    NIBBLE_TRY(ModelText text, open_model_text(config.model));
    NIBBLE_TRY(const LoadedModel loaded,
               LoadedModel::open(config.model, config.engine, pool, hooks, speculation.predicts(), config.context));
    if (const int64_t most = loaded.model->config().context; most > 0 && config.context > most)
        return fail(ErrorKind::usage,
                    "--max-model-len {}: the model is made for {} tokens (max_position_embeddings); give at most that",
                    config.context, most);
    NIBBLE_CHECK(hold_weights(loaded).within(config.model));
    // Parameters that neither the request nor generation_config.json sets have OpenAI's defaults.
    NIBBLE_TRY(Request like, sampled_request({}, loaded, text, {.temperature = 1.0f, .top_p = 1.0f}));
    NIBBLE_TRY(EngineOptions options, engine_options(config.cache, config.sequences));
    options.context = config.context;
    options.queue = config.queue;
    options.stretch = config.prompt_stretch.value_or(loaded.model->chooses() ? 3 : 0);
    NIBBLE_TRY(auto engine, Engine::create(loaded.model, text.tokenizer, options));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    NIBBLE_TRY(Json facts, facts_of(loaded, *engine, config.engine, seconds));
    std::vector<std::string> names = config.names;
    if (names.empty()) names.push_back(nibble::name_of(config.model));
    Json info = tokenizer_info(text, like.eos);
    NIBBLE_TRY(auto configured, configured_sampling(*loaded.checkpoint));
    std::shared_ptr<const ChatTemplate> chat;  // null: only requests with their own template can have conversations
    if (text.chat) chat = std::make_shared<const ChatTemplate>(*std::move(text.chat));
    NIBBLE_TRY(auto format,
               ChatFormat::create(text.tokenizer, std::move(chat), std::move(text.variables),
                                  {.tools = config.tool_call_parser, .reasoning = config.reasoning_parser}));
    if (config.tool_call_parser != "auto" && config.tool_call_parser != "none" && !format.writes_tools())
        hooks.emit_warning(fmt::format(
            "{}: the chat template does not write tools into the prompt, so that the model does not see them; "
            "--tool-call-parser {} reads calls that it makes without",
            config.model, config.tool_call_parser));
    ServedModel served{.names = std::move(names),
                       .root = nibble::name_of(config.model),  // clients get no path of this machine
                       .engine = std::move(engine),
                       .tokenizer = std::move(text.tokenizer),
                       .format = std::make_shared<const ChatFormat>(std::move(format)),
                       .control_in_data = config.parse_special,
                       .like = std::move(like),
                       .configured_sampling = std::move(configured),
                       .tokenizer_info = std::move(info),
                       .created = std::time(nullptr),
                       .license = license_of(config.model),
                       .facts = std::move(facts),
                       .weights = nullptr};
    served.weights = std::make_unique<ServedWeights>(*served.engine, std::dynamic_pointer_cast<Model>(loaded.model),
                                                     loaded.checkpoint, pool);
    // A tokenizer whose texts cannot be determined permits only unconstrained answers.
    if (const Status made = served.prepare_grammars(); !made.ok()) served.facts["grammars"] = made.error().message();
    return served;
}

}  // namespace nibble
