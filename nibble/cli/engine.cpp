#include "cli/engine.h"
#include "cli/open_checkpoint.h"

#include "base/json_fields.h"
#include "base/utf8.h"
#include "chat/control_tokens.h"
#include "checkpoint/source_files.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "io/journal.h"
#include "model/device_model.h"
#include "serve/sampler.h"
#include "text/corpus.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <ctime>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int64_t usual_predicted = 3;  // tokens of a guess

// generation_config.json beside the weights, or of a GGUF; an empty object when there is none.
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

void add_ids(const Json& ids, std::vector<int32_t>& out) {
    int32_t id = -1;
    if (json_value(ids, id) && id >= 0) out.push_back(id);
    if (ids.is_array())
        for (const Json& i : ids)
            if (json_value(i, id) && id >= 0) out.push_back(id);
}

template <class T>
T given_or(const std::optional<T>& flag, const Json& config, const char* key, T otherwise) {
    T value = otherwise;
    if (flag) return *flag;
    if (const auto found = config.find(key); found != config.end()) json_value(*found, value);
    return value;
}

Result<std::vector<int32_t>> encoded(const ModelText& text, std::string_view prompt, bool special) {
    NIBBLE_TRY(const auto ids, text.tokenizer.encode(prompt, {.add_special = special}));
    return std::vector<int32_t>(ids.begin(), ids.end());
}

// Control tokens count only in what the template wrote.
Result<std::vector<int32_t>> encoded(const ModelText& text, const Rendering& rendering) {
    const std::vector<TokenId> control = control_tokens(text.tokenizer);
    NIBBLE_TRY(const auto ids, text.tokenizer.encode(rendering.text, {.data = &rendering.data, .control = control}));
    return std::vector<int32_t>(ids.begin(), ids.end());
}

Result<Rendering> rendered(const ModelText& text, const Json& messages) {
    if (!text.chat) return fail("the model has no chat template");
    NIBBLE_CHECK(check_messages(messages));
    const Json data{{"messages", messages}, {"add_generation_prompt", true}};
    const std::time_t seconds = std::time(nullptr);
    std::tm now{};
    localtime_r(&seconds, &now);
    return text.chat->render(text.variables, data, now).within("chat template");
}

}  // namespace

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
    command.add_option("--compute", flags.compute, "round values between operators to bf16, or keep f32")
        ->check(one_of({"bf16", "f32"}))
        ->capture_default_str();
    command.add_option("--kv", flags.kv, "KV cache; default: as the checkpoint says")
        ->check(one_of({"bf16", "fp8", "fp8_cast", "fp8_page", "nvfp4", "nvfp4_cast"}));
    command
        .add_option("--ssm-state", flags.ssm_state,
                    "Mamba-2 states between tokens: f32, bf16, fp16, fp16_stochastic (rounded by Philox)")
        ->check(one_of({"f32", "bf16", "fp16", "fp16_stochastic"}))
        ->capture_default_str();
    command.add_flag("--weights-only", flags.weights_only, "leave activations unquantized (W4A16, W8A16)");
    add_device_flag(command, flags.device);
    add_threads_flag(command, flags.threads);
    add_kernels_flag(command, flags.kernels, "force one (sums in tiles: amx or ref); the bits are the same");
    add_sums_flag(command, flags.sums);
    add_quiet_flag(command, flags.quiet, "no progress and no remarks");
}

CLI::Option* add_sums_flag(CLI::App& command, std::string& sums) {
    return command
        .add_option("--sums", sums,
                    "order of sums in products: lanes, the same bits on every CPU, or tiles, Intel's AMX: faster for "
                    "prompts and batches, the last bits differ")
        ->check(one_of({"lanes", "tiles"}))
        ->capture_default_str();
}

Result<SumOrder> sum_order(const std::string& name) {
    if (name == "lanes") return SumOrder::lanes;
    if (name == "tiles") return SumOrder::tiles;
    return fail("--sums {}: choose lanes or tiles", name);
}

Result<ModelOptions> model_options(const EngineFlags& flags) {
    ModelOptions options;
    options.compute = flags.compute == "f32" ? Compute::f32 : Compute::bf16;
    options.quantize_activations = !flags.weights_only;
    options.kernels = flags.kernels;
    NIBBLE_TRY(options.sums, sum_order(flags.sums));
    options.ssm_state = flags.ssm_state == "bf16"              ? SsmStateFormat::bf16
                        : flags.ssm_state == "fp16"            ? SsmStateFormat::fp16
                        : flags.ssm_state == "fp16_stochastic" ? SsmStateFormat::fp16_stochastic
                                                               : SsmStateFormat::f32;
    if (flags.kv.empty()) return options;
    if (flags.kv == "bf16")
        options.kv = KvFormat::none;
    else if (!(options.kv = kv_from_name(flags.kv)))
        return fail("--kv: unknown format '{}'; choices: bf16, fp8, fp8_cast, fp8_page, nvfp4, nvfp4_cast", flags.kv);
    return options;
}

Json to_json(const EngineFlags& flags) {
    Json json{{"compute", flags.compute}};
    if (!flags.kv.empty()) json["kv"] = flags.kv;
    if (flags.ssm_state != "f32") json["ssm_state"] = flags.ssm_state;
    if (flags.weights_only) json["activations"] = "not quantized";
    if (flags.sums != "lanes") json["sums"] = flags.sums;
    if (flags.device != "cpu") json["device"] = "cuda";  // sums in another order
    return json;
}

Result<std::unique_ptr<LanguageModel>> load_model(std::shared_ptr<const Checkpoint> checkpoint,
                                                  const ModelOptions& options, const DeviceChoice& device,
                                                  ThreadPool& pool) {
    if (device.cuda) return open_device_model(std::move(checkpoint), options, device, pool);
    NIBBLE_TRY(Model model, Model::load(std::move(checkpoint), options, pool));
    return std::unique_ptr<LanguageModel>(std::make_unique<Model>(std::move(model)));
}

Result<LoadedModel> LoadedModel::open(const fs::path& path, const EngineFlags& flags, ThreadPool& pool,
                                      bool prediction) {
    NIBBLE_TRY(ModelOptions options, model_options(flags));
    options.prediction = prediction;
    NIBBLE_TRY(const DeviceChoice device, parse_device(flags.device).within("--device"));
    NIBBLE_TRY(std::unique_ptr<Checkpoint> checkpoint, open_checkpoint(path, flags.quiet));
    NIBBLE_TRY(const JobIdentity files, source_files(*checkpoint));
    LoadedModel engine{path, std::move(checkpoint), nullptr};
    NIBBLE_TRY(engine.model, load_model(engine.checkpoint, options, device, pool).within(path.string()));
    NIBBLE_CHECK(check_source_unchanged(*engine.checkpoint, files));
    if (const std::string note = engine.model->note(); !note.empty()) say("nibble: " + note);
    return engine;
}

Result<std::vector<int32_t>> end_tokens(const LoadedModel& engine, const ModelText& text) {
    return end_tokens(engine.model->config(), *engine.checkpoint, text).within(engine.path.string());
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
    const fs::path clean = fs::absolute(path).lexically_normal();  // "." has a name, too
    return (clean.has_filename() ? clean : clean.parent_path()).filename().string();
}

Result<std::string> fingerprint(const Checkpoint& checkpoint, const EngineFlags& flags) {
    std::string facts = to_json(flags).dump(-1, ' ', false, Json::error_handler_t::replace);
    for (const CheckpointTensor& t : checkpoint.tensors())
        facts += fmt::format("\n{} {} {} {}", t.name, fmt::join(t.shape, "x"), t.stored_type, t.stored_bytes);
    NIBBLE_TRY(const JobIdentity files, source_files(checkpoint));
    for (const auto& [name, value] : files) facts += fmt::format("\n{} {}", name, value);
    return hash_text(facts + checkpoint.config().dump());
}

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
    command.add_option("--temperature", flags.temperature,
                       "0: always the likeliest token; default: generation_config.json's, else 0.7");
    command.add_option("--top-k", flags.top_k, "of the likeliest tokens only; 0: off");
    command.add_option("--top-p", flags.top_p,
                       "of the likeliest tokens with this mass only; default: generation_config.json's, else 0.95");
    command.add_option("--min-p", flags.min_p, "of tokens at least this likely relative to the likeliest");
    command.add_option("--repetition-penalty", flags.repetition_penalty, "1: off");
    command.add_option("--presence-penalty", flags.presence_penalty, "0: off");
    command.add_option("--frequency-penalty", flags.frequency_penalty, "0: off");
    command.add_option("--seed", flags.seed, "the same seed gives the same answer")->capture_default_str();
    command.add_option("--max-tokens", flags.max_tokens, "of an answer")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
        ->capture_default_str();
    command.add_option("--stop", flags.stop, "a text that ends the answer; may be given several times")
        ->allow_extra_args(false);
}

Result<std::vector<std::string>> configured_sampling(const Checkpoint& checkpoint) {
    NIBBLE_TRY(const Json config, generation_config(checkpoint));
    std::vector<std::string> out;
    for (const char* name : {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})
        if (const auto value = config.find(name); value != config.end() && value->is_number()) out.emplace_back(name);
    const auto sample = config.find("do_sample");
    if (sample != config.end() && *sample == false && !config.contains("temperature"))
        out.insert(out.begin(), "temperature");
    return out;
}

Result<Request> sampled_request(const SamplingFlags& flags, const LoadedModel& engine, const ModelText& text,
                                const SamplingDefaults& otherwise) {
    NIBBLE_TRY(const Json config, generation_config(*engine.checkpoint).within(engine.path.string()));
    Request request;
    SamplingParams& s = request.sampling;
    const bool greedy = config.contains("do_sample") && config["do_sample"] == false;
    s.temperature = given_or(flags.temperature, config, "temperature", greedy ? 0.0f : otherwise.temperature);
    s.top_k = given_or(flags.top_k, config, "top_k", int64_t{0});
    s.top_p = given_or(flags.top_p, config, "top_p", otherwise.top_p);
    s.min_p = given_or(flags.min_p, config, "min_p", 0.0f);
    s.repetition_penalty = given_or(flags.repetition_penalty, config, "repetition_penalty", 1.0f);
    s.presence_penalty = flags.presence_penalty;
    s.frequency_penalty = flags.frequency_penalty;
    s.seed = flags.seed;
    NIBBLE_CHECK(check(s));
    request.max_tokens = flags.max_tokens;
    request.stop = flags.stop;
    NIBBLE_TRY(request.eos, end_tokens(engine, text));
    return request;
}

Status parse_speculation(std::string_view text, CacheFlags& flags) {
    const size_t colon = text.find(':');
    const std::string_view who = text.substr(0, colon);
    if (who == "none" && colon == text.npos) {
        flags.drafts = 0;
        return Ok{};
    }
    if (who != "lookup" && who != "mtp") return fail("'{}': choose none, lookup[:N] or mtp[:N]", text);
    flags.drafter = who == "mtp" ? DraftSource::prediction : DraftSource::lookup;
    flags.drafts = who == "mtp" ? usual_predicted : usual_looked_up;
    if (colon == text.npos) return Ok{};
    const std::string_view number = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), flags.drafts);
    if (error != std::errc() || end != number.data() + number.size() || flags.drafts < 1 || flags.drafts > most_drafts)
        return fail("'{}': N is a whole number from 1 to {}", text, most_drafts);
    return Ok{};
}

void add_cache_flags(CLI::App& command, CacheFlags& flags) {
    command
        .add_option("--kv-memory", flags.kv_memory,
                    "memory for keys, values and states: 512M, 4GB, or bytes; default: what is free")
        ->check(read_by(parse_size));
    command
        .add_option("--gpu-memory-utilization", flags.memory_share,
                    "share of the device's free memory that they take; of a host, where the model runs there, a third")
        ->check(CLI::Range(0.01, 1.0))
        ->capture_default_str();
    command
        .add_option_function<std::string>(
            "--speculate",
            [&flags](const std::string& text) {
                if (const Status s = parse_speculation(text, flags); !s.ok())
                    throw CLI::ValidationError("--speculate", s.error().message());
            },
            "tokens guessed ahead: none, lookup[:N] in the text so far, mtp[:N] by layers for multi-token prediction; "
            "the answer is the same")
        ->default_str("none");
    command.add_flag("--no-prefix-cache", flags.no_prefix_cache, "compute equal beginnings of prompts anew");
}

Result<EngineOptions> engine_options(const CacheFlags& flags, int64_t sequences) {
    EngineOptions options{.sequences = sequences,
                          .memory_share = flags.memory_share,
                          .prefix_cache = !flags.no_prefix_cache,
                          .drafts = flags.drafts,
                          .drafter = flags.drafter};
    if (flags.kv_memory.empty()) return options;
    NIBBLE_TRY(options.kv_memory, parse_size(flags.kv_memory).within("--kv-memory"));
    if (options.kv_memory > int64_t{1} << 50) return fail("--kv-memory {}: is over a PiB", flags.kv_memory);
    return options;
}

Result<std::vector<int32_t>> encode_prompt(const ModelText& text, const std::string& prompt) {
    NIBBLE_CHECK(check_utf8(prompt));
    return encoded(text, prompt, true);
}

Result<std::vector<int32_t>> encode_text(const ModelText& text, const std::string& more) {
    NIBBLE_CHECK(check_utf8(more));
    return encoded(text, more, false);
}

Result<std::vector<int32_t>> encode_chat(const ModelText& text, const Json& messages, bool control_in_data) {
    NIBBLE_TRY(const Rendering prompt, rendered(text, messages));
    if (control_in_data) return encoded(text, prompt.text, false);
    return encoded(text, prompt);
}

Result<std::vector<int32_t>> encode_chat_reply(const ModelText& text, const std::string& message, int32_t last) {
    const std::string answer = "nibble answer";  // stands where templates have an answer
    NIBBLE_TRY(Rendering whole, rendered(text, Json::array({{{"role", "user"}, {"content", "?"}},
                                                            {{"role", "assistant"}, {"content", answer}},
                                                            {{"role", "user"}, {"content", message}}})));
    const size_t at = whole.text.find(answer);
    if (at == whole.text.npos) return fail("the chat template leaves answers out: no turn can follow one");
    const size_t from = at + answer.size();
    Rendering rest{whole.text.substr(from), {}};
    for (const TextRange& r : whole.data)
        if (r.end > from) rest.data.push_back({std::max(r.begin, from) - from, r.end - from});
    NIBBLE_TRY(auto ids, encoded(text, rest));
    if (!ids.empty() && ids.front() == last) ids.erase(ids.begin());
    return ids;
}

}  // namespace nibble
