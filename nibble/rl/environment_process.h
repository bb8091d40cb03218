// One environment process, connected by a socket that is its standard input and output.
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
    ~EnvironmentProcess();  // kills the process group and waits for the process

    int descriptor() const { return socket_; }
    // send() and receive() do as much as is possible without blocking. After an error the process is unusable.
    Status send(std::string_view& rest);       // removes the sent bytes from `rest`
    Result<bool> receive(int64_t most_bytes);  // true: a complete line has arrived
    bool has_spoken() const;                   // true: receive() or take_line() would return bytes
    std::string take_line();                   // without the line end; requires that a complete line has arrived

private:
    EnvironmentProcess(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

    pid_t pid_ = -1;
    int socket_ = -1;  // connected to the process's standard input and output
    std::string received_;
};

}  // namespace nibble
