// The result of a job in the forms that the command line prints.
#pragma once

#include <functional>
#include <string>

namespace nibble {

// Each text is made when its function is called. The functions own their data and may be called from any thread.
struct JobReport {
    std::function<std::string()> text;  // for people: lines that end with \n
    std::function<std::string()> json;  // for programs: one JSON document
};

}  // namespace nibble
