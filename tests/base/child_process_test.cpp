// Children end with the process that started them, whichever thread started them and however the process ends.
#include "base/child_process.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nibble {
namespace {

int status_of(pid_t child) {
    int status = -1;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string text_until_end(int descriptor) {
    std::string text;
    std::array<char, 256> buffer{};
    for (ssize_t got = 0; (got = ::read(descriptor, buffer.data(), buffer.size())) > 0;)
        text.append(buffer.data(), static_cast<size_t>(got));
    return text;
}

// Standard output of `program`.
std::string printed(ChildProgram program) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    program.redirections.push_back({1, ends[1]});
    const auto child = start_child(program);
    ::close(ends[1]);
    EXPECT_TRUE(child.ok()) << child.error().message();
    std::string text = text_until_end(ends[0]);
    ::close(ends[0]);
    EXPECT_EQ(status_of(*child), 0);
    return text;
}

TEST(ChildProcess, GetsArgumentsVariablesAndDescriptors) {
    EXPECT_EQ(printed({.words = {"sh", "-c", "echo \"$0 $1\"", "a b", "c"}}), "a b c\n");
    EXPECT_EQ(printed({.words = {"/bin/sh", "-c", "echo $COLOUR"}, .variables = {{"COLOUR=red"}}}), "red\n");
    EXPECT_EQ(printed({.words = {"cat"}, .redirections = {{0, ChildProgram::null_device}}}), "");
}

TEST(ChildProcess, FailuresAreErrors) {
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{}, {""}, {"no-such-program-here"}, {"/no/such/program"}, {"/etc/passwd"}, {"/"}}) {
        const auto child = start_child({.words = words});
        EXPECT_FALSE(child.ok());
        if (child.ok()) status_of(*child);
    }
}

TEST(ChildProcess, TheThreadThatStartedItMayEnd) {
    for (const bool own_group : {false, true}) {
        Result<pid_t> child = fail("not started");
        int ends[2];
        ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        std::thread([&] {
            child = start_child({.words = {"cat"}, .redirections = {{0, ends[0]}}, .own_group = own_group});
        }).join();
        ASSERT_TRUE(child.ok()) << child.error().message();
        ::close(ends[0]);
        ::close(ends[1]);  // the end of its input, not a signal, ends cat
        EXPECT_EQ(status_of(*child), 0);
    }
}

// A process starts a child that ignores the end of its input, and is killed.
TEST(ChildProcess, EndsWithAKilledParent) {
    for (const bool own_group : {false, true}) {
        int alive[2], ready[2];
        ASSERT_EQ(::pipe2(alive, O_CLOEXEC), 0);
        ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
        const pid_t parent = ::fork();
        ASSERT_GE(parent, 0);
        if (parent == 0) {
            ::close(alive[0]);
            const auto child = start_child({.words = {"sh", "-c", "echo ready; while :; do sleep 1; done"},
                                            .redirections = {{1, ready[1]}, {9, alive[1]}},
                                            .own_group = own_group});
            if (!child.ok()) ::_exit(1);
            while (true) ::pause();
        }
        ::close(alive[1]);
        ::close(ready[1]);
        char byte = 0;
        ASSERT_EQ(::read(ready[0], &byte, 1), 1);
        ASSERT_EQ(::kill(parent, SIGKILL), 0);
        EXPECT_EQ(status_of(parent), -SIGKILL);
        // The shell's `sleep 1` also holds the pipe, for at most a second.
        pollfd watched{alive[0], POLLIN, 0};
        EXPECT_EQ(::poll(&watched, 1, 60'000), 1);
        EXPECT_EQ(::read(alive[0], &byte, 1), 0) << "the child still runs";
        ::close(alive[0]);
        ::close(ready[0]);
    }
}

}  // namespace
}  // namespace nibble
