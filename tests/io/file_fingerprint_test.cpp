#include "io/file_fingerprint.h"

#include "support/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace nibble {
namespace {

// Overwrites a file and restores its time.
void overwrite(const std::filesystem::path& path, const std::string& text) {
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    test::write_file(path, text);
    const timespec times[]{info.st_atim, info.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST(FileFingerprint, AFileOverwrittenInPlaceWithItsOldTimeIsAnotherFile) {
    test::TempDir dir;
    for (const size_t size : {size_t{1}, size_t{4096}, size_t{65'537}, size_t{200'000}, size_t{5'000'000}}) {
        test::write_file(dir / "f", std::string(size, 'a'));
        const auto before = file_fingerprint(dir / "f");
        ASSERT_TRUE(before.ok()) << before.error().message();
        EXPECT_EQ(*file_fingerprint(dir / "f"), *before);
        overwrite(dir / "f", std::string(size, 'b'));
        EXPECT_NE(*file_fingerprint(dir / "f"), *before) << size;
        overwrite(dir / "f", std::string(size, 'a'));
        EXPECT_EQ(*file_fingerprint(dir / "f"), *before) << size;
        std::string end(size, 'a');
        end.back() = 'b';
        overwrite(dir / "f", end);
        EXPECT_NE(*file_fingerprint(dir / "f"), *before) << size;
    }
    test::write_file(dir / "f", "");
    EXPECT_TRUE(file_fingerprint(dir / "f").ok());
    EXPECT_FALSE(file_fingerprint(dir / "absent").ok());
    EXPECT_FALSE(file_fingerprint(dir.path()).ok());
}

}  // namespace
}  // namespace nibble
