#include "train/data_open.h"

#include "base/utf8.h"
#include "chat/model_text.h"
#include "data/loader.h"
#include "data/source.h"
#include "io/journal.h"
#include "text/stoppable.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

Result<DataManifest> open_manifest(const fs::path& folder, int64_t vocab, std::string& hash) {
    NIBBLE_TRY(DataManifest manifest, read_data_manifest(folder));
    if (manifest.vocab > vocab)
        return fail("{}: the tokens come from a vocabulary of {}, but the model has {}", folder.string(),
                    manifest.vocab, vocab);
    // Sources describe the origin of the texts; only the content of the shards counts.
    manifest.sources.clear();
    hash = hash_text(hash + to_json(manifest).dump());
    return manifest;
}

Result<std::unique_ptr<BatchSource>> open_split(const fs::path& folder, const DataManifest& manifest, bool validation,
                                                const LoaderOptions& options) {
    if ((validation ? manifest.validation : manifest.train).learned() == 0)
        return fail("{}: {}: no token is a label of the loss; see --loss of 'nibble data build'", folder.string(),
                    validation ? "validation" : "train");
    NIBBLE_TRY(TokenSet set, TokenSet::open(folder, manifest, validation));
    NIBBLE_TRY(auto loader, DataLoader::create(std::make_shared<TokenSet>(std::move(set)), options)
                                .within(fmt::format("{}: {}", folder.string(), validation ? "validation" : "train")));
    return std::unique_ptr<BatchSource>(std::make_unique<DataLoader>(std::move(loader)));
}

}  // namespace

Result<DataSources> open_data_folder(const TrainConfig& config, int64_t vocab) {
    DataSources out;
    NIBBLE_TRY(const DataManifest manifest, open_manifest(config.data.folder, vocab, out.hash));
    LoaderOptions options{
        .seq = config.sequence, .seed = config.seed, .shuffle = true, .cut_documents = config.data.cut_documents};
    NIBBLE_TRY(out.train, open_split(config.data.folder, manifest, false, options));
    options.shuffle = false;
    if (!config.data.validation.empty()) {
        NIBBLE_TRY(const DataManifest other, open_manifest(config.data.validation, vocab, out.hash));
        if (other.vocabulary != manifest.vocabulary)
            return fail("{}: the tokens come from another tokenizer than those of {}", config.data.validation.string(),
                        config.data.folder.string());
        NIBBLE_TRY(out.validation, open_split(config.data.validation, other, false, options));
    } else if (!manifest.validation.shards.empty()) {
        NIBBLE_TRY(out.validation, open_split(config.data.folder, manifest, true, options));
    }
    return out;
}

namespace {

Result<std::unique_ptr<BatchSource>> text_source(const TrainConfig& c, const fs::path& file, bool shuffle,
                                                 const std::atomic<bool>* stop, std::string& hash) {
    NIBBLE_TRY(const Tokenizer tokenizer, open_tokenizer(c.tokenizer.empty() ? c.model : c.tokenizer));
    DocumentReader reader({file}, "");
    NIBBLE_TRY(const auto document, reader.next());
    if (!document) return fail("{}: is empty", file.string());
    if (document->row)
        return fail("{}: has rows, not a text; 'nibble data build' converts it to a data.folder", file.string());
    const std::string_view text = document->text();
    NIBBLE_CHECK(check_utf8(text).within(file.string()));
    NIBBLE_TRY(auto ids, encode_stoppable(tokenizer, text, {}, stop));
    hash = hash_text(hash + hash_text(text) + vocabulary_hash(tokenizer));
    return window_source({ids.begin(), ids.end()}, c.sequence, c.seed, shuffle).within(file.string());
}

Result<DataSources> open_data_keys(const TrainConfig& c, int64_t vocab, const std::atomic<bool>* stop) {
    DataSources s;
    if (c.data.synthetic) {
        s.train = synthetic_source(vocab, c.sequence, c.seed);
        if (!c.data.validation.empty()) return fail("data.validation: cannot be combined with synthetic data");
        return s;
    }
    if (!c.data.folder.empty()) return open_data_folder(c, vocab);
    if (!c.data.cut_documents) return fail("data.cut_documents: data.text has no documents");
    if (c.tokenizer.empty() && c.model.empty()) return fail("data.text: needs 'tokenizer'");
    NIBBLE_TRY(s.train, text_source(c, c.data.text, true, stop, s.hash));
    if (!c.data.validation.empty()) {
        NIBBLE_TRY(s.validation, text_source(c, c.data.validation, false, stop, s.hash));
    }
    return s;
}

}  // namespace

Result<DataSources> open_train_data(const TrainConfig& config, int64_t vocab, const std::atomic<bool>* stop) {
    NIBBLE_TRY(DataSources s, open_data_keys(config, vocab, stop));
    if (config.validation.every > 0 && !s.validation)
        return fail("validation.every: there is no held-out data; give data.validation");
    return s;
}

}  // namespace nibble
