#include "jobs/projection_devices.h"

#include <array>

namespace nibble {
namespace {

constexpr std::string_view published = "published size", like_h200 = "as an H200, scaled by the published peak rates";

constexpr SourcedNumber assumed_number(double value, std::string_view source) { return {value, false, source}; }
constexpr SourcedNumber measured_number(double value, std::string_view source) { return {value, true, source}; }

constexpr SourcedNumber h200_bandwidth = measured_number(4.28e12, "a copy, docs/results/products-on-a-gpu.md");
// llama-8b in BF16 on a prompt of 512 tokens: 27,470 tokens/s x 2 x 8.03e9 weights
constexpr SourcedNumber h200_products =
    measured_number(4.41e14, "prefill of llama-8b in BF16, docs/results/models-on-a-gpu.md");
constexpr SourcedNumber h200_quantize = measured_number(4.7e9, "4 GB in 0.86 s, docs/results/quantizing-speed.md");
// llama-8b in FP8: 1 / 399 tokens/s less 8.5 GB at 4.28 TB/s, divided by 32 layers
constexpr SourcedNumber h200_layer = measured_number(16e-6, "llama-8b in FP8, docs/results/models-on-a-gpu.md");
constexpr SourcedNumber gather_time = assumed_number(6e-6, "goal for exchanges through peer memory");

constexpr std::array projection_table = {
    ProjectionDevice{"h200", assumed_number(141e9, published), h200_bandwidth, h200_products, h200_quantize, h200_layer,
                     gather_time},
    ProjectionDevice{"h100", assumed_number(80e9, published), assumed_number(2.99e12, like_h200),
                     assumed_number(4.41e14, like_h200), assumed_number(4.7e9, like_h200),
                     assumed_number(16e-6, like_h200), gather_time},
    ProjectionDevice{"b200", assumed_number(180e9, published), assumed_number(7.13e12, like_h200),
                     assumed_number(1.0e15, like_h200), assumed_number(4.7e9, like_h200),
                     assumed_number(16e-6, like_h200), gather_time},
    ProjectionDevice{"b300", assumed_number(270e9, published), assumed_number(7.13e12, like_h200),
                     assumed_number(1.0e15, like_h200), assumed_number(4.7e9, like_h200),
                     assumed_number(16e-6, like_h200), gather_time},
    ProjectionDevice{"cpu", assumed_number(256e9, "a host of this size"),
                     assumed_number(2e11, "eight channels of DDR5"), assumed_number(1e12, "32 cores with AVX-512"),
                     measured_number(5.9e9, "NVFP4 with two threads, docs/results/quantizing-speed.md"),
                     assumed_number(20e-6, "no measurement"), assumed_number(1e-4, "sockets of a host")},
};

}  // namespace

std::span<const ProjectionDevice> projection_devices() { return projection_table; }

}  // namespace nibble
