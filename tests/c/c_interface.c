// The C interface (include/nibble/c.h), compiled as C11: jobs, a model, callbacks, errors.
//   c_interface MODEL FOLDER
#include "nibble/c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define EXPECT(condition)                                                                               \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            fprintf(stderr, "%s:%d: %s is false; the last error: %s\n", __FILE__, __LINE__, #condition, \
                    nibble_error());                                                                    \
            ++failures;                                                                                 \
        }                                                                                               \
    } while (0)

// Text that the callbacks received, and the number of pieces after which they stop.
struct heard {
    char text[4096];
    int pieces, most;
};

static int hear_text(void* user, const char* piece) {
    struct heard* heard = user;
    strncat(heard->text, piece, sizeof heard->text - strlen(heard->text) - 1);
    return ++heard->pieces >= heard->most;
}

static int hear_progress(void* user, const char* phase, int64_t done, int64_t total) {
    struct heard* heard = user;
    EXPECT(strlen(phase) > 0 && done >= 0 && total >= done);
    return ++heard->pieces >= heard->most;
}

// Returns whether the text of a JSON member begins with this text; for members that are texts without escapes.
static int has_member(const char* json, const char* name, const char* value) {
    char wanted[512];
    snprintf(wanted, sizeof wanted, "\"%s\":\"%s", name, value);
    return strstr(json, wanted) != NULL;
}

static void test_jobs(const char* model, const char* folder) {
    char options[2048];
    char* report = NULL;
    snprintf(options, sizeof options, "{\"source\": \"%s\", \"out\": \"%s/stopped\", \"recipe\": \"w4a16_nvfp4\"}",
             model, folder);
    struct heard heard = {.most = 1};
    const nibble_hooks stops = {.user = &heard, .progress = hear_progress};
    EXPECT(nibble_run("quantize", options, &stops, &report) == NIBBLE_ERROR_CANCELLED);
    EXPECT(report == NULL && strlen(nibble_error()) > 0);

    snprintf(options, sizeof options, "{\"source\": \"%s\", \"out\": \"%s/small\", \"recipe\": \"w4a16_nvfp4\"}", model,
             folder);
    heard = (struct heard){.most = 1 << 30};
    EXPECT(nibble_run("quantize", options, &stops, &report) == NIBBLE_OK);
    EXPECT(report != NULL && strstr(report, "\"quantized_tensors\":14") != NULL && heard.pieces > 0);
    nibble_free(report);
    EXPECT(nibble_run("quantize", options, NULL, NULL) == NIBBLE_ERROR_FILE);
    EXPECT(strstr(nibble_error(), "small") != NULL);

    EXPECT(nibble_run("no_job", "{}", NULL, &report) == NIBBLE_ERROR_USAGE);
    EXPECT(strstr(nibble_error(), "no_job") != NULL);
    EXPECT(nibble_run("quantize", "{\"sauce\": 1}", NULL, NULL) == NIBBLE_ERROR_USAGE);
    EXPECT(strstr(nibble_error(), "sauce") != NULL);
    EXPECT(nibble_run("quantize", "no JSON", NULL, NULL) == NIBBLE_ERROR_USAGE);
    EXPECT(nibble_run("quantize", NULL, NULL, NULL) == NIBBLE_ERROR_USAGE);
    EXPECT(nibble_run(NULL, "{}", NULL, NULL) == NIBBLE_ERROR_USAGE);
    nibble_free(NULL);
}

static void test_model(const char* folder) {
    char options[2048];
    nibble_model* model = NULL;
    snprintf(options, sizeof options, "{\"model\": \"%s/small\", \"kv_memory\": \"64MB\"}", folder);
    EXPECT(nibble_model_open(options, NULL, &model) == NIBBLE_OK);
    if (!model) return;

    const char* parameters = "{\"temperature\": 0, \"max_tokens\": 12, \"ignore_eos\": true}";
    struct heard heard = {.most = 1 << 30};
    char *answer = NULL, *again = NULL;
    EXPECT(nibble_model_generate(model, "hello world", parameters, hear_text, &heard, &answer) == NIBBLE_OK);
    EXPECT(answer && has_member(answer, "finish_reason", "length") && strstr(answer, "\"token_ids\":["));
    EXPECT(nibble_model_generate(model, "hello world", parameters, NULL, NULL, &again) == NIBBLE_OK);
    EXPECT(answer && again && strcmp(answer, again) == 0);
    EXPECT(heard.pieces > 0 && strlen(heard.text) > 0);
    nibble_free(answer);
    nibble_free(again);

    heard = (struct heard){.most = 1};
    parameters = "{\"temperature\": 0, \"max_tokens\": 400, \"ignore_eos\": true}";
    EXPECT(nibble_model_generate(model, "hello world", parameters, hear_text, &heard, &answer) == NIBBLE_OK);
    EXPECT(answer && has_member(answer, "finish_reason", "cancelled"));
    EXPECT(heard.pieces == 1);
    nibble_free(answer);

    const char* messages = "[{\"role\": \"user\", \"content\": \"hello\"}]";
    EXPECT(nibble_model_chat(model, messages, "{\"max_tokens\": 4}", NULL, NULL, &answer) == NIBBLE_OK);
    EXPECT(answer && strstr(answer, "\"prompt_tokens\":"));
    nibble_free(answer);

    EXPECT(nibble_model_generate(model, "x", "{\"max_tockens\": 4}", NULL, NULL, &answer) == NIBBLE_ERROR_USAGE);
    EXPECT(strstr(nibble_error(), "max_tockens") != NULL && answer == NULL);
    EXPECT(nibble_model_generate(model, "x", "{\"n\": 2}", NULL, NULL, &answer) == NIBBLE_ERROR_USAGE);
    EXPECT(nibble_model_generate(model, NULL, NULL, NULL, NULL, &answer) == NIBBLE_ERROR_USAGE);
    EXPECT(nibble_model_generate(NULL, "x", NULL, NULL, NULL, &answer) == NIBBLE_ERROR_USAGE);
    EXPECT(nibble_model_chat(model, "[{\"role\": 1}]", NULL, NULL, NULL, &answer) == NIBBLE_ERROR_USAGE);
    nibble_model_free(model);
    nibble_model_free(NULL);

    EXPECT(nibble_model_open("{\"model\": \"/no/such/model\"}", NULL, &model) != NIBBLE_OK);
    EXPECT(model == NULL && strstr(nibble_error(), "/no/such/model") != NULL);
    EXPECT(nibble_model_open("{}", NULL, NULL) == NIBBLE_ERROR_USAGE);
}

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    EXPECT(strlen(nibble_version()) >= 5);
    test_jobs(argv[1], argv[2]);
    test_model(argv[2]);
    if (failures == 0) puts("the C interface is in order");
    return failures != 0;
}
