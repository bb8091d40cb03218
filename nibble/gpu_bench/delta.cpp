#include "gpu_bench/delta.h"

#include "gpu_bench/noise.h"

#include <array>
#include <cmath>

namespace nibble::bench {
namespace {

constexpr double delta_bound = 1.5e-2;  // outputs and most intermediate values have 8 bits
constexpr int checked_tokens = 48;

double silu_of(double x) { return x / (1 + std::exp(-x)); }

class DeltaNet {
public:
    DeltaNet(Kit& kit, const DeltaNetShape& shape) : kit_(kit), s_(shape), net_(shape.net) {}

    Status load();
    Result<Check> check();
    Result<GraphTime> time(int repeats);
    double bytes() const {
        const double states = 2.0 * s_.sequences * static_cast<double>(net_.state_floats()) * 4;
        return states + static_cast<double>(rows() * (4 * stride() + 2 * net_.inner()));
    }
    // Counts the rule alone: decay, two sums and an update for each element of a state.
    double operations() const {
        return 7.0 * static_cast<double>(rows() * net_.value_heads) * net_.key_dim * net_.value_dim;
    }

private:
    int64_t rows() const { return int64_t{s_.sequences} * s_.tokens; }
    int64_t stride() const { return net_.channels() + net_.inner(); }
    Status launch(int copy) {
        step_.list = lists_[size_t(copy) % lists_.size()];
        return cuda::delta_step(step_, true, kit_.stream);
    }
    // Returns the outputs [tokens, value_dim] of a value head, whose state begins as `state`.
    std::vector<double> reference(int64_t row, int head, int tokens, std::span<const float> state) const;

    Kit& kit_;
    const DeltaNetShape& s_;
    const cuda::DeltaShape& net_;
    cuda::DeltaStep step_;
    std::vector<float> projected_, gates_, conv_, a_, dt_bias_, norm_, state_;
    std::vector<const cuda::StateSegment*> lists_;
};

Status DeltaNet::load() {
    projected_ = kit_.normal(rows() * stride(), 1.0f), gates_ = kit_.normal(rows() * 2 * net_.value_heads, 1.0f);
    for (std::vector<float>* all : {&projected_, &gates_})
        for (float& x : *all) x = round_to_bf16(x);
    conv_ = kit_.normal(net_.conv * net_.channels(), 0.5f), norm_ = kit_.normal(net_.value_dim, 1.0f);
    dt_bias_ = kit_.normal(net_.value_heads, 1.0f);
    for (int h = 0; h < net_.value_heads; ++h) a_.push_back(-0.05f - 0.1f * static_cast<float>(h % 7));
    state_ = kit_.normal(net_.state_floats(), 0.1f);
    const auto n = static_cast<float>(net_.key_dim);
    step_ = {.shape = net_, .tokens = rows(), .segments = s_.sequences, .longest = s_.tokens};
    step_.unit_eps = 1e-6f / n, step_.q_scale = 1.0f / n, step_.k_scale = 1.0f / std::sqrt(n), step_.eps = 1e-6f;
    NIBBLE_TRY(step_.projected, kit_.upload(projected_));
    NIBBLE_TRY(step_.gates, kit_.upload(gates_));
    NIBBLE_TRY(step_.conv_weight, kit_.upload(conv_));
    NIBBLE_TRY(step_.a, kit_.upload(a_));
    NIBBLE_TRY(step_.dt_bias, kit_.upload(dt_bias_));
    NIBBLE_TRY(step_.norm, kit_.upload(norm_));
    NIBBLE_TRY(step_.out, kit_.poisoned(rows() * net_.inner() * 2));
    NIBBLE_TRY(step_.workspace, kit_.arena.allocate(cuda::delta_workspace_bytes(net_, rows())));
    const int64_t bytes = net_.state_floats() * 4;
    const int copies = cold_copies(bytes * s_.sequences);
    NIBBLE_TRY(std::byte * states, kit_.arena.allocate(bytes * s_.sequences * copies));
    NIBBLE_CHECK(copy_to_device(states, reinterpret_cast<const std::byte*>(state_.data()), bytes, kit_.stream));
    NIBBLE_CHECK(repeat(kit_, states, bytes, int64_t{s_.sequences} * copies));
    for (int c = 0; c < copies; ++c) {
        std::vector<cuda::StateSegment> list;
        for (int i = 0; i < s_.sequences; ++i)
            list.push_back({i * s_.tokens, s_.tokens,
                            reinterpret_cast<float*>(states + (int64_t{c} * s_.sequences + i) * bytes), 0});
        NIBBLE_TRY(const cuda::StateSegment* device_list, kit_.upload(list));
        lists_.push_back(device_list);
        NIBBLE_CHECK(kit_.stream.synchronize());
    }
    return Ok{};
}

std::vector<double> DeltaNet::reference(int64_t row, int head, int tokens, std::span<const float> state) const {
    const int keys = net_.key_dim, values = net_.value_dim, taps = net_.conv, heads = net_.value_heads;
    const int64_t channels = net_.channels(), key_head = head / net_.values_per_key();
    const auto convolved = [&](int t, int64_t c) {
        double sum = 0;
        for (int j = 0; j < taps; ++j) {
            const int from = t - (taps - 1) + j;
            const float x = from < 0 ? state[size_t((taps - 1 + from) * channels + c)]
                                     : projected_[size_t((row + from) * stride() + c)];
            sum += double{conv_[size_t(j * channels + c)]} * x;
        }
        return silu_of(sum);
    };
    const auto unit = [&](int t, int64_t first, double scale) {
        std::vector<double> x(static_cast<size_t>(keys));
        double square = 0;
        for (int i = 0; i < keys; ++i) x[size_t(i)] = convolved(t, first + i), square += x[size_t(i)] * x[size_t(i)];
        for (double& each : x) each *= scale / std::sqrt(square + 1e-6);
        return x;
    };
    std::vector<double> s(static_cast<size_t>(keys * values)), out;
    const int64_t begin = net_.history_floats() + int64_t{head} * net_.padded_key_dim() * values;
    for (int i = 0; i < keys; ++i)
        for (int p = 0; p < values; ++p)
            s[size_t(i * values + p)] = state[size_t(begin + cuda::delta_place(values, i, p))];
    for (int t = 0; t < tokens; ++t) {
        const std::vector<double> q = unit(t, key_head * keys, 1 / std::sqrt(double(keys))),
                                  k = unit(t, net_.keys() + key_head * keys, 1);
        const float* gates = &gates_[size_t((row + t) * 2 * heads)];
        const double decay =
            std::exp(a_[size_t(head)] * std::log1p(std::exp(double{gates[heads + head]} + dt_bias_[size_t(head)])));
        const double beta = 1 / (1 + std::exp(-double{gates[head]}));
        std::vector<double> y(static_cast<size_t>(values));
        double square = 0;
        for (int p = 0; p < values; ++p) {
            double read = 0;
            for (int i = 0; i < keys; ++i) read += k[size_t(i)] * (s[size_t(i * values + p)] *= decay);
            const double u = beta * (convolved(t, 2 * net_.keys() + int64_t{head} * values + p) - read);
            for (int i = 0; i < keys; ++i)
                y[size_t(p)] += q[size_t(i)] * (s[size_t(i * values + p)] += k[size_t(i)] * u);
            square += y[size_t(p)] * y[size_t(p)];
        }
        for (int p = 0; p < values; ++p) {
            const double z = projected_[size_t((row + t) * stride() + channels + int64_t{head} * values + p)];
            out.push_back(y[size_t(p)] / std::sqrt(square / values + 1e-6) * norm_[size_t(p)] * silu_of(z));
        }
    }
    return out;
}

Result<Check> DeltaNet::check() {
    NIBBLE_CHECK(launch(0));
    Check check;
    const int tokens = std::min(s_.tokens, checked_tokens);
    for (const int sequence : {0, s_.sequences - 1}) {
        const int64_t row = int64_t{sequence} * s_.tokens;
        NIBBLE_TRY(const auto out,
                   kit_.download<uint16_t>(step_.out + row * net_.inner() * 2, int64_t{tokens} * net_.inner()));
        for (const int head : {1, net_.value_heads - 1}) {
            const std::vector<double> want = reference(row, head, tokens, state_);
            double square = 0, norm = 0;
            for (size_t i = 0; i < want.size(); ++i) {
                const size_t t = i / size_t(net_.value_dim), p = i % size_t(net_.value_dim);
                const double got = bf16_to_float(out[t * size_t(net_.inner()) + size_t(head * net_.value_dim) + p]);
                square += (got - want[i]) * (got - want[i]), norm += want[i] * want[i];
            }
            const double error = std::sqrt(square / norm);
            check.compared += std::ssize(want);
            if (!(error <= delta_bound))
                check.note(fmt::format("sequence {} head {}: {:.2e} off", sequence, head, error));
            check.worst = std::max(check.worst, error);
        }
    }
    return check;
}

Result<GraphTime> DeltaNet::time(int repeats) {
    const int launches = s_.tokens > 1 ? 4 : std::min(4 * static_cast<int>(lists_.size()), 96);
    return time_graph(kit_.stream, {launches, repeats}, [&](int i) { return launch(i); });
}

}  // namespace

std::vector<DeltaNetShape> target_delta_nets() {
    std::vector<DeltaNetShape> shapes;
    for (const int value_heads : {32, 48})
        for (const auto& [sequences, tokens] : {std::array{1, 1}, {8, 1}, {64, 1}, {1, 512}, {1, 4096}, {4, 1024}})
            shapes.push_back({{16, value_heads, 128, 128, 4}, sequences, tokens});
    return shapes;
}

Status bench_delta_nets(Kit& kit, const std::vector<DeltaNetShape>& shapes, int repeats, KernelTable& table) {
    for (const DeltaNetShape& shape : shapes) {
        const DeviceArena::Mark mark = kit.arena.mark();
        DeltaNet net(kit, shape);
        NIBBLE_CHECK(net.load());
        KernelRow row{shape.tokens > 1 ? "delta net, prefill" : "delta net, decode",
                      fmt::format("{}x{}, {}/{} heads", shape.sequences, shape.tokens, shape.net.key_heads,
                                  shape.net.value_heads),
                      int64_t{shape.sequences} * shape.tokens};
        NIBBLE_TRY(row.check, net.check());
        if (row.check.wrong == 0) {
            NIBBLE_TRY(row.time, net.time(repeats));
        }
        row.bytes = net.bytes(), row.operations = net.operations();
        table.add(row);
        kit.arena.release(mark);
    }
    return Ok{};
}

}  // namespace nibble::bench
