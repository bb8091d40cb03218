// The C interface: every job of the library with options and report as JSON, and a model that answers in this process.
//
//   nibble_model* model = NULL;
//   if (nibble_model_open("{\"model\": \"SmolLM2-135M-NVFP4\"}", NULL, &model) != NIBBLE_OK) puts(nibble_error());
//   nibble_model_generate(model, "The capital of France is", "{\"max_tokens\": 8}", print_piece, NULL, NULL);
//   nibble_model_free(model);
//
// Texts are UTF-8 and end with a zero byte. No function throws, prints or ends the process. Functions may be called
// from any thread; one model may answer several threads at the same time. C11, also valid in C++.
#ifndef NIBBLE_C_H
#define NIBBLE_C_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The kinds of errors, in the words of nibble/error.h.
typedef enum nibble_status {
    NIBBLE_OK = 0,
    NIBBLE_ERROR_OTHER = 1,
    NIBBLE_ERROR_USAGE = 2,       // options that are wrong, missing, or exclude each other
    NIBBLE_ERROR_SHAPE = 3,       // an array whose size or type does not fit
    NIBBLE_ERROR_RECIPE = 4,      // a recipe or configuration that cannot be read, or does not fit the model
    NIBBLE_ERROR_CHECKPOINT = 5,  // a model whose content is wrong or not supported
    NIBBLE_ERROR_FILE = 6,        // a file that is missing, exists already, or cannot be read or written
    NIBBLE_ERROR_DEVICE = 7,      // no such GPU, or a GPU that failed
    NIBBLE_ERROR_MEMORY = 8,      // more memory than there is
    NIBBLE_ERROR_CANCELLED = 9    // a callback asked to stop
} nibble_status;

// Returns the line of text of the last error in this thread; "" before the first. It is valid until the next call.
const char* nibble_error(void);
// Returns the version of the library, "0.2.0".
const char* nibble_version(void);

// Callbacks of a job; each may be null. They run on one thread at a time, but not always on the caller's.
typedef struct nibble_hooks {
    void* user;  // the first argument of every callback
    // done and total count bytes or items. A result other than 0 stops the job, which returns NIBBLE_ERROR_CANCELLED;
    // its finished work stays on disk for the option "resume".
    int (*progress)(void* user, const char* phase, int64_t done, int64_t total);
    void (*warn)(void* user, const char* line);  // a line about something that may be wrong
    void (*note)(void* user, const char* line);  // a line worth knowing
} nibble_hooks;

// Runs a job: quantize, calibrate, convert, import_gguf, verify, evaluate, search, inspect, train, reinforce, recipes.
// options: a JSON object with the members of the job's options, {"source": "MODEL", "out": "FOLDER", "recipe":
// "nvfp4"}. report: receives the job's report as JSON, for nibble_free(); may be null. Errors: those of the job, an
// option that does not exist.
nibble_status nibble_run(const char* job, const char* options, const nibble_hooks* hooks, char** report);
// Frees a text that a function of this header returned. Null is allowed.
void nibble_free(char* text);

// A model that is loaded, with an engine of its own.
typedef struct nibble_model nibble_model;

// Loads a model. options: a JSON object with "model", a folder or .gguf file, and the other members of ServeOptions in
// nibble/serve.h. Errors: usage, checkpoint, file, device, memory.
nibble_status nibble_model_open(const char* options, const nibble_hooks* hooks, nibble_model** model);
// Ends unfinished answers and frees the model. Null is allowed. No other call may use the model at the same time.
void nibble_model_free(nibble_model* model);

// Receives pieces of the answer as they are generated, on the thread of the caller. A result other than 0 ends the
// answer.
typedef int (*nibble_on_text)(void* user, const char* piece);

// Answers a text and returns when the answer is complete. parameters: a JSON object with vLLM's names (temperature,
// top_p, max_tokens, seed, stop, logprobs ...); null: the defaults. on_text and answer may be null. answer: receives
// {"text", "token_ids", "logprobs", "finish_reason", "prompt_tokens"} for nibble_free(); logprobs has one number per
// token; finish_reason is "stop", "length" or "cancelled". Errors: usage (a wrong parameter, a prompt that is too long,
// more than one choice).
nibble_status nibble_model_generate(nibble_model* model, const char* prompt, const char* parameters,
                                    nibble_on_text on_text, void* user, char** answer);
// The same for a conversation: a JSON array of messages, [{"role": "user", "content": "hello"}].
nibble_status nibble_model_chat(nibble_model* model, const char* messages, const char* parameters,
                                nibble_on_text on_text, void* user, char** answer);

#ifdef __cplusplus
}
#endif

#endif
