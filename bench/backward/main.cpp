// Backward pass against forward pass of a real model, as calibration runs them: bench_backward MODEL [TOKENS
// [SEQUENCE]]. Checks first (the gradients do not depend on threads), then prints processor seconds, which a busy
// machine moves less than elapsed ones, and the ratio to a forward pass of the same run.
#include "model/cpu/backward.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace nibble;

namespace {

class Squares : public Observer {  // token weights: |g|^2 per row, all linears
public:
    Status input(const Linear&, const float*, int64_t, int64_t, std::span<const int32_t>) override { return Ok{}; }
    Status kv(const std::string&, const float*, const float*, int64_t, int64_t, int64_t) override { return Ok{}; }
    Status output_gradient(const Linear&, const float* g, int64_t rows, int64_t cols,
                           std::span<const int32_t>) override {
        for (int64_t i = 0; i < rows; ++i) {
            float lane[16] = {};
            for (int64_t j = 0; j + 16 <= cols; j += 16)
                for (int l = 0; l < 16; ++l) lane[l] += g[i * cols + j + l] * g[i * cols + j + l];
            for (const float x : lane) total += x;
        }
        return Ok{};
    }
    double total = 0;
};

double processor_seconds() {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    return double(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * double(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

struct Time {
    double wall, processor;
};
template <class Work>
Time timed(Work work) {
    const auto begin = std::chrono::steady_clock::now();
    const double used = processor_seconds();
    work();
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
            processor_seconds() - used};
}

template <class T>
T value(Result<T> result) {
    if (!result) {
        std::fprintf(stderr, "bench_backward: %s\n", result.error().message().c_str());
        std::exit(1);
    }
    return *std::move(result);
}

std::vector<std::vector<int32_t>> texts(int64_t tokens, int64_t length, int64_t vocab) {
    std::vector<std::vector<int32_t>> all;
    const PhiloxStream stream{.seed = 1};
    for (int64_t i = 0; i < tokens; ++i) {
        if (i % length == 0) all.emplace_back();
        all.back().push_back(static_cast<int32_t>(stream.block(uint64_t(i)).word[0] % uint32_t(vocab)));
    }
    return all;
}

double run(const Model& model, const std::vector<std::vector<int32_t>>& text) {
    Squares squares;
    value(backward(model.config(), model.embedding(), model.head(), resident_blocks(model), text,
                   {.sampled = PhiloxStream{.seed = 2}, .memory = int64_t{8} << 30}, model.workspace(), &squares,
                   nullptr));
    return squares.total;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench_backward MODEL [TOKENS [SEQUENCE]]\n");
        return 2;
    }
    const int64_t tokens = argc > 2 ? std::atoll(argv[2]) : 2048, length = argc > 3 ? std::atoll(argv[3]) : 512;
    const std::shared_ptr<const Checkpoint> checkpoint = value(Checkpoint::open(argv[1]));
    ModelOptions options;
    options.compute = Compute::f32;
    options.quantize_activations = false;
    double sums[2];
    for (const int threads : {1, 2}) {
        ThreadPool pool(threads);
        const Model model = value(Model::load(checkpoint, options, pool));
        sums[threads - 1] = run(model, texts(64, 32, model.config().vocab));
    }
    if (sums[0] != sums[1] || !(sums[0] > 0)) {
        std::fprintf(stderr, "bench_backward: gradients differ between one and two threads\n");
        return 1;
    }
    ThreadPool pool;
    const Model model = value(Model::load(checkpoint, options, pool));
    const auto text = texts(tokens, length, model.config().vocab);
    std::vector<Segment> segments;
    for (const auto& t : text) segments.push_back({.tokens = t});
    const Batch batch(segments);
    std::vector<float> logits(static_cast<size_t>(batch.wanted() * model.config().vocab));
    std::vector<Time> forward, back;
    for (int i = 0; i < 3; ++i) {
        forward.push_back(timed([&] { value(model.forward(batch, logits)); }));
        back.push_back(timed([&] { run(model, text); }));
    }
    const auto median = [](std::vector<Time>& t) {
        std::ranges::sort(t, {}, &Time::processor);
        return t[t.size() / 2];
    };
    const Time f = median(forward), b = median(back);
    fmt::print("{} tokens of {} each, FP32, {} threads, medians of 3\n", tokens, length, pool.threads());
    fmt::print("forward   {:8.2f} processor s  {:8.2f} s  {:8.0f} tokens/s\n", f.processor, f.wall, tokens / f.wall);
    fmt::print("backward  {:8.2f} processor s  {:8.2f} s  {:8.0f} tokens/s  (with its own forward pass)\n", b.processor,
               b.wall, tokens / b.wall);
    fmt::print("ratio     {:8.2f}\n", b.processor / f.processor);
    return 0;
}
