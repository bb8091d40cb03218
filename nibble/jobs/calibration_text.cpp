#include "jobs/calibration_text.h"

#include "base/mapped_file.h"
#include "chat/model_text.h"
#include "data/corpus.h"
#include "io/safetensors.h"
#include "model/cpu/model.h"

#include <algorithm>
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
            if (id < 0 || id > INT32_MAX) return fail("{}: 'input_ids' contains {}, which is not a token id", path, id);
            sequence.push_back(static_cast<int32_t>(id));
        }
    return sequences;
}

// Returns true if the file is safetensors: it begins with the size of its header (8 bytes, little-endian) and the
// header, which is JSON. A text contains no zero byte.
Result<bool> is_safetensors(const std::string& path) {
    if (path.ends_with(".safetensors")) return true;
    NIBBLE_TRY(const auto file, MappedFile::open(path));
    const auto bytes = file.bytes();
    return bytes.size() > 8 && bytes[7] == std::byte{0} && bytes[8] == std::byte{'{'};
}

}  // namespace

Result<Sequences> calibration_sequences(const CalibrationText& calib, const Checkpoint& checkpoint,
                                        const JobHooks& hooks) {
    NIBBLE_TRY(const ModelConfig config, model_config(checkpoint));
    NIBBLE_TRY(const bool ids, is_safetensors(calib.file));
    if (ids) {
        NIBBLE_TRY(Sequences ready, ready_ids(calib.file));
        for (const auto& sequence : ready)
            if (std::ssize(sequence) > config.context)
                return fail("{}: rows of {} tokens; the model's context is {}", calib.file, sequence.size(),
                            config.context);
        return ready;
    }
    NIBBLE_TRY(const auto text, open_model_text(checkpoint.path()));
    NIBBLE_TRY(const Corpus corpus, read_corpus(calib.file, text.tokenizer, text.chat ? &*text.chat : nullptr,
                                                {.tokens = calib.tokens,
                                                 .sequence = std::min(calib.sequence, config.context),
                                                 .template_variables = text.variables,
                                                 .stop = hooks.stop_requested}));
    if (corpus.tokens < calib.tokens)
        hooks.emit_warning(fmt::format("{}: has {} tokens, {} were asked for; all of them are used{}", calib.file,
                                       corpus.tokens, calib.tokens,
                                       corpus.cut ? " (only the beginning of a packed text is read)" : ""));
    Sequences sequences;
    for (const auto& sequence : corpus.sequences) sequences.emplace_back(sequence.begin(), sequence.end());
    return sequences;
}

}  // namespace nibble
