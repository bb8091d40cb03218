#include "cli/calibration_options.h"

#include "base/mapped_file.h"
#include "cli/model_text.h"
#include "cli/usage.h"
#include "io/safetensors.h"
#include "model/cpu/model.h"
#include "text/corpus.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace nibble {
namespace {

using Sequences = std::vector<std::vector<int32_t>>;

Result<Sequences> ready_ids(const std::string& path) {
    NIBBLE_TRY(const auto file, SafetensorsFile::open(path));
    const TensorRecord* ids = file.find("input_ids");
    if (!ids) return fail("{}: has no tensor 'input_ids'", path);
    if (ids->dtype != DType::i64 || ids->shape.size() != 2 || ids->data.empty())
        return fail("{}: 'input_ids' must be I64 [batch, tokens], not empty", path);
    Sequences sequences(static_cast<size_t>(ids->shape[0]));
    const std::byte* at = ids->data.data();
    for (auto& sequence : sequences)
        for (int64_t t = 0; t < ids->shape[1]; ++t, at += sizeof(int64_t)) {
            int64_t id;
            std::memcpy(&id, at, sizeof id);
            if (id < 0 || id > INT32_MAX) return fail("{}: 'input_ids' holds {}, which is no token id", path, id);
            sequence.push_back(static_cast<int32_t>(id));
        }
    return sequences;
}

// A header's size in eight bytes, then the header, which is JSON: no text has a zero byte.
Result<bool> is_safetensors(const std::string& path) {
    if (path.ends_with(".safetensors")) return true;
    NIBBLE_TRY(const auto file, MappedFile::open(path));
    const auto bytes = file.bytes();
    return bytes.size() > 8 && bytes[7] == std::byte{0} && bytes[8] == std::byte{'{'};
}

}  // namespace

void add_calibration_flags(CLI::App& command, CalibrationFlags& flags) {
    command.add_option(
        "--calib", flags.file,
        "calibration text: plain, or lines of {\"text\"} or {\"messages\"} (either may be packed by gzip), or "
        ".safetensors with input_ids");
    command.add_option("--calib-tokens", flags.tokens, "tokens taken from the front of the file")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command.add_option("--calib-seq", flags.sequence, "most tokens of one sequence")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command.add_option("--calib-range", flags.range, "max, percentile:P, or mse (of FP8 scales)")
        ->check(read_by(parse_range_rule))
        ->capture_default_str();
    command.add_flag("--calib-all-experts", flags.all_experts, "every expert sees every token");
}

void check_calibration_flags(const CLI::App& command, const CalibrationFlags& flags) {
    if (!flags.file.empty()) return;
    for (const char* companion :
         {"--calib-tokens", "--calib-seq", "--calib-range", "--calib-all-experts", "--calib-gradients"})
        if (const CLI::Option* option = command.get_option_no_throw(companion); option && option->count() > 0)
            usage_error("{} says how --calib is used, and there is no --calib FILE", companion);
}

Result<RangeRule> parse_range_rule(std::string_view word) {
    if (word == "max") return RangeRule{};
    if (word == "mse") return RangeRule{RangeRule::Kind::mse, 0};
    constexpr std::string_view prefix = "percentile:";
    double percentile = 0;
    if (word.starts_with(prefix)) {
        const auto number = word.substr(prefix.size());
        const auto [end, problem] = std::from_chars(number.data(), number.data() + number.size(), percentile);
        if (problem == std::errc{} && end == number.data() + number.size() && percentile > 0 && percentile <= 100)
            return RangeRule{RangeRule::Kind::percentile, percentile};
    }
    return fail("unknown --calib-range '{}'; choices: max, percentile:P with 0 < P <= 100, mse", word);
}

Result<Sequences> calibration_sequences(const CalibrationFlags& flags, const Checkpoint& checkpoint,
                                        const JobHooks& hooks) {
    NIBBLE_TRY(const ModelConfig config, model_config(checkpoint));
    NIBBLE_TRY(const bool ids, is_safetensors(flags.file));
    if (ids) {
        NIBBLE_TRY(Sequences ready, ready_ids(flags.file));
        for (const auto& sequence : ready)
            if (std::ssize(sequence) > config.context)
                return fail("{}: rows of {} tokens; the model's context is {}", flags.file, sequence.size(),
                            config.context);
        return ready;
    }
    NIBBLE_TRY(const auto text, open_model_text(checkpoint.path()));
    NIBBLE_TRY(const Corpus corpus, read_corpus(flags.file, text.tokenizer, text.chat ? &*text.chat : nullptr,
                                                {.tokens = flags.tokens,
                                                 .sequence = std::min(flags.sequence, config.context),
                                                 .template_variables = text.variables}));
    if (corpus.tokens < flags.tokens && hooks.warn)
        hooks.warn(fmt::format("{}: has {} tokens, {} were asked for; all of them are used{}", flags.file,
                               corpus.tokens, flags.tokens,
                               corpus.cut ? " (of a packed text only the beginning is read)" : ""));
    Sequences sequences;
    for (const auto& sequence : corpus.sequences) sequences.emplace_back(sequence.begin(), sequence.end());
    return sequences;
}

}  // namespace nibble
