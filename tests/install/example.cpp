// Quantizes a model and prints an answer of the result: example MODEL OUT (docs/library.md)
#include <nibble/generate.h>
#include <nibble/quantize.h>

#include <iostream>

namespace {

int complain(const nibble::Error& error) {
    std::cerr << nibble::error_kind_name(error.kind()) << ": " << error.message() << "\n";
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const nibble::JobHooks hooks{.warn = [](std::string_view line) { std::cerr << line << "\n"; }};
    const auto made = nibble::quantize({.source = argv[1], .out = argv[2], .recipe = "w4a16_nvfp4"}, hooks);
    if (!made.ok()) return complain(made.error());
    std::cout << made->text();

    nibble::GenerateOptions options{.model = argv[2], .prompts = {{.text = "The capital of France is"}}};
    options.sampling.max_tokens = 8;
    nibble::GenerateHooks print;
    print.on_text = [](size_t, std::string_view piece) { std::cout << piece << std::flush; };
    const auto answers = nibble::generate(options, print);
    if (!answers.ok()) return complain(answers.error());
    std::cout << "\n(" << answers->answer_tokens << " tokens)\n";
}
