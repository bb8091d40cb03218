// Input: calibration text (first byte even) or JSON Lines of texts and conversations (odd). It must be refused with one
// line, or give sequences of valid ids within the limits, equal when read again.
#include "data/corpus.h"
#include "message.h"
#include "scratch_file.h"

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Tokenizer tokenizer = *Tokenizer::from_folder(data_folder() / "chat");
    static const ChatTemplate chat = *ChatTemplate::parse(
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% if m.tool_calls is defined %}"
        "{{ m.tool_calls | tojson }}{% endif %}{% endfor %}",
        {.max_steps = 100'000, .max_made_bytes = 1 << 20, .max_output_bytes = 1 << 16});
    static const ScratchFile text(".txt"), lines(".jsonl");
    if (size == 0) return 0;
    const auto& path = (data[0] % 2 ? lines : text).write(data + 1, size - 1);
    const CorpusOptions options{.tokens = data[0] / 2 % 2 ? 8 : 200,
                                .sequence = 2 + data[0] / 4 % 32,
                                .template_variables = {{"bos_token", "<s>"}}};
    const auto corpus = read_corpus(path, tokenizer, data[0] / 128 ? nullptr : &chat, options);
    if (!corpus.ok()) {
        require_message(corpus.error());
        return 0;
    }
    int64_t tokens = 0;
    for (const auto& sequence : corpus->sequences) {
        require(!sequence.empty() && static_cast<int64_t>(sequence.size()) <= options.sequence);
        for (const TokenId id : sequence) require(id < tokenizer.vocab_size());
        tokens += static_cast<int64_t>(sequence.size());
    }
    // A text with fewer tokens than requested is used completely.
    require(tokens == corpus->tokens && tokens > 0 && tokens <= options.tokens);
    const auto again = read_corpus(path, tokenizer, data[0] / 128 ? nullptr : &chat, options);
    require(again.ok() && again->sequences == corpus->sequences);
    return 0;
}
