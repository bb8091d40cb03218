// The order of a row's sums, equal for all entries: element j goes to lane j % 16, and a halving tree adds the lanes.
#pragma once

namespace nibble {

inline double lane_total(const double (&lane)[16]) {
    double t[16];
    for (int i = 0; i < 16; ++i) t[i] = lane[i];
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) t[i] += t[i + half];
    return t[0];
}

}  // namespace nibble
