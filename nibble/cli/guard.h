// The edge of the program: what it needs from its process before anything else, and what becomes of exceptions and of
// output that could not be written.
#pragma once

namespace nibble {

// Opens descriptors 0 to 2 on /dev/null where they are closed (a file that is opened later would get their numbers, and
// what is printed would go into it), ignores SIGPIPE and SIGXFSZ (the write fails and says why), and calls
// cli_main(argc, argv). Exceptions (no memory, a path with a loop in it) become one line on stderr and status 1, as
// does standard output that cannot be written whole; where its reader has gone, the status alone.
int guarded_main(int argc, char** argv);

}  // namespace nibble
