// Perplexity of a text and, with a reference, the divergence from it.
#pragma once

#include "eval/data_files.h"
#include "eval/reference_file.h"
#include "eval/task.h"
#include "eval/token_scores.h"
#include "eval/windows.h"

#include <filesystem>
#include <optional>

namespace nibble {

struct TextTaskOptions {
    int64_t context = 512;
    int64_t stride = 0;  // 0: llama-perplexity's definition; else the stride of a sliding window
    int64_t chunks = 0;  // limits the number of windows; 0: all
};

// The model whose distributions count as the truth. Its rows are computed, or read from a file that is filled as
// needed.
struct Reference {
    std::string name, fingerprint;  // identify the cache
    std::filesystem::path cache;    // empty: no cache
    std::function<Result<const Subject*>()>
        load;  // called when rows must be computed; not called if the cache is complete
};

// Returns the reference's own result, derived from a comparison with it.
TaskResult reference_perplexity(const TaskResult& comparison);

class TextTask : public Task {
public:
    // `reference` may be nullptr; otherwise it must outlive the task.
    TextTask(TextFile text, const TextTaskOptions& options, const Reference* reference);

    std::string name() const override { return "perplexity"; }
    Json settings() const override;
    // Errors: the text is too short, the context exceeds the model's.
    Status prepare(const Subject& subject) override;
    int64_t items() const override { return static_cast<int64_t>(windows_.size()); }
    Result<std::vector<Json>> run(const Subject& subject, int64_t begin, int64_t end) override;
    Result<TaskResult> summarize(std::span<const Json> results) const override;

private:
    Status reference_rows(int64_t window, std::span<const int32_t> tokens, int64_t from, std::span<float> out);
    Status open_cache(int64_t vocab);
    Result<const Subject*> loaded_reference();

    TextFile text_;
    TextTaskOptions options_;
    const Reference* reference_;
    int64_t vocab_ = 0;
    std::vector<int32_t> tokens_;
    int32_t bos_ = -1;
    std::vector<Window> windows_;
    std::optional<ReferenceFile> cache_;
    const Subject* loaded_ = nullptr;  // the reference, once loaded
    std::vector<float> rows_, reference_rows_;
};

}  // namespace nibble
