// Numbers in human units, for pages, tables and the terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

std::string human_bytes(int64_t bytes);                      // "1.23 GB"; units are powers of 1000
std::string human_count(int64_t count);                      // "1,234,567"
std::string human_large(int64_t count);                      // "1.23 B", "106 M": parameters of a model
std::string human_seconds(double seconds);                   // "4.2 s", "3 min 12 s", "1 h 05 min"
std::string human_db(double decibels);                       // "20.13", "∞"
std::string human_share(int64_t part, int64_t whole);        // "3.1%", "0", "< 0.0001%"
std::string human_value(double value);                       // 4 significant digits
std::string human_shape(const std::vector<int64_t>& shape);  // "576 × 1536"

}  // namespace nibble
