// Starts programs, which usually end together with this process, however it ends.
#pragma once

#include "base/error.h"

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace nibble {

struct ChildProgram {
    struct Redirection {
        int to;    // descriptor of the child
        int from;  // descriptor of this process; null_device: /dev/null
    };
    static constexpr int null_device = -1;

    std::vector<std::string> words;         // the program, looked up in PATH when it has no slash, and its arguments
    std::vector<Redirection> redirections;  // applied in this order; descriptors without FD_CLOEXEC are inherited
    std::optional<std::vector<std::string>> variables;  // "NAME=value"; empty: those of this process
    // A process group of its own: kill(-pid) reaches what the program starts, and Ctrl-C does not reach the program.
    // SIGPIPE and SIGINT have their default action and no signal is blocked.
    bool own_group = false;
    // The kernel kills the program (SIGKILL) when this process ends, also by SIGKILL.
    bool ends_with_parent = true;
};

// Starts the program and returns its process id, which the caller waits for. With ends_with_parent, programs that the
// program itself starts are not killed. Thread-safe. The thread that calls may end before the program does. Error: the
// program cannot be started, with the system's reason alone.
Result<pid_t> start_child(const ChildProgram& program);

}  // namespace nibble
