// `nibble chat` on a terminal of its own: Ctrl-C stops an answer and not the session.
#include "support/files.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace nibble::test {
namespace {

using Clock = std::chrono::steady_clock;

class ChatTerminal {
public:
    ChatTerminal() {
        process_ = ::forkpty(&terminal_, nullptr, nullptr, nullptr);
        if (process_ != 0) return;
        // The slowest kernels: an answer takes longer than it takes to interrupt it.
        const std::string model = test_data("chat").string();
        ::execl(NIBBLE_PROGRAM, "nibble", "chat", model.c_str(), "--max-tokens", "900", "--temperature", "0",
                "--kernels", "ref", "--threads", "1", nullptr);
        ::_exit(127);
    }
    ~ChatTerminal() {
        if (process_ > 0) ::kill(process_, SIGKILL), ::waitpid(process_, nullptr, 0);
        if (terminal_ >= 0) ::close(terminal_);
    }

    void type(std::string_view keys) const {
        ASSERT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
    }
    // Reads until `done` is true of what came since the last call.
    template <class Done>
    testing::AssertionResult wait(Done done) {
        std::string text;
        for (const auto end = Clock::now() + std::chrono::seconds(60); Clock::now() < end;) {
            pollfd ready{terminal_, POLLIN, 0};
            char buffer[4096];
            if (::poll(&ready, 1, 100) <= 0) continue;
            const ssize_t n = ::read(terminal_, buffer, sizeof buffer);
            if (n <= 0) break;
            seen_.append(buffer, static_cast<size_t>(n));
            text.append(buffer, static_cast<size_t>(n));
            if (done(text)) return testing::AssertionSuccess();
        }
        return testing::AssertionFailure() << "the terminal shows: " << seen_;
    }
    int exit_status() {
        int status = -1;
        ::waitpid(process_, &status, 0);
        process_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    const std::string& seen() const { return seen_; }

private:
    pid_t process_ = -1;
    int terminal_ = -1;
    std::string seen_;
};

TEST(ChatTerminal, CtrlCStopsTheAnswerNotTheSession) {
    ChatTerminal chat;
    const auto prompt = [](const std::string& text) { return text.ends_with("> "); };
    ASSERT_TRUE(chat.wait(prompt));
    for (const std::string line : {"hello", "and again"}) {
        chat.type(line + "\n");
        // The terminal echoes the line; bytes after it are the answer.
        ASSERT_TRUE(chat.wait([&](const std::string& text) { return text.size() > line.size() + 8; }));
        chat.type("\x03");
        ASSERT_TRUE(chat.wait(prompt));
    }
    EXPECT_EQ(chat.seen().find("[the answer was cut"), std::string::npos) << "it ran to its end: " << chat.seen();
    chat.type("\x03");  // at the prompt: forgiven
    chat.type("/exit\n");
    chat.wait([](const std::string&) { return false; });
    EXPECT_EQ(chat.exit_status(), 0) << chat.seen();
}

}  // namespace
}  // namespace nibble::test
