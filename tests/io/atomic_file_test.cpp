#include "io/atomic_file.h"

#include "support/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

size_t files_in(const fs::path& folder) {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(AtomicFile, WritesAndReplacesWithoutOtherFiles) {
    test::TempDir dir;
    for (const std::string& text :
         {std::string("first, long"), std::string("2nd"), std::string(), std::string(1 << 20, 'x')}) {
        ASSERT_TRUE(write_file_atomically(dir / "f.json", text).ok());
        EXPECT_EQ(test::read_file(dir / "f.json"), text);
        EXPECT_EQ(files_in(dir.path()), 1u);
    }
}

TEST(AtomicFile, FollowsTheUmask) {
    test::TempDir dir;
    const mode_t old = ::umask(027);
    ASSERT_TRUE(write_file_atomically(dir / "f", "x").ok());
    ::umask(old);
    EXPECT_EQ(fs::status(dir / "f").permissions(), fs::perms(0640));
}

TEST(AtomicFile, AnErrorNamesThePathAndLeavesNoTemporaryFile) {
    test::TempDir dir;
    EXPECT_THAT(write_file_atomically(dir / "no/f", "x").error().message(), HasSubstr("no/"));
    fs::create_directories(dir / "taken/inside");
    EXPECT_THAT(write_file_atomically(dir / "taken", "x").error().message(), HasSubstr("cannot rename"));
    EXPECT_EQ(files_in(dir.path()), 1u);
}

TEST(AtomicFile, ConcurrentWritersLeaveOneCompleteFile) {
    test::TempDir dir;
    std::vector<std::thread> threads;
    for (char c : {'a', 'b', 'c', 'd'})
        threads.emplace_back([&, c] {
            for (int i = 0; i < 10; ++i) EXPECT_TRUE(write_file_atomically(dir / "f", std::string(10'000, c)).ok());
        });
    for (auto& t : threads) t.join();
    const std::string text = test::read_file(dir / "f");
    EXPECT_EQ(text, std::string(10'000, text[0]));
    EXPECT_EQ(files_in(dir.path()), 1u);
}

TEST(AtomicFile, OnlyFilesOfKilledWritersAreRemoved) {
    test::TempDir dir;
    fs::create_directories(dir / "sub");
    for (const char* left : {".a.json.0123456789abcdef.tmp", "sub/.b.ffffffffffffffff.tmp"})
        test::write_file(dir / left, "x");
    const auto kept = {"a.json", ".a.json.0123456789abcdeg.tmp", "a.0123456789abcdef.tmp", ".0123456789abcdef.tmp",
                       ".nibble-lock"};
    for (const char* name : kept) test::write_file(dir / name, "x");
    remove_abandoned_files(dir.path());
    for (const char* name : kept) EXPECT_TRUE(fs::exists(dir / name)) << name;
    EXPECT_EQ(files_in(dir.path()), kept.size() + 1);  // plus the empty folder
    EXPECT_TRUE(fs::is_empty(dir / "sub"));
    remove_abandoned_files(dir / "absent");
}

TEST(AtomicFile, AWriterRemovesFilesOfKilledWritersButNotOfRunningOnes) {
    test::TempDir dir;
    const fs::path left = dir / ".f.0123456789abcdef.tmp", living = dir / ".f.fedcba9876543210.tmp",
                   other = dir / ".g.0123456789abcdef.tmp";
    for (const fs::path& file : {left, living, other}) test::write_file(file, "x");
    const int fd = ::open(living.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(::flock(fd, LOCK_EX), 0);
    ASSERT_TRUE(write_file_atomically(dir / "f", std::string_view("new")).ok());
    EXPECT_FALSE(fs::exists(left));
    EXPECT_TRUE(fs::exists(living));
    EXPECT_TRUE(fs::exists(other));
    ::close(fd);
    EXPECT_EQ(test::read_file(dir / "f"), "new");
}

TEST(AtomicFile, RenamesWithinAndAcrossFolders) {
    test::TempDir dir;
    fs::create_directories(dir / "sub");
    test::write_file(dir / "a", "1");
    ASSERT_TRUE(rename_durably(dir / "a", dir / "b").ok());
    ASSERT_TRUE(rename_durably(dir / "b", dir / "sub/c").ok());
    EXPECT_EQ(test::read_file(dir / "sub/c"), "1");
    EXPECT_THAT(rename_durably(dir / "a", dir / "b").error().message(), HasSubstr("a: cannot rename to"));
}

}  // namespace
}  // namespace nibble
