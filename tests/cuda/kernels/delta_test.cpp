// Compares a gated delta net between its products with the CPU's kernels, bit for bit: outputs and states, for whole
// texts, chunks and single tokens.
#include "cuda/device.h"
#include "cuda/kernels/delta_reference.h"

#include <algorithm>

namespace nibble::bench {
namespace {

struct DeltaCase {
    cuda::DeltaShape shape;
    std::vector<int32_t> lengths;
};

// The inputs of a case on the host, and what the CPU computes from them with every text in one piece.
struct DeltaExpected {
    std::vector<float> projected, gates, z, channel_gates, conv_weight, a, dt_bias, norm, states;
    std::vector<uint16_t> out;

    static Result<DeltaExpected> make(Kit& kit, const DeltaCase& c, int64_t tokens, cuda::DeltaStep& d) {
        const cuda::DeltaShape& s = c.shape;
        const bool by_channel = s.by_channel;
        const int64_t extra = 24;  // columns after b
        const int64_t stride = s.channels() + (by_channel ? s.value_heads + extra : s.inner());
        DeltaExpected e{.projected = kit.normal(tokens * stride, 1.0f),
                        .gates = kit.normal(by_channel ? 0 : tokens * 2 * s.value_heads, 1.0f),
                        .z = kit.normal(by_channel ? tokens * s.inner() : 0, 1.0f),
                        .channel_gates = kit.normal(by_channel ? tokens * s.keys() : 0, 1.0f),
                        .conv_weight = kit.normal(s.conv * s.channels(), 0.5f),
                        .a = {},
                        .dt_bias = kit.normal(by_channel ? s.keys() : s.value_heads, 1.0f),
                        .norm = kit.normal(s.value_dim, 1.0f),
                        .states = std::vector<float>(c.lengths.size() * size_t(s.state_floats())),
                        .out = std::vector<uint16_t>(size_t(tokens * s.inner()))};
        for (int h = 0; h < s.value_heads; ++h) e.a.push_back(-0.05f - 0.1f * static_cast<float>(h % 7));
        d = {.shape = s, .tokens = tokens, .segments = static_cast<int>(c.lengths.size())};
        d.stride = by_channel ? stride : 0;
        const auto n = static_cast<float>(s.key_dim);
        d.unit_eps = 1e-6f / n, d.q_scale = 1.0f / n, d.k_scale = 1.0f / std::sqrt(n), d.eps = 1e-6f;
        cuda::DeltaStep on_host = d;
        std::vector<cuda::StateSegment> list;
        int32_t row = 0;
        for (const int32_t length : c.lengths) {
            list.push_back({row, length, e.states.data() + int64_t(list.size()) * s.state_floats()});
            row += length;
        }
        on_host.list = list.data();
        on_host.projected = e.projected.data(), on_host.gates = e.gates.data();
        on_host.z = e.z.data(), on_host.channel_gates = e.channel_gates.data();
        if (by_channel) on_host.gates = e.projected.data() + s.channels();
        on_host.conv_weight = e.conv_weight.data(), on_host.a = e.a.data(), on_host.dt_bias = e.dt_bias.data();
        on_host.norm = e.norm.data(), on_host.out = reinterpret_cast<std::byte*>(e.out.data());
        NIBBLE_CHECK(DeltaReference::run(on_host));
        return e;
    }
};

Result<Check> check_delta_case(Kit& kit, const DeltaCase& c) {
    const cuda::DeltaShape& s = c.shape;
    Check check{fmt::format("delta net {}: keys {} of {}, values {} of {}, conv {}, {} texts",
                            s.by_channel    ? "by channel"
                            : s.by_key_head ? "by key head"
                                            : "by part",
                            s.key_heads, s.key_dim, s.value_heads, s.value_dim, s.conv, c.lengths.size())};
    const DeviceArena::Mark mark = kit.arena.mark();
    int64_t tokens = 0;
    for (const int32_t n : c.lengths) tokens += n;
    cuda::DeltaStep d;
    NIBBLE_TRY(const DeltaExpected want, DeltaExpected::make(kit, c, tokens, d));
    NIBBLE_TRY(d.projected, kit.upload(want.projected));
    if (s.by_channel) {
        d.gates = d.projected + s.channels();
        NIBBLE_TRY(d.z, kit.upload(want.z));
        NIBBLE_TRY(d.channel_gates, kit.upload(want.channel_gates));
    } else {
        NIBBLE_TRY(d.gates, kit.upload(want.gates));
    }
    NIBBLE_TRY(d.conv_weight, kit.upload(want.conv_weight));
    NIBBLE_TRY(d.a, kit.upload(want.a));
    NIBBLE_TRY(d.dt_bias, kit.upload(want.dt_bias));
    NIBBLE_TRY(d.norm, kit.upload(want.norm));
    NIBBLE_TRY(d.workspace, kit.poisoned(cuda::delta_workspace_bytes(s, tokens)));
    NIBBLE_TRY(d.out, kit.poisoned(tokens * s.inner() * 2));
    const int64_t state_bytes = std::ssize(want.states) * 4;
    NIBBLE_TRY(std::byte * states, kit.arena.allocate(state_bytes));
    const int32_t longest = *std::ranges::max_element(c.lengths);
    // Whole texts without a state; whole texts with one; cut after 3 and 9 tokens; token by token.
    for (const int cut : {0, -1, 3, 9, 1}) {
        NIBBLE_CHECK(fill_device(states, 0, state_bytes, kit.stream));
        NIBBLE_CHECK(fill_device(d.out, Kit::poison, tokens * s.inner() * 2, kit.stream));
        for (int32_t done = 0; done < longest; done += cut < 1 ? longest : cut) {
            std::vector<cuda::StateSegment> list;
            int32_t first = 0;
            d.longest = 0;
            for (size_t i = 0; i < c.lengths.size(); first += c.lengths[i++]) {
                const int32_t here = cut < 1 ? c.lengths[i] : std::min(cut, c.lengths[i] - done);
                if (here < 1) continue;
                float* state = reinterpret_cast<float*>(states) + int64_t(i) * s.state_floats();
                list.push_back({first + done, here, cut == 0 ? nullptr : state, done});
                d.longest = std::max(d.longest, here);
            }
            d.segments = static_cast<int>(list.size());
            NIBBLE_TRY(d.list, kit.upload(list));
            NIBBLE_CHECK(cuda::delta_step(d, true, kit.stream));
            NIBBLE_CHECK(kit.stream.synchronize());
        }
        NIBBLE_TRY(const auto out, kit.download<uint16_t>(d.out, tokens * s.inner()));
        for (size_t i = 0; i < out.size(); ++i, ++check.compared)
            if (out[i] != want.out[i])
                check.note(fmt::format("cut {}: token {} channel {}: {} instead of {}", cut, i / size_t(s.inner()),
                                       i % size_t(s.inner()), bf16_to_float(out[i]), bf16_to_float(want.out[i])));
        if (cut == 0) continue;
        NIBBLE_TRY(const auto kept, kit.download<float>(states, std::ssize(want.states)));
        for (size_t i = 0; i < kept.size(); ++i, ++check.compared)
            if (kept[i] != want.states[i])
                check.note(fmt::format("cut {}: text {} state {}: {} instead of {}", cut, i / size_t(s.state_floats()),
                                       i % size_t(s.state_floats()), kept[i], want.states[i]));
    }
    kit.arena.release(mark);
    return check;
}

Result<std::vector<Check>> check_delta_nets(const Kit& given) {
    Kit kit = given;
    std::vector<Check> results;
    for (const DeltaCase& c :
         {DeltaCase{{2, 4, 16, 16, 4, false}, {1, 7, 20}}, DeltaCase{{2, 4, 16, 16, 4, true}, {5, 9}},
          DeltaCase{{3, 3, 21, 40, 2, true}, {33, 2}}, DeltaCase{{1, 2, 200, 72, 1, false}, {11, 3}},
          // Heads of Qwen3.5-35B-A3B and Qwen3.6-27B.
          DeltaCase{{2, 4, 128, 128, 4, false}, {40}}, DeltaCase{{2, 6, 128, 128, 4, true}, {26, 1, 2}},
          DeltaCase{{2, 4, 128, 128, 4, false}, {3, 2, 2, 2, 1, 2, 2, 2, 9}},
          // More thread blocks than with one column per thread.
          DeltaCase{{2, 4, 128, 128, 4, false}, std::vector<int32_t>(20, 9)},
          // Kimi delta attention; heads of Kimi-Linear-48B-A3B.
          DeltaCase{{2, 2, 16, 16, 4, false, true}, {1, 7, 20}}, DeltaCase{{3, 3, 21, 40, 2, false, true}, {33, 2}},
          DeltaCase{{1, 1, 200, 72, 1, false, true}, {11, 3}}, DeltaCase{{2, 2, 128, 128, 4, false, true}, {40, 1, 9}},
          DeltaCase{{2, 2, 128, 128, 4, false, true}, {3, 2, 2, 2, 1, 2, 2, 2, 9}}}) {
        NIBBLE_TRY(auto check, check_delta_case(kit, c));
        results.push_back(std::move(check));
    }
    return results;
}

TEST(CudaKernels, GatedDeltaNetsHaveTheBitsOfTheCpu) { expect_all(check_delta_nets(kit())); }

TEST(CudaKernels, GatedDeltaNetsWithoutAKernelAreAnError) {
    for (const cuda::DeltaShape& s : {cuda::DeltaShape{2, 4, 300, 128, 4}, cuda::DeltaShape{2, 4, 128, 100, 4},
                                      cuda::DeltaShape{2, 3, 128, 128, 4}, cuda::DeltaShape{2, 4, 128, 128, 17}}) {
        const Status status =
            cuda::delta_step({.shape = s, .tokens = 1, .segments = 1, .longest = 1}, false, kit().stream);
        ASSERT_FALSE(status.ok());
        EXPECT_NE(status.error().message().find("heads up to 256"), std::string::npos) << status.error().message();
    }
}

}  // namespace
}  // namespace nibble::bench
