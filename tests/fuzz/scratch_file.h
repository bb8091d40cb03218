// Writes the input to a file, for readers that take a path: one file per process, in memory if the system has such a
// folder.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

class ScratchFile {
public:
    explicit ScratchFile(const std::string& extension) {
        const std::filesystem::path memory = "/dev/shm";
        path_ = (std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path()) /
                ("nibble-fuzz-" + std::to_string(::getpid()) + extension);
    }
    ~ScratchFile() {
        std::error_code ignored;
        std::filesystem::remove(path_, ignored);
    }
    const std::filesystem::path& write(const uint8_t* data, size_t size) const {
        std::FILE* file = std::fopen(path_.c_str(), "wb");
        if (!file || std::fwrite(data, 1, size, file) != size || std::fclose(file) != 0) std::abort();
        return path_;
    }

private:
    std::filesystem::path path_;
};

// Returns tests/data.
inline std::filesystem::path data_folder() { return std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data"; }
