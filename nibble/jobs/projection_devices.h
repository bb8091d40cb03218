// The constants of `nibble plan`: one row per device, with the source of every number.
#pragma once

#include <span>
#include <string_view>

namespace nibble {

// A number and where it comes from: a page of docs/results, or an assumption.
struct SourcedNumber {
    double value;
    bool measured;
    std::string_view source;
};

struct ProjectionDevice {
    std::string_view name;
    SourcedNumber memory_bytes;
    SourcedNumber bandwidth;         // bytes/s of a copy in device memory
    SourcedNumber products;          // operations/s of BF16 products in a prefill
    SourcedNumber quantize;          // bytes of BF16 weights/s of a whole job, its files in memory
    SourcedNumber layer_seconds;     // time of a decoding step in addition to its memory traffic, per layer
    SourcedNumber exchange_seconds;  // time of a gather between 2 ranks of a host; the formula scales it
};

std::span<const ProjectionDevice> projection_devices();

}  // namespace nibble
