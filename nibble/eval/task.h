// A task is a list of items; what came of an item is one JSON value, so that a journal can keep it, and what came of
// all items is a few metrics.
#pragma once

#include "base/json.h"
#include "eval/statistics.h"
#include "model/language_model.h"
#include "text/tokenizer.h"

#include <functional>
#include <string>
#include <vector>

namespace nibble {

struct TextRequest {
    std::vector<std::vector<int32_t>> prompts;
    int64_t max_tokens = 256;
    std::vector<std::string> stop;
};
struct TextAnswer {
    std::string text;
    bool stopped = false;  // by a stop string or an end token, not by max_tokens
};
// Greedy answers to several prompts. The program passes serve/'s loop, tests what they like.
using GenerateText = std::function<Result<std::vector<TextAnswer>>(const TextRequest&)>;

// What is evaluated.
struct Subject {
    std::string name;
    const LanguageModel* model = nullptr;
    const Tokenizer* tokenizer = nullptr;
    GenerateText generate;

    // The tokens that begin every text (BOS, where the tokenizer adds it).
    Result<std::vector<int32_t>> prefix() const;
    // Without special tokens; control tokens in the text are text.
    Result<std::vector<int32_t>> encode(std::string_view text) const;
};

struct Metric {
    enum class Kind : uint8_t { share, perplexity, plain };
    std::string name;  // "accuracy"
    Estimate estimate;
    Kind kind = Kind::share;  // shares are 0 ... 1
    bool compares = false;    // a score of the model alone: relative_score() divides it by the reference's
};

struct TaskResult {
    std::string task;
    int64_t items = 0;
    std::vector<Metric> metrics;  // the headline first
    Json details = Json::object();
};

class Task {
public:
    virtual ~Task() = default;
    virtual std::string name() const = 0;
    // Facts of the task that its results depend on (file, hash, settings): identity of journals.
    virtual Json settings() const = 0;
    // Called before anything else for each subject; the items may depend on its tokenizer.
    virtual Status prepare(const Subject& subject) = 0;
    virtual int64_t items() const = 0;
    virtual int64_t batch() const { return 1; }  // items that run() is best given at once
    // One value per item in [begin, end).
    virtual Result<std::vector<Json>> run(const Subject& subject, int64_t begin, int64_t end) = 0;
    virtual Result<TaskResult> summarize(std::span<const Json> results) const = 0;
};

}  // namespace nibble
