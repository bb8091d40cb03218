// The job of `nibble generate`: generates an answer to each of a list of prompts.
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/model_settings.h"
#include "nibble/sampling.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Exactly one of `text` and `messages` is used; see the members.
struct GeneratePrompt {
    std::string text;              // plain text, or a user's message if `chat` is set
    bool chat = false;             // apply the chat template
    std::string system;            // system message before it, with `chat`
    std::string messages;          // replaces `text`: a whole conversation, as a JSON array of messages
    std::string where = "prompt";  // name of the prompt in errors
};

// The required form of every answer; at most one member may be set.
struct AnswerForm {
    std::string json_schema;           // file with a JSON schema
    bool json_object = false;          // any JSON object
    std::string regex;                 // regular expression that matches the whole answer
    std::vector<std::string> choices;  // the answer is one of these texts
    std::string grammar;               // file with a grammar in GBNF or Lark
};

// Options that apply to all prompts. Defaults of sampling come from the model (nibble/sampling.h).
struct GenerateOptions {
    std::string model;  // folder or .gguf file
    std::vector<GeneratePrompt> prompts;
    int64_t batch = 16;          // answers that run together; does not change any bit
    bool parse_special = false;  // text in messages may contain control tokens
    AnswerForm form;
    SamplingSettings sampling;
    CacheSettings cache;
    ModelSettings engine;
};

// Text without the end token and stop strings; ids and logprobs [generated tokens] include the end token.
struct GeneratedAnswer {
    std::string text;
    std::vector<int32_t> ids;
    std::vector<float> logprobs;  // log-probability of each id
    std::string finish_reason;    // "stop", "length"; "cancelled" after a stop
    int64_t prompt_tokens = 0;
};

// Every callback may be empty.
struct GenerateHooks : JobHooks {
    std::function<void(size_t prompt, std::string_view piece)> on_text;    // pieces of text, as they are generated
    std::function<void(size_t prompt, const GeneratedAnswer&)> on_answer;  // complete answers, in the order of the
                                                                           // prompts
};

// Times are in seconds and sum over all prompts.
struct GenerationReport {
    std::vector<GeneratedAnswer> answers;  // in the order of the prompts
    double prompt_seconds = 0;             // time of steps that read prompts
    double answer_seconds = 0;             // time of all other steps
    int64_t prompt_tokens = 0;             // computed prompt tokens, without those from the prefix cache
    int64_t answer_tokens = 0;
};

// Generates the answers. A stop ends the running answers; the report then contains their text so far. Errors by kind:
// usage (settings, a prompt that is too long), checkpoint, file, device, memory.
Result<GenerationReport> generate(const GenerateOptions& options, const GenerateHooks& hooks);

}  // namespace nibble
