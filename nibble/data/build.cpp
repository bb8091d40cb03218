#include "data/build.h"

#include "base/philox.h"
#include "checkpoint/work_folder.h"
#include "data/split_writer.h"
#include "io/atomic_file.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

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

// A document that changes sides because the draw left one side without any.
struct MovedDocument {
    uint64_t number = 0;  // from 0
    bool to_validation = false;
};

class DataBuilder {
public:
    DataBuilder(const DocumentText& text, const DataBuildOptions& options, const fs::path& folder,
                std::vector<fs::path> files, std::optional<MovedDocument> moved)
        : text_(text),
          options_(options),
          moved_(moved),
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

    Status read_all(ThreadPool& pool, const JobHooks& hooks) {
        for (bool more = true; more;) {
            if (hooks.should_stop()) return fail(ErrorKind::cancelled, "stopped on request; nothing was written");
            NIBBLE_TRY(more, step(pool));
            if (hooks.progress) hooks.progress({"tokenize", {}, reader_.bytes_read(), total_bytes_});
        }
        return Ok{};
    }

    // After read_all(): few documents may all be on one side. The one with the least draw is the first to be drawn as
    // the fraction grows, the one with the greatest draw the last. Nothing: both sides have documents, or cannot.
    std::optional<MovedDocument> document_to_move() const {
        if (!draws_documents() || documents_ < 2 || (drawn_ > 0 && drawn_ < documents_)) return std::nullopt;
        const bool to_validation = drawn_ == 0;
        return MovedDocument{to_validation ? least_.second : greatest_.second, to_validation};
    }

    // After read_all().
    Result<DataManifest> finish() {
        NIBBLE_TRY(manifest_.train, train_.finish());
        NIBBLE_TRY(manifest_.validation, validation_.finish());
        if (manifest_.train.tokens() == 0)
            return fail("no tokens to train on: the files have {} documents, of which {} tokens are for validation{}",
                        documents_, manifest_.validation.tokens(),
                        manifest_.validation.tokens() > 0 ? "; --val needs two documents, or --val-by tails" : "");
        if (options_.validation > 0 && manifest_.validation.tokens() == 0)
            return fail("no tokens for validation: {} documents are too {} for --val {}{}", documents_,
                        draws_documents() ? "few" : "short", options_.validation,
                        draws_documents() ? "; it needs two, or --val-by tails, which takes the end of every text"
                                          : "; give a larger fraction");
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

private:
    bool draws_documents() const {
        return options_.validation > 0 && options_.validation_by == ValidationBy::documents;
    }

    // Returns true if the next document is validation as a whole.
    bool is_drawn() {
        const uint64_t number = documents_++;
        const uint32_t draw = PhiloxStream{options_.seed, validation_role}.block(number).word[0];
        least_ = std::min(least_, std::pair(draw, number));
        greatest_ = std::max(greatest_, std::pair(draw, number));
        if (!draws_documents()) return false;
        const bool moved = moved_ && moved_->number == number;
        const bool drawn = moved ? moved_->to_validation : double(draw) < options_.validation * 0x1p32;
        drawn_ += drawn;
        return drawn;
    }

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
        ++source.documents;
        source.tokens += static_cast<int64_t>(ids.size());
        size_t trained = is_drawn() ? 0 : ids.size();
        if (options_.validation > 0 && options_.validation_by == ValidationBy::tails && !document.learned.empty())
            return fail(
                "--val-by tails would move the answers of chats to validation; use whole chats (--val-by documents), "
                "or learn all tokens (--loss all)");
        if (options_.validation > 0 && options_.validation_by == ValidationBy::tails)
            trained = ids.size() - static_cast<size_t>(std::llround(options_.validation * double(ids.size())));
        NIBBLE_CHECK(train_.add(ids.first(trained), document.learned, 0));
        return validation_.add(ids.subspan(trained), document.learned, trained);
    }

    const DocumentText& text_;
    const DataBuildOptions& options_;
    std::optional<MovedDocument> moved_;
    int width_;
    DataSplitWriter train_, validation_;
    DocumentReader reader_;
    DataManifest manifest_;
    int64_t total_bytes_ = 0;
    uint64_t documents_ = 0, drawn_ = 0;                                            // drawn_: for validation
    std::pair<uint32_t, uint64_t> least_{UINT32_MAX, UINT64_MAX}, greatest_{0, 0};  // draw and number of a document
};

// Removes the shards of a build that begins again.
Status remove_shards(const fs::path& folder) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error))
        if (const std::string name = entry.path().filename(); name.starts_with("train_") || name.starts_with("valid"))
            fs::remove(entry.path(), error);
    if (error) return fail("{}: {}", folder.string(), error.message());
    return Ok{};
}

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
        auto builder = std::make_unique<DataBuilder>(text, options, work.path(), files, std::nullopt);
        NIBBLE_CHECK(builder->read_all(pool, hooks));
        if (const auto moved = builder->document_to_move()) {
            hooks.emit_note(fmt::format("--val {} and --seed {} put all documents on one side; document {} goes to {}",
                                        options.validation, options.seed, moved->number + 1,
                                        moved->to_validation ? "validation" : "training"));
            builder.reset();
            NIBBLE_CHECK(remove_shards(work.path()));
            builder = std::make_unique<DataBuilder>(text, options, work.path(), files, moved);
            NIBBLE_CHECK(builder->read_all(pool, hooks));
        }
        NIBBLE_TRY(auto manifest, builder->finish());
        NIBBLE_CHECK(write_file_atomically(work.path() / data_manifest_name, to_json(manifest).dump(1) + "\n"));
        NIBBLE_CHECK(work.publish());
        return manifest;
    }();
    if (!made.ok()) work.discard();
    return made;
}

}  // namespace nibble
