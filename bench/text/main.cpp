// bench_text TOKENIZER FILE [REPEATS]: encoding speed of one core in MB/s, over whole lines and over the whole file at
// once, with the cache of pieces cold (first) and warm (best of the rest).
#include "base/mapped_file.h"
#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

using namespace nibble;

int main(int argc, char** argv) {
    if (argc < 3) return fmt::print(stderr, "usage: bench_text TOKENIZER FILE [REPEATS]\n"), 2;
    const auto tokenizer = Tokenizer::from_folder(argv[1]);
    const auto text = read_text_file(argv[2]);
    for (const std::string& problem :
         {tokenizer.ok() ? "" : tokenizer.error().message(), text.ok() ? "" : text.error().message()})
        if (!problem.empty()) return fmt::print(stderr, "bench_text: {}\n", problem), 1;
    const int repeats = std::max(argc > 3 ? std::atoi(argv[3]) : 5, 2);
    double cold = 0, warm = 0;
    size_t tokens = 0;
    for (int i = 0; i < repeats; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        const auto ids = tokenizer->encode(*text);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        if (!ids.ok()) return fmt::print(stderr, "bench_text: {}\n", ids.error().message()), 1;
        const double rate = double(text->size()) / seconds / 1e6;
        i == 0 ? cold = rate : warm = std::max(warm, rate);
        tokens = ids->size();
    }
    fmt::print("{} bytes, {} tokens: {:.1f} MB/s cold, {:.1f} MB/s warm\n", text->size(), tokens, cold, warm);
}
