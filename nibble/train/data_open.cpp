#include "train/data_open.h"

#include "data/loader.h"
#include "io/journal.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

Result<DataManifest> open_manifest(const fs::path& folder, int64_t vocab, std::string& hash) {
    NIBBLE_TRY(DataManifest manifest, read_data_manifest(folder));
    if (manifest.vocab > vocab)
        return fail("{}: its tokens are of a vocabulary of {}, the model has {}", folder.string(), manifest.vocab,
                    vocab);
    // Sources are where texts came from; what counts is what lies in the shards.
    manifest.sources.clear();
    hash = hash_text(hash + to_json(manifest).dump());
    return manifest;
}

Result<std::unique_ptr<BatchSource>> open_split(const fs::path& folder, const DataManifest& manifest, bool validation,
                                                const LoaderOptions& options) {
    if ((validation ? manifest.validation : manifest.train).learned() == 0)
        return fail("{}: {}: no token of it is learned; see --loss of 'nibble data build'", folder.string(),
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
            return fail("{}: its tokens are those of another tokenizer than {}'s", config.data.validation.string(),
                        config.data.folder.string());
        NIBBLE_TRY(out.validation, open_split(config.data.validation, other, false, options));
    } else if (!manifest.validation.shards.empty()) {
        NIBBLE_TRY(out.validation, open_split(config.data.folder, manifest, true, options));
    }
    return out;
}

}  // namespace nibble
