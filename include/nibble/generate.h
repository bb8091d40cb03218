// The job of `nibble generate`: what a model writes after each of a list of prompts.
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

struct GeneratePrompt {
    std::string text;              // plain, or the message of a user where `chat` is set
    bool chat = false;             // the chat template is applied
    std::string system;            // a system message before it, with `chat`
    std::string messages;          // instead: a whole conversation, as a JSON array of messages
    std::string where = "prompt";  // the name of the prompt in errors
};

// The form that every answer has; at most one of these.
struct AnswerForm {
    std::string json_schema;           // a file: JSON of this schema
    bool json_object = false;          // any JSON object
    std::string regex;                 // matches this regular expression as a whole
    std::vector<std::string> choices;  // is one of these texts
    std::string grammar;               // a file: of this grammar in GBNF or Lark
};

struct GenerateOptions {
    std::string model;  // folder or .gguf file
    std::vector<GeneratePrompt> prompts;
    int64_t batch = 16;          // answers that run together; the bits do not depend on it
    bool parse_special = false;  // control tokens count as such in messages, too
    AnswerForm form;
    SamplingSettings sampling;
    CacheSettings cache;
    ModelSettings engine;
};

struct GeneratedAnswer {
    std::string text;
    std::vector<int32_t> ids;
    std::vector<float> logprobs;  // of the ids
    std::string finish_reason;    // "stop", "length"; "cancelled" after a stop
    int64_t prompt_tokens = 0;
};

struct GenerateHooks : JobHooks {
    std::function<void(size_t prompt, std::string_view piece)> on_text;    // as the text is made
    std::function<void(size_t prompt, const GeneratedAnswer&)> on_answer;  // whole answers, in the prompts' order
};

struct GenerationReport {
    std::vector<GeneratedAnswer> answers;  // in the order of the prompts
    double prompt_seconds = 0;             // of steps that read prompts
    double answer_seconds = 0;             // of all others
    int64_t prompt_tokens = 0;             // that were computed: without those of the prefix cache
    int64_t answer_tokens = 0;
};

// A stop ends the running answers; the report then holds what they had become. Errors by kind: usage (settings, a
// prompt that is too long), checkpoint, file, device, memory.
Result<GenerationReport> generate(const GenerateOptions& options, const GenerateHooks& hooks);

}  // namespace nibble
