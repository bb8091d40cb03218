// Files compiled for a wider instruction set must not include shared inline functions: the linker keeps one copy of
// such a function, which may be one that this CPU cannot run.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace {

namespace fs = std::filesystem;

void collect(const fs::path& file, const fs::path& root, std::set<std::string>& quoted, std::set<std::string>& system) {
    std::ifstream in(file);
    ASSERT_TRUE(in) << file;
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with("#include ")) continue;
        const char close = line[9] == '<' ? '>' : '"';
        const std::string name = line.substr(10, line.find(close, 10) - 10);
        if (close == '>')
            system.insert(name);
        else if (quoted.insert(name).second)
            collect(root / name, root, quoted, system);
    }
}

TEST(Isolation, InstructionSetFilesIncludePlainDataAndIntrinsicsOnly) {
    const fs::path root = fs::path(NIBBLE_SOURCE_DIR) / "nibble";
    const std::set<std::string> allowed{"immintrin.h", "cstddef", "cstdint", "cstring"};
    int files = 0;
    for (const auto& entry : fs::directory_iterator(root / "kernels/cpu")) {
        const std::string name = entry.path().filename().string();
        if (!name.ends_with("_avx2.cpp") && !name.ends_with("_avx512.cpp")) continue;
        ++files;
        std::set<std::string> quoted, system;
        collect(entry.path(), root, quoted, system);
        EXPECT_TRUE(system.contains("immintrin.h")) << name << ": includes were not found";
        for (const std::string& header : system)
            EXPECT_TRUE(allowed.contains(header)) << name << " includes <" << header << ">";
        for (const std::string& header : quoted)
            if (name.starts_with("quantize_")) {
                EXPECT_TRUE(header.starts_with("kernels/cpu/")) << name << " includes \"" << header << '"';
            }
    }
    EXPECT_GE(files, 2);
}

}  // namespace
