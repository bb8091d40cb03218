#include "cli/calibration_options.h"

#include "cli/usage.h"
#include "jobs/words.h"

namespace nibble {

void add_calibration_flags(CLI::App& command, CalibrationText& text) {
    command.add_option("--calib", text.file,
                       "calibration text: plain, or rows of texts or chats as `nibble data build` reads them (either "
                       "may be gzipped), or .safetensors with input_ids");
    command.add_option("--calib-tokens", text.tokens, "number of tokens to use, from the beginning of the file")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command.add_option("--calib-seq", text.sequence, "most tokens of one sequence")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command.add_option("--calib-range", text.range, "how ranges are chosen: max, percentile:P, or mse (FP8 scales)")
        ->check(read_by(parse_range_rule))
        ->capture_default_str();
    command.add_flag("--calib-all-experts", text.all_experts, "every expert observes every token");
}

void check_calibration_flags(const CLI::App& command, const CalibrationText& text) {
    if (!text.file.empty()) return;
    for (const char* companion :
         {"--calib-tokens", "--calib-seq", "--calib-range", "--calib-all-experts", "--calib-gradients"})
        if (const CLI::Option* option = command.get_option_no_throw(companion); option && option->count() > 0)
            usage_error("{} needs --calib FILE", companion);
}

}  // namespace nibble
