// Input: a file of an evaluation, a text or items of a task (chosen by the first byte). It must be refused with one
// line, or give items whose tokens the model knows and that it could run.
#include "base/utf8.h"
#include "data/document_pieces.h"
#include "eval/generation_tasks.h"
#include "eval/likelihood_tasks.h"
#include "message.h"
#include "model/cpu/model.h"
#include "scratch_file.h"

#include <memory>

using namespace nibble;

namespace {

struct Bed {
    ThreadPool pool{1};
    std::optional<Model> model;
    Tokenizer tokenizer = *Tokenizer::from_folder(data_folder() / "chat");
    Subject subject;

    Bed() {
        model.emplace(*Model::load(*Checkpoint::open(data_folder() / "chat"), {}, pool));
        subject = {"chat", &*model, &tokenizer, {}};
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Bed bed;
    static const ScratchFile file(".jsonl");
    if (size == 0) return 0;
    const auto& path = file.write(data + 1, size - 1);
    if (data[0] % 5 == 4) {
        const auto text = read_evaluation_text(path);
        if (!text.ok()) {
            require_message(text.error());
            return 0;
        }
        require(text->hash.size() == 16 && !text->text.empty() && utf8_valid(text->text));
        // A plain text is the file's; rows are joined, and gzip is unpacked.
        const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
        const auto opened = open_pieces(path, bytes, "");
        require((opened.ok() && opened->kind.rows()) || bytes.starts_with("\x1f\x8b") ||
                text->text == without_byte_order_mark(bytes));
        return 0;
    }
    const auto lines = read_lines_file(path, data[0] / 5 % 8);
    if (!lines.ok()) {
        require_message(lines.error());
        return 0;
    }
    std::unique_ptr<Task> task;
    if (data[0] % 5 == 0) task = std::make_unique<LambadaTask>(*lines);
    if (data[0] % 5 == 1) task = std::make_unique<ChoiceTask>(*lines);
    if (data[0] % 5 == 2) task = std::make_unique<Gsm8kTask>(*lines, data[0] / 64);
    if (data[0] % 5 == 3) task = std::make_unique<HumanEvalTask>(*lines);
    const Status ready = task->prepare(bed.subject);
    if (!ready.ok()) {
        require_message(ready.error());
        return 0;
    }
    require(task->items() > 0 && task->items() <= static_cast<int64_t>(lines->lines.size()));
    require(!task->settings().dump(-1, ' ', false, Json::error_handler_t::replace).empty());
    return 0;
}
