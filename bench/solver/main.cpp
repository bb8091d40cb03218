// bench_solver [--threads N] [--kernel NAME] [--layers N] [--repeats N] [--sweeps N] [--clock cpu]: seconds that
// nibble_best and its statistics take on the linears of SmolLM2-135M (random weights, correlated random activations),
// and what it gains over scales chosen by the block maximum. Checked first: two thread counts give the same bytes.
#include "base/thread_pool.h"
#include "formats/minifloat.h"
#include "quant/nibble_best.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <map>
#include <random>
#include <string>

using namespace nibble;

namespace {

struct Shape {
    const char* name;
    int64_t rows, cols;
    int per_layer;
};
constexpr Shape shapes[] = {
    {"q, o", 576, 576, 2}, {"k, v", 192, 576, 2}, {"gate, up", 1536, 576, 2}, {"down", 576, 1536, 1}};
constexpr int64_t gram_tokens = 4096;

// Wall clock, or with --clock cpu the processor time of all threads: on a busy machine.
bool cpu_clock = false;
double now() {
    if (cpu_clock) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Rows with a decaying spectrum and a few loud channels, as hidden states have.
std::vector<float> correlated_rows(int64_t rows, int64_t n, uint32_t seed) {
    constexpr int64_t latent = 64;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> mixing(static_cast<size_t>(latent * n)), x(static_cast<size_t>(rows * n)),
        gain(static_cast<size_t>(n));
    for (int64_t l = 0; l < latent; ++l)
        for (int64_t j = 0; j < n; ++j)
            mixing[static_cast<size_t>(l * n + j)] = normal(random) * 2.0f / static_cast<float>(1 + l);
    for (float& g : gain) g = std::exp(0.7f * normal(random));
    for (int64_t t = 0; t < rows; ++t) {
        float z[latent];
        for (float& v : z) v = normal(random);
        for (int64_t j = 0; j < n; ++j) {
            float v = 0.5f * normal(random);
            for (int64_t l = 0; l < latent; ++l) v += z[l] * mixing[static_cast<size_t>(l * n + j)];
            x[static_cast<size_t>(t * n + j)] = v * gain[static_cast<size_t>(j)];
        }
    }
    return x;
}

Matrix random_weight(int64_t rows, int64_t cols) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0.0f, 0.04f);
    Matrix w(DType::bf16, rows, cols);
    for (int64_t i = 0; i < rows * cols; ++i) {
        const uint16_t code = bf16_from_float(normal(random));
        std::memcpy(w.data.data() + 2 * i, &code, 2);
    }
    return w;
}

// tr(G E H E^T) / (tr G tr H) of decoded codes; the identity stands for a G that is null.
double curvature_error(const Matrix& weight, const QuantView& q, const Gram& h, const Gram* g,
                       const QuantizeKernels& kernels, const SolverKernels& solver) {
    const int64_t n = weight.rows, k = weight.cols;
    std::vector<float> decoded(static_cast<size_t>(n * k));
    kernels.decode(q, decoded.data());
    std::vector<double> e(static_cast<size_t>(k * n)), eh(static_cast<size_t>(n * k)), ehe(static_cast<size_t>(n * n)),
        et(e.size());
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < k; ++j) {
            uint16_t code;
            std::memcpy(&code, weight.data.data() + 2 * (i * k + j), 2);
            e[static_cast<size_t>(j * n + i)] =
                double{bf16_to_float(code)} - double{decoded[static_cast<size_t>(i * k + j)]};
        }
    std::vector<double> eh_t(static_cast<size_t>(k * n));
    solver.rank_update_f64({k, n, k, h.sums().data(), k, e.data(), n, eh_t.data(), n});
    double sum = 0;
    if (!g) {
        for (size_t i = 0; i < e.size(); ++i) sum += e[i] * eh_t[i];
        return sum;
    }
    solver.rank_update_f64({n, n, k, e.data(), n, eh_t.data(), n, ehe.data(), n});
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j)
            sum += ehe[static_cast<size_t>(i * n + j)] * g->sums()[static_cast<size_t>(i * n + j)];
    return sum;
}

QuantMatrix quantize_max(const Matrix& weight, const QuantizeKernels& kernels, TensorAmax& amax) {
    const WeightSpec spec{Format::nvfp4};
    amax.store = amax.search = kernels.scan(weight.view()).amax;
    QuantMatrix q(Format::nvfp4, weight.rows, weight.cols);
    q.tensor_scale = tensor_scale(spec, amax);
    QuantStats stats;
    kernels.quantize(weight.view(), spec, amax, q.span(), stats);
    return q;
}

template <class Work>
double median_seconds(int repeats, Work work) {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
        const double begin = now();
        work();
        times.push_back(now() - begin);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
    std::map<std::string, std::string> flag;
    for (int i = 1; i + 1 < argc; i += 2) flag[argv[i]] = argv[i + 1];
    const auto number = [&](const char* name, int otherwise) {
        return flag.contains(name) ? std::atoi(flag[name].c_str()) : otherwise;
    };
    ThreadPool pool(number("--threads", 2)), one(1);
    cpu_clock = flag["--clock"] == "cpu";
    const int layers = number("--layers", 30), repeats = number("--repeats", 3),
              sweeps = number("--sweeps", NibbleBestOptions{}.sweeps);
    const auto solver = select_solver_kernels(flag["--kernel"]);
    const auto kernels = select_quantize_kernels();
    if (!solver.ok()) return fmt::print(stderr, "bench_solver: {}\n", solver.error().message()), 1;

    fmt::print("{} threads, {}; {} layers; per linear, median of {}\n", pool.threads(), (*solver)->name, layers,
               repeats);
    fmt::print("{:<10}{:>12} {:>9} {:>9} {:>9} {:>9} {:>9}  {}\n", "", "shape", "H 4k tok", "G 4k tok", "factors",
               "columns", "+ rows", "tr(G E H E^T) / that of max: columns, + rows");
    double totals[5] = {};
    for (const Shape& s : shapes) {
        const Matrix weight = random_weight(s.rows, s.cols);
        Gram h(s.cols, **solver), g(s.rows, **solver);
        const auto x = correlated_rows(gram_tokens, s.cols, 3), y = correlated_rows(gram_tokens, s.rows, 4);
        double seconds[5];
        const auto accumulate = [&](Gram& gram, const std::vector<float>& rows, double& time) {
            time = median_seconds(repeats, [&] {
                gram = Gram(gram.size(), **solver);
                (void)gram.add(rows.data(), gram_tokens, gram.size(), {}, pool);
                gram.finish(pool);
            });
        };
        accumulate(h, x, seconds[0]);
        accumulate(g, y, seconds[1]);
        seconds[2] = median_seconds(repeats, [&] {
            (void)make_feedback(h, {0.03, 16}, **solver, pool);
            (void)make_feedback(g, {0.3, 1}, **solver, pool);
        });
        TensorAmax amax;
        const QuantMatrix plain = quantize_max(weight, **kernels, amax);
        QuantMatrix columns = plain, rows = plain, check = plain;
        const auto solve = [&](QuantMatrix& q, bool feedback, ThreadPool& threads) {
            const auto stats = nibble_best(weight.view(), DType::bf16, h, &g,
                                           {.sweeps = sweeps, .row_feedback = feedback}, **solver, threads, q.span());
            if (!stats.ok()) fmt::print(stderr, "bench_solver: {}\n", stats.error().message()), std::exit(1);
        };
        seconds[3] = median_seconds(repeats, [&] { solve(columns, false, pool); });
        seconds[4] = median_seconds(repeats, [&] { solve(rows, true, pool); });
        solve(check, true, one);
        if (check.codes != rows.codes || check.block_scales != rows.block_scales)
            return fmt::print(stderr, "bench_solver: {}: the thread count changed a bit\n", s.name), 1;
        const auto error = [&](const QuantMatrix& q) {
            return curvature_error(weight, q.view(), h, &g, **kernels, **solver);
        };
        const double base = error(plain);
        fmt::print("{:<10}{:>12} {:9.4f} {:9.4f} {:9.4f} {:9.4f} {:9.4f}  {:.4f} {:.4f}\n", s.name,
                   fmt::format("{}x{}", s.rows, s.cols), seconds[0], seconds[1], seconds[2], seconds[3], seconds[4],
                   error(columns) / base, error(rows) / base);
        for (int i = 0; i < 5; ++i) totals[i] += seconds[i] * s.per_layer * layers;
    }
    fmt::print("{:<22} {:9.2f} {:9.2f} {:9.2f} {:9.2f} {:9.2f}  seconds for {} layers\n", "all", totals[0], totals[1],
               totals[2], totals[3], totals[4], layers);
}
