// The tiny reference models of tests/data/golden/families.tar.gz.
#pragma once

#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace nibble::test {

// Unpacks the archive once per process. Returns the folder that has a folder per family.
inline const std::filesystem::path& family_root() {
    static const TempDir folder;
    static const bool unpacked = [] {
        const std::string command =
            fmt::format("tar -xzf '{}' -C '{}'", test_data("golden/families.tar.gz").string(), folder.path().string());
        return std::system(command.c_str()) == 0;
    }();
    EXPECT_TRUE(unpacked);
    return folder.path();
}

}  // namespace nibble::test
