#pragma once
namespace nibble {
struct Later;
struct Twice {
    int a = 0;
    struct Inside {};
};
namespace {
struct Hidden {};
}  // namespace
namespace cuda {
template <int N>
struct Tile {};
struct Alone {
    struct Impl;
};
}  // namespace cuda
}  // namespace nibble
