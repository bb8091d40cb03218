// --calib and its companions: the calibration text of a command, and how it is read.
#pragma once

#include "nibble/calibration_text.h"

#include <CLI/CLI.hpp>

namespace nibble {

void add_calibration_flags(CLI::App& command, CalibrationText& text);
// In a callback of CLI11: a companion without --calib is a usage error (cli/usage.h).
void check_calibration_flags(const CLI::App& command, const CalibrationText& text);

}  // namespace nibble
