// One process that judges answers, with a line to it and a line from it.
#pragma once

#include "base/error.h"

#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace nibble {

class EnvironmentProcess {
public:
    // Error: the program cannot be started.
    static Result<EnvironmentProcess> start(std::span<const std::string> command);
    EnvironmentProcess(EnvironmentProcess&& other) noexcept;
    EnvironmentProcess& operator=(EnvironmentProcess&& other) noexcept;
    ~EnvironmentProcess();  // kills the process and its group, and waits for it

    int descriptor() const { return socket_; }
    // Both work as far as they can without waiting; an error means that the process is of no more use.
    Status send(std::string_view& rest);       // removes from `rest` what was sent
    Result<bool> receive(int64_t most_bytes);  // true: a whole line is there
    bool has_spoken() const;                   // bytes are there that receive() or take_line() would return
    std::string take_line();                   // without its end; precondition: a whole line is there

private:
    EnvironmentProcess(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

    pid_t pid_ = -1;
    int socket_ = -1;  // its standard input and output
    std::string received_;
};

}  // namespace nibble
