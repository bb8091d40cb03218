#include "data/build.h"

#include "base/philox.h"
#include "checkpoint/work_folder.h"
#include "data/split_writer.h"
#include "io/atomic_file.h"

#include <cmath>
#include <system_error>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t batch_bytes = size_t{8} << 20, batch_documents = 4096;
constexpr uint64_t validation_role = 0x76616C6964617465;  // "validate"

std::string place_of(const RawDocument& document, const std::vector<fs::path>& files) {
    const std::string file = files[document.source].string();
    if (!document.row && document.number == 1) return file;
    return fmt::format("{}: {} {}", file, document.unit, document.number);
}

class DataBuilder {
public:
    DataBuilder(const DocumentText& text, const DataBuildOptions& options, const fs::path& folder,
                std::vector<fs::path> files)
        : text_(text),
          options_(options),
          width_(token_width(static_cast<int64_t>(text.tokenizer->vocab_size()))),
          train_(folder, "train", width_, options.shard_tokens),
          validation_(folder, "validation", width_, options.shard_tokens),
          reader_(std::move(files), options.separator) {
        for (const fs::path& file : reader_.files()) {
            manifest_.sources.push_back({file.string()});
            std::error_code ignored;
            const auto size = fs::file_size(file, ignored);
            if (!ignored) total_bytes_ += static_cast<int64_t>(size);
        }
    }

    Result<DataManifest> run(ThreadPool& pool, const JobHooks& hooks) {
        for (bool more = true; more;) {
            if (hooks.should_stop()) return fail(ErrorKind::cancelled, "stopped on request; nothing was written");
            NIBBLE_TRY(more, step(pool));
            if (hooks.progress) hooks.progress({"tokenize", {}, reader_.bytes_read(), total_bytes_});
        }
        return finish();
    }

private:
    // Processes one batch of documents; returns false at the end of the files.
    Result<bool> step(ThreadPool& pool) {
        std::vector<RawDocument> batch;
        bool more = true;
        for (size_t bytes = 0; more && bytes < batch_bytes && batch.size() < batch_documents;) {
            NIBBLE_TRY(auto document, reader_.next());
            more = document.has_value();
            if (!more) break;
            bytes += document->text().size();
            batch.push_back(*std::move(document));
        }
        std::vector<Result<TokenDocument>> done(batch.size(), Result<TokenDocument>(TokenDocument{}));
        pool.parallel_for(static_cast<int64_t>(batch.size()), [&](int64_t i) {
            done[static_cast<size_t>(i)] = tokenize_document(batch[static_cast<size_t>(i)], text_);
        });
        for (size_t i = 0; i < batch.size(); ++i) {
            if (!done[i].ok()) return std::move(done[i]).error().within(place_of(batch[i], reader_.files()));
            NIBBLE_CHECK(add(*done[i], manifest_.sources[batch[i].source]).within(place_of(batch[i], reader_.files())));
        }
        return more;
    }

    Status add(const TokenDocument& document, DataSource& source) {
        const std::span<const TokenId> ids(document.ids);
        if (ids.empty()) return Ok{};
        const uint32_t draw = PhiloxStream{options_.seed, validation_role}.block(documents_++).word[0];
        ++source.documents;
        source.tokens += static_cast<int64_t>(ids.size());
        size_t trained = ids.size();
        if (options_.validation > 0 && options_.validation_by == ValidationBy::documents)
            trained = double(draw) < options_.validation * 0x1p32 ? 0 : ids.size();
        if (options_.validation > 0 && options_.validation_by == ValidationBy::tails && !document.learned.empty())
            return fail(
                "--val-by tails would move the answers of chats to validation; use whole chats (--val-by documents), "
                "or learn all tokens (--loss all)");
        if (options_.validation > 0 && options_.validation_by == ValidationBy::tails)
            trained = ids.size() - static_cast<size_t>(std::llround(options_.validation * double(ids.size())));
        NIBBLE_CHECK(train_.add(ids.first(trained), document.learned, 0));
        return validation_.add(ids.subspan(trained), document.learned, trained);
    }

    Result<DataManifest> finish() {
        NIBBLE_TRY(manifest_.train, train_.finish());
        NIBBLE_TRY(manifest_.validation, validation_.finish());
        if (manifest_.train.tokens() == 0)
            return fail("no tokens to train on: the files have {} documents, of which {} tokens are for validation{}",
                        documents_, manifest_.validation.tokens(),
                        manifest_.validation.tokens() > 0 ? "; change --val or --seed" : "");
        if (options_.validation > 0 && manifest_.validation.tokens() == 0)
            return fail(
                "none of {} documents was chosen for validation by --val {} and --seed {}; change one of them, or use "
                "the end of every text (--val-by tails)",
                documents_, options_.validation, options_.seed);
        if (manifest_.train.learned() == 0)
            return fail(
                "no token would be learned: none of the {} training documents has an assistant's answer that counts; "
                "--loss all learns all tokens",
                manifest_.train.documents());
        manifest_.vocabulary = vocabulary_hash(*text_.tokenizer);
        manifest_.vocab = static_cast<int64_t>(text_.tokenizer->vocab_size());
        manifest_.end_token = text_.end_token;
        manifest_.validation_fraction = options_.validation;
        manifest_.validation_by = "none";
        if (options_.validation > 0)
            manifest_.validation_by = options_.validation_by == ValidationBy::tails ? "tails" : "documents";
        manifest_.seed = options_.seed;
        return std::move(manifest_);
    }

    const DocumentText& text_;
    const DataBuildOptions& options_;
    int width_;
    DataSplitWriter train_, validation_;
    DocumentReader reader_;
    DataManifest manifest_;
    int64_t total_bytes_ = 0;
    uint64_t documents_ = 0;
};

}  // namespace

Result<DataManifest> build_data(const DocumentText& text, const DataBuildOptions& options, ThreadPool& pool,
                                const JobHooks& hooks) {
    if (!(options.validation >= 0 && options.validation < 1))
        return fail("a validation fraction of {}: must be at least 0 and below 1", options.validation);
    if (options.shard_tokens < 2 || options.shard_tokens > (int64_t{1} << 30))
        return fail("shards of {} tokens: must be 2 to 2^30", options.shard_tokens);
    NIBBLE_TRY(auto files, find_text_files(options.inputs));
    NIBBLE_TRY(WorkFolder work, WorkFolder::open(options.out, ExportMode::create, 0));
    const auto made = [&]() -> Result<DataManifest> {
        NIBBLE_TRY(auto manifest, DataBuilder(text, options, work.path(), std::move(files)).run(pool, hooks));
        NIBBLE_CHECK(write_file_atomically(work.path() / data_manifest_name, to_json(manifest).dump(1) + "\n"));
        NIBBLE_CHECK(work.publish());
        return manifest;
    }();
    if (!made.ok()) work.discard();
    return made;
}

}  // namespace nibble
