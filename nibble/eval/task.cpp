#include "eval/task.h"

#include "text/stoppable.h"

namespace nibble {
namespace {

Result<std::vector<int32_t>> encoded(const Subject& subject, std::string_view text, bool special) {
    NIBBLE_TRY(const auto ids, encode_stoppable(*subject.tokenizer, text,
                                                {.add_special = special, .parse_special = false}, subject.stop));
    return std::vector<int32_t>(ids.begin(), ids.end());
}

}  // namespace

Result<std::vector<int32_t>> Subject::prefix() const {
    NIBBLE_TRY(const std::vector<int32_t> ids, encoded(*this, "", true));
    if (ids.empty()) return ids;
    return std::vector<int32_t>{ids[0]};  // some tokenizers end every text: [BOS, EOS]
}

Result<std::vector<int32_t>> Subject::encode(std::string_view text) const { return encoded(*this, text, false); }

}  // namespace nibble
