// A task is a list of items. The result of an item is one JSON value, so that a journal can store it; the result of all
// items is a few metrics.
#pragma once

#include "base/json.h"
#include "eval/statistics.h"
#include "model/language_model.h"
#include "text/tokenizer.h"

#include <atomic>
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
    bool stopped = false;  // ended by a stop string or end token, not by max_tokens
};
// Generates greedy answers to several prompts. The program passes the engine of serve/; tests pass their own function.
using GenerateText = std::function<Result<std::vector<TextAnswer>>(const TextRequest&)>;

// The model under evaluation.
struct Subject {
    std::string name;
    const LanguageModel* model = nullptr;
    const Tokenizer* tokenizer = nullptr;
    GenerateText generate;
    const std::atomic<bool>* stop = nullptr;  // once true, encode() ends with an error of kind cancelled

    // Returns the tokens that begin every text (BOS, if the tokenizer adds it).
    Result<std::vector<int32_t>> prefix() const;
    // Encodes without adding special tokens; control tokens in `text` stay text.
    Result<std::vector<int32_t>> encode(std::string_view text) const;
};

struct Metric {
    enum class Kind : uint8_t { share, perplexity, plain };
    std::string name;  // "accuracy"
    Estimate estimate;
    Kind kind = Kind::share;  // shares are in [0, 1]
    bool compares = false;    // a score of the model alone, which relative_score() may divide by the reference's
};

struct TaskResult {
    std::string task;
    int64_t items = 0;
    std::vector<Metric> metrics;  // headline first
    Json details = Json::object();
};

class Task {
public:
    virtual ~Task() = default;
    virtual std::string name() const = 0;
    // Returns the facts on which the results depend (file, hash, settings). They identify journals.
    virtual Json settings() const = 0;
    // Called first for each subject, because the items may depend on its tokenizer.
    virtual Status prepare(const Subject& subject) = 0;
    virtual int64_t items() const = 0;
    virtual int64_t batch() const { return 1; }  // preferred number of items per run()
    // Returns one value per item in [begin, end).
    virtual Result<std::vector<Json>> run(const Subject& subject, int64_t begin, int64_t end) = 0;
    virtual Result<TaskResult> summarize(std::span<const Json> results) const = 0;
};

}  // namespace nibble
