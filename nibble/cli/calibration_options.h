// --calib and related flags: the calibration text of a command, and how it is used.
#pragma once

#include "nibble/calibration_text.h"

#include <CLI/CLI.hpp>

namespace nibble {

void add_calibration_flags(CLI::App& command, CalibrationText& text);
// Call it in a callback of CLI11: a related flag without --calib is a usage error (cli/usage.h).
void check_calibration_flags(const CLI::App& command, const CalibrationText& text);

}  // namespace nibble
