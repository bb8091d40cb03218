// What tests share: temporary folders, SHA-256, the golden data beside the checkout.
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

// tests/data/NAME of this repository.
std::filesystem::path test_data(std::string_view name);

// The larger golden sets: $NIBBLE_GOLDEN, or ../shared/golden beside the checkout (also from a git worktree two
// levels deep). Empty when absent, also when NIBBLE_GOLDEN names no folder: use NIBBLE_NEEDS_GOLDEN, which skips.
std::optional<std::filesystem::path> golden_root();

}  // namespace nibble::test

// In a test body: `NIBBLE_NEEDS_GOLDEN(root, "modelopt");` declares root = golden_root()/"modelopt" or skips.
#define NIBBLE_NEEDS_GOLDEN(root, folder)                                                     \
    if (!::nibble::test::golden_root()) GTEST_SKIP() << "no golden data (set NIBBLE_GOLDEN)"; \
    const std::filesystem::path root = *::nibble::test::golden_root() / (folder)
