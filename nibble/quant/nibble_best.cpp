#include "quant/nibble_best.h"

#include "formats/nvfp4.h"
#include "kernels/load.h"
#include "quant/panel_descent.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

constexpr int64_t block = nvfp4_block;
constexpr int candidates = 16;
// Rows that are solved at once. With row feedback each row lags the previous one by one block, so that the rows of
// `spread` that they read stay in the L2 cache. Descent processes the rows of a panel together.
constexpr int64_t solved_rows = 16;

class Solver {
public:
    // descent: not used without sweeps.
    Solver(const MatrixView& weight, DType weights, const Feedback& columns, const Feedback* rows,
           const DescentMatrix* descent, int sweeps, const SolverKernels& kernels, const QuantSpan& out)
        : weight_(weight),
          weights_(weights),
          columns_(columns),
          rows_(rows),
          descent_(descent),
          sweeps_(sweeps),
          kernels_(kernels),
          out_(out),
          n_(weight.rows),
          k_(weight.cols) {
        for (int code = 1; code <= e4m3_max_code; ++code) {
            scale_[code] = nvfp4_decode_scale(static_cast<uint8_t>(code), out.tensor_scale);
            inverse_[code] = 1.0f / scale_[code];
        }
        factors_.resize(static_cast<size_t>(k_ / block));
        for (int64_t i = 0; i < k_; ++i) {
            BlockFactor& f = factors_[static_cast<size_t>(i / block)];
            f.weight[i % block] = columns.weight[static_cast<size_t>(i)];
            std::copy_n(columns.row(i) + i / block * block, block, f.row[i % block]);
        }
    }

    void solve(ThreadPool& pool) {
        load_weights(pool);
        const int64_t panels = (n_ + solved_rows - 1) / solved_rows;
        if (!rows_) return pool.parallel_for(panels, [&](int64_t p) { solve_panel(p * solved_rows); });
        for (int64_t p = 0; p < panels; ++p) answer_rows(p * solved_rows, pool, solve_panel(p * solved_rows));
    }

private:
    int64_t row_index(int64_t r) const { return rows_ ? rows_->order[static_cast<size_t>(r)] : r; }

    void load_weights(ThreadPool& pool) {
        w_.resize(static_cast<size_t>(n_ * k_));
        pool.parallel_for(n_, [&](int64_t r) {
            for (int64_t j = 0; j < k_; ++j)
                w_[static_cast<size_t>(r * k_ + j)] =
                    ref::load_rounded(weight_, weights_, row_index(r), columns_.order[static_cast<size_t>(j)]);
        });
    }

    // Solves rows [first, first + solved_rows), or to the end. With row feedback, returns their errors w - q [rows, k].
    std::vector<float> solve_panel(int64_t first) {
        const int64_t rows = std::min(solved_rows, n_ - first), blocks = k_ / block, skew = rows_ ? 1 : 0;
        const auto size = static_cast<size_t>(rows * k_);
        const float* w = w_.data() + first * k_;
        Panel panel{rows, k_, std::vector<float>(w, w + size), std::vector<float>(size), std::vector<float>(size)};
        std::vector<float> spread(size), error(rows_ ? size : 0);
        float residual[block * solved_rows];  // [k, row]
        for (int64_t t = 0; t < blocks + skew * (rows - 1); ++t) {
            int64_t lowest = rows, highest = 0;
            for (int64_t i = 0; i < rows; ++i) {
                const int64_t b = t - skew * i;
                if (b < 0 || b >= blocks) continue;
                lowest = std::min(lowest, i), highest = i;
                solve_block(first, i, b, spread.data(), error.data(), residual, panel);
            }
            // Without row feedback all rows are at the same block.
            const int64_t together = skew ? 1 : highest + 1 - lowest;
            for (int64_t i = lowest; i <= highest; i += together) {
                const int64_t next = (t - skew * i + 1) * block;
                kernels_.rank_update({together, k_ - next, block, residual + i, solved_rows,
                                      columns_.row(next - block) + next, k_, spread.data() + i * k_ + next, k_});
            }
        }
        if (sweeps_ > 0) {
            descend(panel, *descent_, rows_ ? remaining_coupling(*rows_, first, rows) : std::vector<double>{}, sweeps_,
                    kernels_);
            if (rows_) recompute_errors(first, panel, error);
        }
        store(first, panel);
        return error;
    }

    void solve_block(int64_t first, int64_t i, int64_t b, const float* spread, float* error, float* residual,
                     Panel& panel) {
        const int64_t r = first + i, at = b * block;
        float* w = w_.data() + r * k_ + at;
        if (rows_) answer_row(first, i, at, block, error, w);
        float x[block], amax = 0;
        for (int64_t k = 0; k < block; ++k) {
            x[k] = w[k] - spread[i * k_ + at + k];
            amax = std::max(amax, magnitude(x[k]));
        }
        const int code = first_candidate(amax);
        BlockChoice choice;
        kernels_.search_block(x, factors_[static_cast<size_t>(b)], scale_ + code, inverse_ + code, choice);
        const int best = code + choice.candidate;
        out_.block_scales[block_index(r, at)] = static_cast<uint8_t>(best);
        for (int64_t k = 0; k < block; ++k) {
            const auto index = static_cast<size_t>(i * k_ + at + k);
            panel.multiple[index] = choice.multiple[k];
            panel.scale[index] = scale_[best];
            residual[k * solved_rows + i] = choice.residual[k];
            if (error) error[index] = w[k] - choice.multiple[k] * scale_[best];
        }
    }

    // Compensates, in row i of the panel, the errors of the panel's earlier rows in columns [at, at + count).
    void answer_row(int64_t first, int64_t i, int64_t at, int64_t count, const float* error, float* w) const {
        kernels_.rank_update({1, count, i, rows_->row(first) + first + i, n_, error + at, k_, w, count, true});
    }

    // Recomputes the errors after codes have changed, with the same chain of operations.
    void recompute_errors(int64_t first, const Panel& panel, std::vector<float>& error) const {
        for (int64_t i = 0; i < panel.rows; ++i) {
            std::vector<float> w(panel.target.begin() + i * k_, panel.target.begin() + (i + 1) * k_);
            answer_row(first, i, 0, k_, error.data(), w.data());
            for (int64_t k = 0; k < k_; ++k) {
                const auto index = static_cast<size_t>(i * k_ + k);
                error[index] = w[static_cast<size_t>(k)] - panel.multiple[index] * panel.scale[index];
            }
        }
    }

    // Returns the index, among the stored block scales, of the block at position `at` of the r-th row.
    int64_t block_index(int64_t r, int64_t at) const {
        return (row_index(r) * k_ + columns_.order[static_cast<size_t>(at)]) / block;
    }

    void store(int64_t first, const Panel& panel) const {
        for (int64_t i = 0; i < panel.rows; ++i)
            for (int64_t at = 0; at < k_; at += block) {
                uint8_t codes[block];
                for (int64_t k = at; k < at + block; ++k)
                    codes[columns_.order[static_cast<size_t>(k)] % block] =
                        e2m1_from_float(panel.multiple[static_cast<size_t>(i * k_ + k)]);
                uint8_t* bytes = out_.codes + block_index(first + i, at) * (block / 2);
                for (int64_t k = 0; k < block; k += 2)
                    bytes[k / 2] = static_cast<uint8_t>(codes[k] | codes[k + 1] << 4);
            }
    }

    // Returns the first of 16 candidates: five codes below the one that maps the largest weight to 6 or just above,
    // which covers about amax / 10 to amax / 2.5.
    int first_candidate(float amax) const {
        const float s = amax / (e2m1_max * out_.tensor_scale);
        const int nearest = e4m3_from_float(std::min(s, e4m3_max));
        const int floor = nearest > 0 && e4m3_to_float(static_cast<uint8_t>(nearest)) > s ? nearest - 1 : nearest;
        return std::clamp(floor - 5, 1, e4m3_max_code + 1 - candidates);
    }

    // Compensates the panel's errors in all later rows.
    void answer_rows(int64_t first, ThreadPool& pool, const std::vector<float>& error) {
        constexpr int64_t chunk = 96;
        const int64_t rows = static_cast<int64_t>(error.size()) / k_, next = first + rows;
        pool.parallel_for((n_ - next + chunk - 1) / chunk, [&](int64_t c) {
            const int64_t begin = next + c * chunk, count = std::min(chunk, n_ - begin);
            kernels_.rank_update(
                {count, k_, rows, rows_->row(first) + begin, n_, error.data(), k_, w_.data() + begin * k_, k_, true});
        });
    }

    const MatrixView& weight_;
    const DType weights_;
    const Feedback& columns_;
    const Feedback* rows_;
    const DescentMatrix* descent_;
    const int sweeps_;
    const SolverKernels& kernels_;
    const QuantSpan& out_;
    const int64_t n_, k_;
    float scale_[128] = {}, inverse_[128] = {};
    std::vector<BlockFactor> factors_;
    std::vector<float> w_;  // [n, k], in processing order
};

}  // namespace

Result<SolveGaps> nibble_best(const MatrixView& weight, DType weights, const Gram& h, const Gram* g,
                              const NibbleBestOptions& options, const SolverKernels& kernels, ThreadPool& pool,
                              const QuantSpan& out) {
    if (weight.cols % block) return fail("{} columns are not whole blocks of 16", weight.cols);
    if (h.size() != weight.cols)
        return fail("calibration statistics have {} inputs, the matrix has {} columns", h.size(), weight.cols);
    if (g && g->size() != weight.rows)
        return fail("calibration statistics have {} outputs, the matrix has {} rows", g->size(), weight.rows);
    if (!nibble_best_holds(out.tensor_scale))
        return fail("weights with a tensor scale of {} are too small", out.tensor_scale);
    const int64_t ordered = options.order_blocks ? block : 0;
    const Feedback columns = make_feedback(h, {options.damping, ordered}, kernels, pool);
    DescentMatrix descent;
    if (options.sweeps > 0) descent = descent_matrix(h, columns, options.damping, pool);
    const auto solve = [&](const Feedback* rows) {
        Solver(weight, weights, columns, rows, &descent, options.sweeps, kernels, out).solve(pool);
        return SolveGaps{.no_feedback = !columns.answers || (rows && !rows->answers)};
    };
    if (!g || !options.row_feedback) return solve(nullptr);
    const Feedback rows = make_feedback(*g, {options.row_damping, ordered ? 1 : 0}, kernels, pool);
    return solve(&rows);
}

}  // namespace nibble
