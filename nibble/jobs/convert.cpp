#include "nibble/convert.h"

#include "checkpoint/convert.h"
#include "checkpoint/gguf_import.h"
#include "checkpoint/output_place.h"
#include "jobs/job.h"
#include "jobs/manifest.h"
#include "jobs/open_checkpoint.h"
#include "jobs/words.h"

namespace nibble {
namespace {

Result<Dialect> target_dialect(const ConvertCheckpointOptions& options) {
    if (options.format == "bf16") return Dialect::plain;
    if (!options.format.empty()) return parse_dialect(options.format);
    if (options.out.ends_with(".gguf")) return Dialect::gguf;
    return fail(ErrorKind::usage, "{}: give the format to convert to", options.out);
}

ModelCard card_of_conversion(const ConvertCheckpointOptions& options) {
    const std::string name = hub_name(options.source);
    return {.title = hub_name(options.out),
            .base_model = name,
            .keeps_base = true,
            .facts = {{"made from", name}},
            .command = options.command.card};
}

ModelCard card_of_import(const ImportCheckpointOptions& options) {
    const std::string name = hub_name(options.file);
    return {.title = hub_name(options.out),
            .base_model = name,
            .library = "transformers",
            .tags = {"nibble"},
            .facts = {{"made from", name}, {"weights", "decoded to BF16"}},
            .command = options.command.card};
}

}  // namespace

Result<ConversionReport> convert_checkpoint(const ConvertCheckpointOptions& options, const JobHooks& hooks) {
    return as_job([&]() -> Result<ConversionReport> {
        NIBBLE_TRY(const auto dialect, target_dialect(options));
        NIBBLE_TRY(const auto max_shard_bytes, parse_size(options.max_shard_size));
        NIBBLE_TRY(const auto source, open_checkpoint(options.source, hooks));
        NIBBLE_CHECK(check_weights_present(*source, options.partial, hooks));
        NIBBLE_CHECK(refuse_output_in_source(options.out, options.source));
        const Manifest manifest{.command_line = options.command.whole,
                                .settings = {{"dialect", dialect_name(dialect)}, {"drop", options.drop}}};
        ThreadPool pool(options.threads);
        const ConvertOptions how{.to = dialect,
                                 .out = options.out,
                                 .drop = options.drop,
                                 .max_shard_bytes = max_shard_bytes,
                                 .manifest = to_text(manifest),
                                 .card = card_of_conversion(options)};
        NIBBLE_TRY(ConvertReport made, convert(*source, how, pool, hooks).as(ErrorKind::checkpoint));
        return ConversionReport{made.tensors, made.quantized, made.decoded, made.bytes, std::move(made.lines)};
    });
}

Result<ImportReport> import_checkpoint(const ImportCheckpointOptions& options, const JobHooks& hooks) {
    return as_job([&]() -> Result<ImportReport> {
        NIBBLE_TRY(const int64_t max_shard_bytes, parse_size(options.max_shard_size));
        const GgufImportOptions how{.file = options.file,
                                    .out = options.out,
                                    .max_shard_bytes = max_shard_bytes,
                                    .threads = options.threads,
                                    .pre = options.pre,
                                    .manifest = to_text(Manifest{.command_line = options.command.whole}),
                                    .card = model_card_text(card_of_import(options), "")};
        NIBBLE_TRY(const auto made, import_gguf(how, hooks).as(ErrorKind::checkpoint));
        return ImportReport{made.tensors, made.weight_bytes, made.tokenizer};
    });
}

}  // namespace nibble
