// `nibble logits MODEL --ids FILE -o OUT`: the logits of given tokens, to compare with other systems.
#include "checkpoint/output_place.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

#include <fmt/format.h>

#include <cstring>

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct LogitsConfig {
    std::string path, ids, out;
    EngineFlags engine;
    bool json = false;
};

struct Ids {
    int64_t rows = 0, cols = 0;
    std::vector<int32_t> ids;  // [rows, cols]
};

Result<Ids> read_ids(const std::string& path, int64_t vocab, int64_t context) {
    NIBBLE_TRY(const SafetensorsFile file, SafetensorsFile::open(path));
    const TensorRecord* record = file.find("input_ids");
    if (!record) return fail("{}: has no tensor 'input_ids'", path);
    if (record->dtype != DType::i64 || record->shape.size() != 2)
        return fail("{}: input_ids: expected I64 [rows, tokens]", path);
    Ids ids{record->shape[0], record->shape[1], {}};
    if (ids.rows == 0 || ids.cols == 0) return fail("{}: input_ids: is empty", path);
    if (ids.cols > context)
        return fail("{}: input_ids: rows of {} tokens; the model's context is {}", path, ids.cols, context);
    for (int64_t i = 0; i < ids.rows * ids.cols; ++i) {
        int64_t id = 0;
        std::memcpy(&id, record->data.data() + i * 8, 8);
        if (id < 0 || id >= vocab)
            return fail("{}: input_ids: row {}, position {}: token {}; the model's vocabulary has {}", path,
                        i / ids.cols, i % ids.cols, id, vocab);
        ids.ids.push_back(static_cast<int32_t>(id));
    }
    return ids;
}

Result<Outcome> run_logits(const LogitsConfig& config) {
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(config.out, ignored)))
        return fail("{}: exists already; remove it or choose another output", config.out);
    NIBBLE_CHECK(check_output_file(config.out));
    ThreadPool pool(config.engine.threads);
    NIBBLE_TRY(const LoadedModel engine, LoadedModel::open(config.path, config.engine, pool));
    const LanguageModel& model = *engine.model;
    const int64_t vocab = model.config().vocab;
    NIBBLE_TRY(const Ids ids, read_ids(config.ids, vocab, model.config().context));
    NIBBLE_TRY(auto layout, SafetensorsLayout::make({{"logits", DType::f32, {ids.rows, ids.cols, vocab}}}));
    const std::string part = config.out + ".part";
    NIBBLE_TRY(auto writer, SafetensorsFileWriter::create(part, std::move(layout)));
    std::vector<float> logits(static_cast<size_t>(ids.cols * vocab));
    for (int64_t row = 0; row < ids.rows; ++row) {
        const auto tokens = std::span(ids.ids).subspan(size_t(row * ids.cols), size_t(ids.cols));
        NIBBLE_CHECK(model.forward(Batch({{nullptr, tokens, 0}}), logits).within(fmt::format("row {}", row)));
        const auto bytes = std::as_bytes(std::span(logits));
        NIBBLE_CHECK(writer.write(0, row * static_cast<int64_t>(bytes.size()), bytes));
    }
    NIBBLE_CHECK(writer.finish());
    NIBBLE_CHECK(rename_durably(part, config.out));
    if (config.json)
        fmt::print(
            "{}", json_line({{"output", config.out}, {"rows", ids.rows}, {"tokens", ids.cols}, {"vocabulary", vocab}}));
    else if (!config.engine.quiet)
        fmt::print("{}: logits F32 [{}, {}, {}]\n", config.out, ids.rows, ids.cols, vocab);
    return Outcome{};
}

}  // namespace

void add_logits(CLI::App& app, RunCommand& run) {
    auto config = std::make_shared<LogitsConfig>();
    CLI::App* command = app.add_subcommand("logits", "logits of given token ids, to compare with other systems");
    command->add_option("model", config->path, "a checkpoint: folder or .gguf file")->required();
    command->add_option("--ids", config->ids, "a .safetensors file with input_ids, I64 [rows, tokens]")->required();
    command->add_option("-o,--output", config->out, "a .safetensors file: logits, F32 [rows, tokens, vocabulary]")
        ->required();
    add_json_flag(*command, config->json);
    add_engine_flags(*command, config->engine);
    command->footer("Example:\n  nibble logits Qwen3-0.6B --ids ids.safetensors -o logits.safetensors --compute f32");
    command->callback([config, &run] { run = [config] { return run_logits(*config); }; });
}

}  // namespace nibble
