// The kind of the error for a table of bad inputs, which language bindings map to exceptions.
#include "base/mapped_file.h"
#include "jobs/bed.h"
#include "jobs/job.h"
#include "nibble/calibrate.h"
#include "nibble/convert.h"
#include "nibble/evaluate.h"
#include "nibble/generate.h"
#include "nibble/logits.h"
#include "nibble/search.h"
#include "nibble/serve.h"
#include "nibble/verify.h"

#include <filesystem>
#include <new>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

struct Case {
    const char* name;
    ErrorKind kind;
    std::function<Error(Bed&)> run;
};

template <class T>
Error error_of(const Result<T>& result) {
    if (result.ok()) return Error("no error");
    return result.error();
}

Error quantized(Bed& bed, const std::function<void(QuantizeOptions&)>& change) {
    QuantizeOptions options = bed.weights("out");
    change(options);
    return error_of(quantize(options, {}));
}

// Returns a copy of the small model that a test may damage.
std::string copied_model(Bed& bed) {
    fs::copy(bed.model, bed.at("model"), fs::copy_options::recursive);
    return bed.at("model");
}

const Case cases[] = {
    {"unknown_format", ErrorKind::usage, [](Bed& b) { return quantized(b, [](auto& o) { o.format = "onnx"; }); }},
    {"unknown_arithmetic", ErrorKind::usage,
     [](Bed& b) { return quantized(b, [](auto& o) { o.arithmetic = "exact"; }); }},
    {"unknown_compat", ErrorKind::usage, [](Bed& b) { return quantized(b, [](auto& o) { o.compat = "0.1"; }); }},
    {"size_without_number", ErrorKind::usage,
     [](Bed& b) { return quantized(b, [](auto& o) { o.max_shard_size = "large"; }); }},
    {"unknown_device", ErrorKind::usage, [](Bed& b) { return quantized(b, [](auto& o) { o.device = "tpu"; }); }},
    {"unknown_kernels", ErrorKind::usage, [](Bed& b) { return quantized(b, [](auto& o) { o.kernels = "sse"; }); }},
    {"unknown_range", ErrorKind::usage, [](Bed& b) { return quantized(b, [](auto& o) { o.calib.range = "median"; }); }},
    {"output_in_source", ErrorKind::usage,
     [](Bed& b) { return quantized(b, [&](auto& o) { o.source = copied_model(b), o.out = o.source + "/out"; }); }},
    {"quantized_twice", ErrorKind::usage,
     [](Bed& b) {
         EXPECT_TRUE(quantize(b.weights("once"), {}).ok());
         return quantized(b, [&](auto& o) { o.source = b.at("once"); });
     }},
    {"no_such_gpu", ErrorKind::device, [](Bed& b) { return quantized(b, [](auto& o) { o.device = "cuda:99"; }); }},
    {"no_such_recipe", ErrorKind::recipe, [](Bed& b) { return quantized(b, [](auto& o) { o.recipe = "nvfp5"; }); }},
    {"damaged_recipe", ErrorKind::recipe,
     [](Bed& b) {
         write_file(b.dir / "r.yaml", "quant_cfg: [");
         return quantized(b, [&](auto& o) { o.recipe = b.at("r.yaml"); });
     }},
    {"recipe_that_matches_nothing", ErrorKind::recipe,
     [](Bed& b) { return quantized(b, [](auto& o) { o.ignore = {"*"}; }); }},
    {"recipe_without_activations", ErrorKind::recipe,
     [](Bed& b) { return quantized(b, [](auto& o) { o.recipe = "nvfp4"; }); }},
    {"text_without_use", ErrorKind::recipe,
     [](Bed& b) { return quantized(b, [&](auto& o) { o.calib.file = b.text; }); }},
    {"no_such_model", ErrorKind::file, [](Bed& b) { return quantized(b, [](auto& o) { o.source = "nowhere"; }); }},
    {"output_exists", ErrorKind::file,
     [](Bed& b) {
         EXPECT_TRUE(quantize(b.weights("out"), {}).ok());
         return error_of(quantize(b.weights("out"), {}));
     }},
    {"no_such_text", ErrorKind::file,
     [](Bed& b) {
         QuantizeOptions options = b.calibrated("out");
         options.calib.file = b.at("no.txt");
         return error_of(quantize(options, {}));
     }},
    {"file_in_place_of_the_folder", ErrorKind::file,
     [](Bed& b) {
         write_file(b.dir / "file", "");
         return quantized(b, [&](auto& o) { o.out = b.at("file") + "/out"; });
     }},
    {"no_input_scales", ErrorKind::file,
     [](Bed& b) { return quantized(b, [&](auto& o) { o.input_scales = b.at("no.json"); }); }},
    {"not_a_checkpoint", ErrorKind::checkpoint,
     [](Bed& b) {
         fs::create_directory(b.at("empty"));
         write_file(b.dir / "empty" / "config.json", "{");
         return quantized(b, [&](auto& o) { o.source = b.at("empty"); });
     }},
    {"truncated_weights", ErrorKind::checkpoint,
     [](Bed& b) {
         const std::string model = copied_model(b);
         fs::resize_file(model + "/model.safetensors", 1000);
         return quantized(b, [&](auto& o) { o.source = model; });
     }},
    {"model_without_a_tokenizer", ErrorKind::checkpoint,
     [](Bed& b) {
         const std::string model = copied_model(b);
         fs::remove(model + "/tokenizer.json");
         QuantizeOptions options = b.calibrated("out");
         options.source = model;
         return error_of(quantize(options, {}));
     }},
    {"calibrate_without_a_text", ErrorKind::usage,
     [](Bed& b) { return error_of(calibrate(b.weights("scales.json"), {})); }},
    {"calibrate_for_a_solver", ErrorKind::recipe,
     [](Bed& b) {
         QuantizeOptions options = b.calibrated("scales.json");
         options.recipe = "nvfp4_nibble_best";
         return error_of(calibrate(options, {}));
     }},
    {"generate_without_prompts", ErrorKind::usage,
     [](Bed& b) {
         GenerateOptions options;
         options.model = b.model;
         return error_of(generate(options, {}));
     }},
    {"generate_by_a_damaged_grammar", ErrorKind::usage,
     [](Bed& b) {
         GenerateOptions options;
         options.model = b.model;
         options.prompts = {{.text = "hello"}};
         options.form.regex = "(";
         return error_of(generate(options, {}));
     }},
    {"convert_without_a_format", ErrorKind::usage,
     [](Bed& b) { return error_of(convert_checkpoint({.source = b.model, .out = b.at("out")}, {})); }},
    {"convert_to_an_unknown_format", ErrorKind::usage,
     [](Bed& b) {
         return error_of(convert_checkpoint({.source = b.model, .out = b.at("out"), .format = "onnx"}, {}));
     }},
    {"import_of_a_missing_file", ErrorKind::file,
     [](Bed& b) { return error_of(import_checkpoint({.file = b.at("no.gguf"), .out = b.at("out")}, {})); }},
    {"import_of_no_gguf", ErrorKind::checkpoint,
     [](Bed& b) {
         write_file(b.dir / "x.gguf", "not a GGUF file, whatever its name says");
         return error_of(import_checkpoint({.file = b.at("x.gguf"), .out = b.at("out")}, {}));
     }},
    {"verify_against_nothing", ErrorKind::file,
     [](Bed& b) { return error_of(verify_checkpoints({.paths = {b.model}, .against = b.at("no")}, {})); }},
    {"evaluate_nothing", ErrorKind::usage, [](Bed& b) { return error_of(evaluate({.models = {b.model}}, {})); }},
    {"evaluate_with_an_unknown_type", ErrorKind::usage,
     [](Bed& b) {
         return error_of(evaluate({.models = {b.model}, .text = b.text, .engine = {.compute = "f16"}}, {}));
     }},
    {"evaluate_a_missing_text", ErrorKind::file,
     [](Bed& b) { return error_of(evaluate({.models = {b.model}, .text = b.at("no.txt")}, {})); }},
    {"search_without_text", ErrorKind::usage,
     [](Bed& b) { return error_of(search({.source = b.model, .out = b.at("r.yaml")}, {})); }},
    {"search_for_too_few_bits", ErrorKind::recipe,
     [](Bed& b) {
         return error_of(search({.source = b.model, .out = b.at("r.yaml"), .bits = 1, .calib = {.file = b.text}}, {}));
     }},
    {"logits_of_wrong_ids", ErrorKind::shape,
     [](Bed& b) {
         std::string file = R"({"input_ids":{"dtype":"I64","shape":[3],"data_offsets":[0,24]}})";
         std::string length(8, '\0');
         length[0] = static_cast<char>(file.size());
         write_file(b.dir / "ids.safetensors", length + file + std::string(24, '\0'));
         return error_of(
             compute_logits({.model = b.model, .ids = b.at("ids.safetensors"), .out = b.at("logits.safetensors")}, {}));
     }},
    {"serve_a_missing_model", ErrorKind::file,
     [](Bed& b) {
         ServeOptions options;
         options.model = b.at("no");
         options.port = 0;
         return error_of(serve(options, {}));
     }},
    {"serve_more_context_than_the_model_has", ErrorKind::usage,
     [](Bed& b) {
         ServeOptions options;
         options.model = b.model;
         options.context = 1 << 24;
         options.port = 0;
         return error_of(serve(options, {}));
     }},
    {"exception_of_no_memory", ErrorKind::memory,
     [](Bed&) { return error_of(as_job([]() -> Status { throw std::bad_alloc(); })); }},
    {"exception_of_the_file_system", ErrorKind::file,
     [](Bed& b) {
         return error_of(as_job([&]() -> Status {
             static_cast<void>(fs::file_size(b.at("no")));
             return Ok{};
         }));
     }},
};

class ErrorKinds : public ::testing::TestWithParam<Case> {};

TEST_P(ErrorKinds, BadInputHasItsKinds) {
    Bed bed;
    const Error error = GetParam().run(bed);
    EXPECT_EQ(error_kind_name(error.kind()), error_kind_name(GetParam().kind)) << error.message();
    EXPECT_EQ(error.message().find('\n'), std::string::npos);
    EXPECT_FALSE(fs::exists(bed.at("out") + ".partial")) << "work is left: " << error.message();
}

INSTANTIATE_TEST_SUITE_P(Table, ErrorKinds, ::testing::ValuesIn(cases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(AsJob, AFileThatShrinksFailsOnlyTheJobThatReadsIt) {
    Bed bed;
    write_file(bed.dir / "shrinks", std::string(100'000, 'x'));
    const auto shrinks = [&]() -> Status {
        NIBBLE_TRY(const auto file, MappedFile::open(bed.dir / "shrinks"));
        fs::resize_file(bed.dir / "shrinks", 10);
        EXPECT_EQ(file.bytes()[50'000], std::byte{0});
        return Ok{};
    };
    const Status failed = as_job(shrinks);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().kind(), ErrorKind::file);
    EXPECT_NE(failed.error().message().find("became shorter"), std::string::npos);
    EXPECT_TRUE(as_job([]() -> Status { return Ok{}; }).ok());
}

TEST(ErrorKind, IsKeptByContextAndSetOnce) {
    EXPECT_EQ(fail(ErrorKind::file, "a").within("b").kind(), ErrorKind::file);
    EXPECT_EQ(fail(ErrorKind::file, "a").as(ErrorKind::recipe).kind(), ErrorKind::file);
    EXPECT_EQ(fail("a").as(ErrorKind::recipe).within("b").kind(), ErrorKind::recipe);
    EXPECT_EQ(fail("a").kind(), ErrorKind::other);
    EXPECT_EQ(Result<int>(3).as(ErrorKind::file).ok(), true);
}

}  // namespace
}  // namespace nibble::test
