#include "cuda/models/family_texts.h"

#include "io/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nibble::bench {
namespace {

template <class T>
Result<std::vector<T>> stored_numbers(const SafetensorsFile& file, std::string_view name) {
    const TensorRecord* record = file.find(name);
    if (!record) return fail("no tensor '{}'", name);
    std::vector<T> out(record->data.size() / sizeof(T));
    std::memcpy(out.data(), record->data.data(), record->data.size());
    return out;
}

}  // namespace

Result<Texts> family_texts(const std::filesystem::path& folder, const LanguageModel& exact) {
    NIBBLE_TRY(const SafetensorsFile file, SafetensorsFile::open(folder / "expect.safetensors"));
    NIBBLE_TRY(const auto ids, stored_numbers<int64_t>(file, "input_ids"));
    NIBBLE_TRY(const auto positions, stored_numbers<int64_t>(file, "positions"));
    NIBBLE_TRY(const auto logits, stored_numbers<float>(file, "logits"));
    Texts texts;
    const auto count = static_cast<size_t>(file.find("input_ids")->shape[0]), length = ids.size() / count;
    for (size_t b = 0; b < count; ++b) texts.ids.emplace_back(&ids[b * length], &ids[b * length] + length);
    NIBBLE_TRY(texts.gold, all_rows(exact, texts.ids));
    const auto vocab = static_cast<size_t>(exact.config().vocab);
    if (logits.size() != count * positions.size() * vocab) return fail("{}: the number of logits", folder.string());
    double apart = 0, largest = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        const size_t row = i / vocab, text = row / positions.size(),
                     at = static_cast<size_t>(positions[row % positions.size()]);
        float& own = texts.gold[(text * length + at) * vocab + i % vocab];
        apart = std::max<double>(apart, std::abs(own - logits[i]));
        largest = std::max<double>(largest, std::abs(logits[i]));
        own = logits[i];
    }
    if (!(apart < 2e-5 * largest)) return fail("{}: {} from transformers' logits", folder.string(), apart);
    return texts;
}

}  // namespace nibble::bench
