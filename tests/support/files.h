// Shared by tests: temporary folders, SHA-256, the golden data next to the checkout.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nibble::test {

// A fresh folder, removed with everything in it at the end of the scope.
class TempDir {
public:
    TempDir();
    ~TempDir();
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

private:
    std::filesystem::path path_;
};

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& path, std::string_view text);
std::string read_file(const std::filesystem::path& path);

std::string sha256(std::span<const std::byte> bytes);  // 64 lower-case hexadecimal digits
std::string sha256(std::string_view bytes);

// Returns the path of tests/data/NAME in this repository.
std::filesystem::path test_data(std::string_view name);

}  // namespace nibble::test
