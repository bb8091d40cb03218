// The one binary. Each subcommand lives in its own file, registers its flags on a CLI::App and runs one function.
#pragma once

namespace nibble {

// Exit status: 0 done, 1 failed, 2 wrong usage.
int cli_main(int argc, char** argv);

}  // namespace nibble
