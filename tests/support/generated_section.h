// Checks pages of docs/ with a section that is generated from the program's tables.
#pragma once

#include "support/files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace nibble::test {

// Expects that the lines of docs/PAGE between "<!-- begin NAME" and "<!-- end NAME" equal `text`. If the environment
// variable NIBBLE_UPDATE_DOCS is set, writes them instead.
inline void expect_generated_section(const std::string& page, const std::string& name, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(NIBBLE_SOURCE_DIR) / "docs" / page;
    std::string whole = read_file(file);
    const size_t mark = whole.find("<!-- begin " + name), begin = whole.find('\n', mark) + 1;
    const size_t end = whole.find("<!-- end " + name, begin);
    ASSERT_TRUE(mark != whole.npos && end != whole.npos) << page << " has no section " << name;
    if (std::getenv("NIBBLE_UPDATE_DOCS")) {
        whole.replace(begin, end - begin, text);
        write_file(file, whole);
        return;
    }
    EXPECT_EQ(whole.substr(begin, end - begin), text)
        << page << " is not what the table of keys says; run this test with NIBBLE_UPDATE_DOCS=1";
}

}  // namespace nibble::test
