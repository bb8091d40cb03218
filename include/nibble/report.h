// The result of a job as the command line prints it.
#pragma once

#include <functional>
#include <string>

namespace nibble {

// Both are made when they are called. They hold what they need and may be called from any thread.
struct JobReport {
    std::function<std::string()> text;  // for people: lines that end with \n
    std::function<std::string()> json;  // for programs: one JSON document
};

}  // namespace nibble
