#include "jobs/verify.h"

#include "base/json.h"
#include "checkpoint/work_folder.h"
#include "jobs/open_checkpoint.h"

#include <filesystem>

namespace nibble {
namespace {

// The formats that the recipe wanted, from the nibble.json next to the weights; nothing for checkpoints of others.
Result<std::optional<ExpectedFormats>> expected_of(const std::filesystem::path& checkpoint) {
    const auto manifest = checkpoint / manifest_name;
    if (!std::filesystem::exists(manifest)) return std::optional<ExpectedFormats>{};
    NIBBLE_TRY(const auto json, read_json_file(manifest));
    if (!json.is_object() || !json.contains("tensors")) return std::optional<ExpectedFormats>{};
    NIBBLE_TRY(auto expected, expected_formats_from_json(json["tensors"]).within(manifest.string()));
    return std::optional<ExpectedFormats>(std::move(expected));
}

Result<VerifyReport> verify_one(const std::string& path, const Checkpoint* source, ThreadPool& pool,
                                const JobHooks& hooks) {
    NIBBLE_TRY(const auto expected, expected_of(path));
    NIBBLE_TRY(const auto checkpoint, open_checkpoint(path, hooks, ScaleReading::raw));
    return verify(*checkpoint, {.source = source, .expected = expected ? &*expected : nullptr}, pool, hooks);
}

}  // namespace

Result<std::vector<VerifyReport>> verify_checkpoints(const VerifyCheckpointsOptions& options, const JobHooks& hooks) {
    return as_job([&]() -> Result<std::vector<VerifyReport>> {
        ThreadPool pool(options.threads);
        std::unique_ptr<Checkpoint> source;
        if (!options.against.empty()) {
            NIBBLE_TRY(source, Checkpoint::open(options.against));
        }
        std::vector<VerifyReport> reports;
        for (const std::string& path : options.paths) {
            auto report = verify_one(path, source.get(), pool, hooks);
            if (hooks.should_stop()) return fail(ErrorKind::cancelled, "stopped on request; nothing was changed");
            reports.push_back(report.ok() ? *std::move(report)
                                          : VerifyReport{.path = path, .error = report.error().message()});
        }
        return reports;
    });
}

}  // namespace nibble
