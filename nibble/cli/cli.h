// The program. Each subcommand has its own file, registers its flags on a CLI::App and runs one function.
#pragma once

namespace nibble {

// Returns the exit status: 0 success, 1 failure, 2 wrong usage.
int cli_main(int argc, char** argv);

}  // namespace nibble
