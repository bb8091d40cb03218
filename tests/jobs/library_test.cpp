// Jobs called as a library: they report through hooks, print nothing, stop on request without losing work, and may run
// one after the other or at the same time in one process.
#include "http/client.h"
#include "jobs/bed.h"
#include "nibble/calibrate.h"
#include "nibble/convert.h"
#include "nibble/evaluate.h"
#include "nibble/generate.h"
#include "nibble/logits.h"
#include "nibble/search.h"
#include "nibble/serve.h"
#include "nibble/verify.h"

#include <gmock/gmock.h>

#include <thread>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

// Expects that nothing is printed to standard output or standard error while jobs run. Checks belong after it, because
// a failure message would count as a job's output.
class Silence {
public:
    Silence() {
        ::testing::internal::CaptureStdout();
        ::testing::internal::CaptureStderr();
    }
    ~Silence() {
        EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
        EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    }
    Silence(const Silence&) = delete;
    Silence& operator=(const Silence&) = delete;
};

template <class Body>
void silently(Body&& body) {
    const Silence silence;
    std::forward<Body>(body)();
}

template <class T>
const T& value(const Result<T>& result) {
    if (!result.ok()) throw std::runtime_error(result.error().message());
    return *result;
}

void write_ids(const fs::path& path) {
    std::string file = R"({"input_ids":{"dtype":"I64","shape":[2,3],"data_offsets":[0,48]}})";
    std::string length(8, '\0');
    length[0] = static_cast<char>(file.size());
    write_file(path, length + file + std::string(48, '\0'));
}

TEST(Jobs, QuantizeVerifyConvertAndLogitsReportAndPrintNothing) {
    Bed bed;
    Heard heard;
    const JobHooks hooks = heard.hooks();
    silently([&] {
        const QuantizeReport made = value(quantize(bed.calibrated("out"), hooks));
        EXPECT_EQ(made.outcome, QuantizeReport::Outcome::written);
        EXPECT_GT(made.quantized_tensors, 0);
        EXPECT_GT(made.sqnr_db, 10);
        EXPECT_NE(made.text().find("nvfp4"), std::string::npos);
        EXPECT_EQ(made.json(), read_file(bed.at("out") + "/nibble-report.json"));
        const auto verified = value(verify_checkpoints({.paths = {bed.at("out")}, .against = bed.model}, hooks));
        ASSERT_EQ(verified.checkpoints.size(), 1u);
        EXPECT_TRUE(verified.passed());
        const auto converted = value(
            convert_checkpoint({.source = bed.at("out"), .out = bed.at("ct"), .format = "compressed-tensors"}, hooks));
        EXPECT_EQ(converted.quantized, made.quantized_tensors);
        write_ids(bed.dir / "ids.safetensors");
        const auto logits = value(compute_logits(
            {.model = bed.at("ct"), .ids = bed.at("ids.safetensors"), .out = bed.at("logits.safetensors")}, hooks));
        EXPECT_EQ(logits.tokens, 3);
        EXPECT_TRUE(fs::exists(bed.at("logits.safetensors")));
    });
    for (const char* phase : {"calibrate", "quantize", "verify", "convert", "logits"})
        EXPECT_THAT(heard.phases, Contains(phase));
}

TEST(Jobs, ADryRunReturnsThePlanAndWritesNothing) {
    Bed bed;
    QuantizeOptions options = bed.weights("out");
    options.dry_run = true;
    const auto planned = quantize(options, {});
    ASSERT_TRUE(planned.ok()) << planned.error().message();
    EXPECT_EQ(planned->outcome, QuantizeReport::Outcome::planned);
    EXPECT_GT(planned->quantized_tensors, 0);
    EXPECT_NE(planned->text().find("w4a16_nvfp4"), std::string::npos);
    EXPECT_FALSE(fs::exists(options.out));
    EXPECT_FALSE(fs::exists(options.out + ".partial"));
}

TEST(Jobs, ARepeatedCommandIsRecognizedAndNoted) {
    Bed bed;
    QuantizeOptions options = bed.weights("out");
    options.command.whole = "quantize the model";
    options.resume = true;
    Heard heard;
    const JobHooks hooks = heard.hooks();
    EXPECT_EQ(value(quantize(options, hooks)).outcome, QuantizeReport::Outcome::written);
    EXPECT_THAT(heard.notes, Contains(options.out + ": nothing to resume, the job starts from the beginning"));
    EXPECT_EQ(value(quantize(options, hooks)).outcome, QuantizeReport::Outcome::made_before);
    EXPECT_THAT(heard.notes, Contains(options.out + ": already written by this command"));
    options.command.whole.clear();  // without a command, an existing output is never reused
    EXPECT_EQ(quantize(options, hooks).error().kind(), ErrorKind::file);
}

TEST(Jobs, EvaluateComparesWithAReference) {
    Bed bed;
    Heard heard;
    const JobHooks hooks = heard.hooks();
    silently([&] {
        value(quantize(bed.weights("out"), {}));
        const EvaluationReport report = value(evaluate({.models = {bed.at("out")},
                                                        .against = bed.model,
                                                        .text = bed.text,
                                                        .context = 32,
                                                        .chunks = 4,
                                                        .out = bed.at("eval")},
                                                       hooks));
        ASSERT_FALSE(report.measured.empty());
        EXPECT_EQ(report.measured[0].model, "out");
        EXPECT_EQ(report.measured[0].metric, "perplexity");
        EXPECT_GT(report.measured[0].value, 1);
        EXPECT_TRUE(fs::exists(bed.dir / "eval" / "eval.json"));
    });
    EXPECT_THAT(heard.phases, Contains("out perplexity"));
}

TEST(Jobs, SearchWritesARecipeThatQuantizeTakes) {
    Bed bed;
    silently([&] {
        const SearchedRecipe report = value(search({.source = bed.model,
                                                    .out = bed.at("mixed.yaml"),
                                                    .bits = 6,
                                                    .formats = {"w4a16_nvfp4", "fp8"},
                                                    .calib = {.file = bed.text, .tokens = 256, .sequence = 64},
                                                    .threads = 1},
                                                   {}));
        EXPECT_LE(report.bits, 6);
        EXPECT_TRUE(fs::exists(report.page));
        QuantizeOptions options = bed.weights("out");
        options.recipe = bed.at("mixed.yaml");
        options.format = "compressed-tensors";  // the other format does not support FP8 weights with unquantized inputs
        options.weights_only = true;
        EXPECT_GT(value(quantize(options, {})).quantized_tensors, 0);
    });
}

// Scales returned by calibrate() give the same weights as a job that calibrates itself.
TEST(Jobs, CalibrateReturnsTheScalesThatQuantizeStores) {
    Bed bed;
    silently([&] {
        QuantizeOptions options = bed.calibrated("scales.json");
        const CalibrationReport report = value(calibrate(options, {}));
        EXPECT_FALSE(report.scales.empty());
        value(quantize(bed.calibrated("in_one"), {}));
        options.out = bed.at("in_two");
        options.calib = {};
        options.input_scales = bed.at("scales.json");
        value(quantize(options, {}));
    });
    EXPECT_EQ(sha256(read_file(bed.at("in_one") + "/model.safetensors")),
              sha256(read_file(bed.at("in_two") + "/model.safetensors")));
}

TEST(Jobs, GenerateAnswersPromptsInOrder) {
    Bed bed;
    GenerateOptions options;
    options.model = bed.model;
    for (const char* text : {"hello", "the world says hello", "say"}) options.prompts.push_back({.text = text});
    options.sampling.temperature = 0;
    options.sampling.max_tokens = 5;
    options.engine.threads = 1;
    options.cache.kv_memory = "16MB";
    std::vector<size_t> order;
    std::vector<std::string> pieces(3);
    GenerateHooks hooks;
    hooks.on_answer = [&](size_t prompt, const GeneratedAnswer&) { order.push_back(prompt); };
    hooks.on_text = [&](size_t prompt, std::string_view piece) { pieces[prompt] += piece; };
    silently([&] {
        const GenerationReport together = value(generate(options, hooks));
        EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2}));
        options.batch = 1;
        const GenerationReport apart = value(generate(options, {}));
        ASSERT_EQ(together.answers.size(), 3u);
        for (size_t i = 0; i < 3; ++i) {
            EXPECT_EQ(together.answers[i].ids, apart.answers[i].ids);
            EXPECT_EQ(together.answers[i].logprobs, apart.answers[i].logprobs);
            EXPECT_EQ(together.answers[i].text, pieces[i]);
        }
    });
    std::atomic<bool> stop{true};
    GenerateHooks stopped;
    stopped.stop_requested = &stop;
    const auto unread = generate(options, stopped);
    ASSERT_FALSE(unread.ok());
    EXPECT_EQ(unread.error().kind(), ErrorKind::cancelled);
    EXPECT_NE(unread.error().message().find("while the weights were loaded"), std::string::npos);
    stop = false;
    stopped.on_text = [&](size_t, std::string_view) { stop = true; };
    options.sampling.max_tokens = 100;
    for (const GeneratedAnswer& answer : value(generate(options, stopped)).answers)
        EXPECT_EQ(answer.finish_reason, "cancelled");
}

TEST(Jobs, ServeAnswersUntilItIsStopped) {
    Bed bed;
    silently([&] {
        ServeOptions options;
        options.model = bed.model;
        options.names = {"tiny"};
        options.engine.threads = 1;
        options.cache.kv_memory = "16MB";
        options.port = 0;
        const auto server = serve(options, {});
        ASSERT_TRUE(server.ok()) << server.error().message();
        EXPECT_EQ((*server)->name(), "tiny");
        EXPECT_TRUE((*server)->url().starts_with("http://127.0.0.1:")) << (*server)->url();
        const HttpAddress address{.host = "127.0.0.1", .port = (*server)->port()};
        EXPECT_NE(address.port, 0);
        auto client = HttpClient::connect(address, std::chrono::seconds(60));
        ASSERT_TRUE(client.ok()) << client.error().message();
        HttpRequest request{.method = "POST", .path = "/v1/completions"};
        request.headers.push_back({"Content-Type", "application/json"});
        request.body = R"({"model": "tiny", "prompt": "hello", "max_tokens": 3})";
        const auto answer = client->send(request);
        ASSERT_TRUE(answer.ok()) << answer.error().message();
        EXPECT_EQ(answer->status, 200) << answer->body;
        client->close();
        (*server)->stop(std::chrono::seconds(10));
        (*server)->stop(std::chrono::seconds(10));
        EXPECT_FALSE(HttpClient::connect(address, std::chrono::seconds(5)).ok());
    });
}

// A stop in any phase gives an error of kind cancelled and no output; with `resume`, the bytes equal those of an
// uninterrupted job.
TEST(Jobs, AStoppedQuantizationIsContinuedToTheSameBytes) {
    Bed bed;
    value(quantize(bed.calibrated("whole"), {}));
    const std::string whole = content_of(bed.at("whole"));
    for (const char* phase : {"calibrate", "quantize", "verify"}) {
        QuantizeOptions options = bed.calibrated(phase);
        Heard heard{.stop_in = phase};
        const auto stopped = quantize(options, heard.hooks());
        ASSERT_FALSE(stopped.ok()) << phase;
        EXPECT_EQ(stopped.error().kind(), ErrorKind::cancelled) << stopped.error().message();
        EXPECT_FALSE(fs::exists(options.out)) << phase;
        options.resume = true;
        const auto made = quantize(options, {});
        ASSERT_TRUE(made.ok()) << phase << ": " << made.error().message();
        EXPECT_EQ(content_of(options.out), whole) << phase;
        EXPECT_FALSE(fs::exists(options.out + ".partial"));
        EXPECT_FALSE(fs::exists(options.out + ".calibration"));
    }
}

// The message of a stopped calibration states whether --resume has something to continue with.
TEST(Jobs, AStoppedCalibrationReportsWhatResumeContinuesWith) {
    Bed bed;
    QuantizeOptions options = bed.calibrated("maxima");
    Heard heard{.stop_in = "calibrate"};
    const std::string nothing = quantize(options, heard.hooks()).error().message();
    EXPECT_THAT(nothing, HasSubstr("it had found nothing to keep, and --resume starts it from the beginning"));
    EXPECT_FALSE(fs::exists(options.out + ".calibration/journal")) << nothing;

    options = bed.calibrated("solved");
    options.recipe = "w4a16_nvfp4_gptq";
    options.calib.tokens = 64;              // one batch, so that the stop flag is read again at layer 2
    Heard solving{.stop_in = "calibrate"};  // after the forward pass of layer 1, whose weights are then solved and kept
    const std::string kept = quantize(options, solving.hooks()).error().message();
    EXPECT_THAT(kept, HasSubstr(".calibration keeps what it found, and --resume continues there"));
    options.resume = true;
    EXPECT_TRUE(quantize(options, {}).ok());
}

TEST(Jobs, AStopBeforeTheBeginningStopsEveryJob) {
    Bed bed;
    value(quantize(bed.weights("made"), {}));
    write_ids(bed.dir / "ids.safetensors");
    std::atomic<bool> stop{true};
    const JobHooks hooks{.stop_requested = &stop};
    const auto expect_cancelled = [](const char* job, const auto& result) {
        ASSERT_FALSE(result.ok()) << job;
        EXPECT_EQ(result.error().kind(), ErrorKind::cancelled) << job << ": " << result.error().message();
    };
    expect_cancelled("quantize", quantize(bed.weights("out"), hooks));
    expect_cancelled("quantize with a text", quantize(bed.calibrated("calibrated"), hooks));
    expect_cancelled("calibrate", calibrate(bed.calibrated("scales.json"), hooks));
    expect_cancelled("verify", verify_checkpoints({.paths = {bed.at("made")}}, hooks));
    expect_cancelled(
        "convert",
        convert_checkpoint({.source = bed.at("made"), .out = bed.at("ct"), .format = "compressed-tensors"}, hooks));
    expect_cancelled("evaluate", evaluate({.models = {bed.model}, .text = bed.text, .context = 32}, hooks));
    expect_cancelled("search", search({.source = bed.model,
                                       .out = bed.at("r.yaml"),
                                       .calib = {.file = bed.text, .tokens = 128, .sequence = 64}},
                                      hooks));
    expect_cancelled(
        "logits",
        compute_logits({.model = bed.model, .ids = bed.at("ids.safetensors"), .out = bed.at("logits.safetensors")},
                       hooks));
    for (const char* out :
         {"out", "calibrated", "scales.json", "ct", "r.yaml", "logits.safetensors", "logits.safetensors.part"})
        EXPECT_FALSE(fs::exists(bed.at(out))) << out;
}

// A job leaves no state in the process: the bytes are the same alone, after an error, after a stop, and next to other
// jobs.
TEST(Jobs, RunInSequenceAndConcurrently) {
    Bed bed;
    value(quantize(bed.calibrated("alone"), {}));
    const std::string alone = content_of(bed.at("alone"));
    Heard heard{.stop_in = "quantize"};
    EXPECT_FALSE(quantize(bed.calibrated("stopped"), heard.hooks()).ok());
    EXPECT_FALSE(quantize({.source = "nowhere", .out = bed.at("never"), .recipe = "nvfp4"}, {}).ok());
    value(quantize(bed.calibrated("after"), {}));
    EXPECT_EQ(content_of(bed.at("after")), alone);

    silently([&] {
        constexpr int count = 3;
        std::vector<Heard> heards(count);
        heards[1].stop_in = "quantize";  // the stop of one job does not affect the others
        std::vector<std::string> errors(count);
        std::vector<std::thread> threads;
        for (int i = 0; i < count; ++i)
            threads.emplace_back([&, i] {
                const auto made = quantize(bed.calibrated("thread" + std::to_string(i)), heards[size_t(i)].hooks());
                if (!made.ok()) errors[size_t(i)] = error_kind_name(made.error().kind());
            });
        for (std::thread& t : threads) t.join();
        EXPECT_EQ(errors, (std::vector<std::string>{"", "cancelled", ""}));
        EXPECT_EQ(content_of(bed.at("thread0")), alone);
        EXPECT_EQ(content_of(bed.at("thread2")), alone);
        EXPECT_FALSE(fs::exists(bed.at("thread1")));
    });
}

}  // namespace
}  // namespace nibble::test
