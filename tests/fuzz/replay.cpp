// Gives the seeds of a fuzz target and fixed mutations of them to the target, without libFuzzer or sanitizers, so that
// `make test` runs every parser over broken input. Searches for new input are the work of `make fuzz`.
//   fuzz_replay TARGET SEEDS MUTANTS     SEEDS: a folder; MUTANTS: for each seed
// If the target ends the program, the last line names the seed and the number of the mutant, and the input is in
// TARGET.input in the working folder.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

using Input = std::vector<uint8_t>;

#define TARGET(name) extern "C" int name(const uint8_t* data, size_t size);
#include "fuzz_targets.inc"
#undef TARGET

namespace {

struct Target {
    std::string_view name;
    int (*run)(const uint8_t*, size_t);
};

constexpr Target targets[] = {
#define TARGET(name) {#name, name},
#include "fuzz_targets.inc"
#undef TARGET
};

// The input of the current run; read by the signal handler.
Input current;
std::string current_text, current_file;

extern "C" void report_signal(int number) {
    [[maybe_unused]] auto written = ::write(STDERR_FILENO, current_text.data(), current_text.size());
    const int file = ::open(current_file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    written = ::write(file, current.data(), current.size());
    std::signal(number, SIG_DFL);
    std::raise(number);
}

size_t below(std::mt19937_64& random, size_t limit) { return limit ? random() % limit : 0; }

// One to four changes: flipped bits, other bytes, numbers at the limits, removed, repeated and exchanged parts.
Input mutant(Input input, std::mt19937_64& random) {
    constexpr int64_t limits[] = {0,     -1,        1,         127,        128,       255,       256,
                                  65535, INT32_MAX, INT32_MIN, UINT32_MAX, INT64_MAX, INT64_MIN, INT64_C(1) << 40};
    for (size_t changes = 1 + below(random, 4); changes-- > 0;) {
        if (input.empty()) input.push_back(0);
        const size_t at = below(random, input.size());
        const size_t size = 1 + below(random, std::min<size_t>(input.size() - at, 64));
        const auto begin = input.begin() + static_cast<ptrdiff_t>(at);
        switch (below(random, 6)) {
            case 0:
                input[at] ^= static_cast<uint8_t>(1U << below(random, 8));
                break;
            case 1:
                input[at] = static_cast<uint8_t>(random());
                break;
            case 2: {
                const int64_t limit = limits[below(random, std::size(limits))];
                const size_t width = size_t{1} << below(random, 4);
                std::memcpy(&input[at], &limit, std::min(width, input.size() - at));
                break;
            }
            case 3:
                input.erase(begin, begin + static_cast<ptrdiff_t>(size));
                break;
            case 4: {
                const Input part(begin, begin + static_cast<ptrdiff_t>(size));
                input.insert(begin, part.begin(), part.end());
                break;
            }
            default:
                std::swap_ranges(input.begin(), input.begin() + static_cast<ptrdiff_t>(std::min(at, size)), begin);
        }
    }
    return input;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 4) {
        std::fprintf(stderr, "usage: fuzz_replay TARGET SEEDS MUTANTS\n");
        return 2;
    }
    const auto* target =
        std::find_if(std::begin(targets), std::end(targets), [&](const Target& t) { return t.name == arguments[1]; });
    if (target == std::end(targets)) {
        std::fprintf(stderr, "fuzz_replay: no target %s\n", arguments[1]);
        return 2;
    }
    std::vector<std::filesystem::path> seeds;
    for (const auto& entry : std::filesystem::directory_iterator(arguments[2])) seeds.push_back(entry.path());
    std::sort(seeds.begin(), seeds.end());
    current_file = std::string(target->name) + ".input";
    for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(number, report_signal);
    const int mutants = std::atoi(arguments[3]);
    for (const auto& path : seeds) {
        std::ifstream file(path, std::ios::binary);
        const Input seed{std::istreambuf_iterator<char>(file), {}};
        std::mt19937_64 random(std::hash<std::string>{}(path.filename().string()));
        for (int number = 0; number <= mutants; ++number) {
            current = number == 0 ? seed : mutant(seed, random);
            current_text = std::string(target->name) + " ended at seed " + path.filename().string() + ", mutant " +
                           std::to_string(number) + "\n";
            target->run(current.data(), current.size());
        }
    }
    std::printf("%s: %zu seeds, %d mutants of each\n", arguments[1], seeds.size(), mutants);
    return seeds.empty();
}
