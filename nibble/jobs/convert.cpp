#include "jobs/convert.h"

#include "checkpoint/output_place.h"
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

Result<ConvertReport> convert_checkpoint(const ConvertCheckpointOptions& options, const JobHooks& hooks) {
    return as_job([&]() -> Result<ConvertReport> {
        NIBBLE_TRY(const auto dialect, target_dialect(options));
        NIBBLE_TRY(const auto max_shard_bytes, parse_size(options.max_shard_size));
        NIBBLE_TRY(const auto source, open_checkpoint(options.source, hooks));
        NIBBLE_CHECK(refuse_output_in_source(options.out, options.source));
        const Manifest manifest{.command_line = options.command.whole,
                                .settings = {{"dialect", dialect_name(dialect)}, {"drop", options.drop}}};
        ThreadPool pool(options.threads);
        return convert(*source,
                       {.to = dialect,
                        .out = options.out,
                        .drop = options.drop,
                        .max_shard_bytes = max_shard_bytes,
                        .manifest = to_text(manifest),
                        .card = card_of_conversion(options)},
                       pool, hooks)
            .as(ErrorKind::checkpoint);
    });
}

Result<GgufImportResult> import_checkpoint(const ImportCheckpointOptions& options, const JobHooks& hooks) {
    return as_job([&]() -> Result<GgufImportResult> {
        NIBBLE_TRY(const int64_t max_shard_bytes, parse_size(options.max_shard_size));
        return import_gguf({.file = options.file,
                            .out = options.out,
                            .max_shard_bytes = max_shard_bytes,
                            .threads = options.threads,
                            .pre = options.pre,
                            .manifest = to_text(Manifest{.command_line = options.command.whole}),
                            .card = model_card_text(card_of_import(options), "")},
                           hooks)
            .as(ErrorKind::checkpoint);
    });
}

}  // namespace nibble
