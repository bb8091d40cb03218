#include "cli/bench_subject.h"

#include <fmt/format.h>

namespace nibble {

void add_subject_flags(CLI::App& command, const std::string& name, BenchSubject& subject) {
    CLI::Option* path = command.add_option(name, subject.path, "folder or .gguf");
    CLI::Option* shape =
        command
            .add_option(
                "--shape", subject.random.shape,
                "random weights in the shape of smollm2-135m, llama-8b, qwen3-8b, qwen3-30b-a3b, qwen3.5-35b-a3b, "
                "qwen3.6-27b, nemotron-3-nano, gpt-oss-20b, gpt-oss-120b, gemma-4-26b-a4b or glm-4.7-flash")
            ->excludes(path);
    command.add_option("--format", subject.random.format, "format of the linears with --shape: bf16, fp8, nvfp4 ...")
        ->capture_default_str()
        ->needs(shape);
    command
        .add_flag("--quantize-head", subject.random.head,
                  "with --shape: the output head has --format too, instead of BF16")
        ->needs(shape);
    command.add_option("--layers", subject.random.layers, "number of layers of the --shape; default: all")
        ->check(CLI::Range(1, 1000))
        ->needs(shape);
}

void check_subject(const std::string& name, const BenchSubject& subject) {
    if (subject.path.empty() && subject.random.shape.empty())
        throw CLI::RequiredError(fmt::format("{} or --shape", name));
}

}  // namespace nibble
