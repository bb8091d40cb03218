// The outermost function of the program: prepares the process, and handles exceptions and failed writes to standard
// output.
#pragma once

namespace nibble {

// Opens descriptors 0 to 2 on /dev/null if they are closed (otherwise a file opened later would get their number and
// receive printed text), ignores SIGPIPE and SIGXFSZ (so that the write fails with an error), and calls cli_main(argc,
// argv). Exceptions (no memory, a path with a loop) become one line on stderr and status 1, and so does standard output
// that cannot be written completely; if its reader has closed the pipe, nothing is printed.
int guarded_main(int argc, char** argv);

}  // namespace nibble
