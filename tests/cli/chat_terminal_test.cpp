// `nibble chat` on a pseudo terminal: Ctrl-C stops an answer but not the session, and lines can be edited and recalled.
#include "support/files.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>

namespace nibble::test {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

// Writes the model of tests/data/chat with a context that no machine fills during the test (each of the last tokens
// attends to half a million others) and without end tokens, so that only Ctrl-C ends an answer.
void write_endless_model(const fs::path& folder) {
    fs::copy(test_data("chat"), folder);
    fs::permissions(folder, fs::perms::owner_all);
    const auto edit = [&](const char* name, const std::string& from, const std::string& to) {
        std::string text = read_file(folder / name);
        const size_t at = text.find(from);
        ASSERT_NE(at, text.npos) << name << " has no longer " << from;
        fs::remove(folder / name);
        write_file(folder / name, text.replace(at, from.size(), to));
    };
    edit("config.json", "\"max_position_embeddings\": 1024", "\"max_position_embeddings\": 524288");
    edit("config.json", ",\n \"eos_token_id\": 271", "");
    edit("tokenizer_config.json", "\"eos_token\": \"<mask>\",", "");
}

class ChatTerminal {
public:
    explicit ChatTerminal(const fs::path& folder) {
        const std::string model = (folder / "model").string(), state = (folder / "state").string();
        process_ = ::forkpty(&terminal_, nullptr, nullptr, nullptr);
        if (process_ != 0) return;
        ::setenv("XDG_STATE_HOME", state.c_str(), 1);
        ::setenv("HOME", state.c_str(), 1);
        ::setenv("TERM", "xterm", 1);
        ::execl(NIBBLE_PROGRAM, "nibble", "chat", model.c_str(), "--context", "524288", "--max-tokens", "1000000000",
                "--temperature", "0", "--kernels", "ref", "--threads", "1", nullptr);
        ::_exit(127);
    }
    ~ChatTerminal() {
        if (process_ > 0) ::kill(process_, SIGKILL), ::waitpid(process_, nullptr, 0);
        if (terminal_ >= 0) ::close(terminal_);
    }

    void type(std::string_view keys) const {
        ASSERT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
    }
    // Reads until `taken` finds its text in the output that no earlier call consumed; it returns the number of bytes to
    // consume.
    template <class Taken>
    testing::AssertionResult wait(Taken taken) {
        for (const auto end = Clock::now() + std::chrono::seconds(60); Clock::now() < end;) {
            if (const size_t bytes = taken(unread_)) {
                unread_.erase(0, bytes);
                return testing::AssertionSuccess();
            }
            pollfd ready{terminal_, POLLIN, 0};
            char buffer[4096];
            if (::poll(&ready, 1, 100) <= 0) continue;
            const ssize_t n = ::read(terminal_, buffer, sizeof buffer);
            if (n <= 0) break;
            seen_.append(buffer, static_cast<size_t>(n));
            unread_.append(buffer, static_cast<size_t>(n));
        }
        return testing::AssertionFailure() << "the terminal shows: " << seen_;
    }
    // Only at the beginning of a line, because an answer may contain "> ".
    testing::AssertionResult wait_for_prompt() {
        return wait([](const std::string& text) {
            return text == "> " || text.ends_with("\n> ") || text.ends_with("\r> ") ? text.size() : 0;
        });
    }
    // Waits for the echo of the typed line, followed by more output.
    testing::AssertionResult wait_for_answer() {
        return wait([&](const std::string& text) {
            const size_t echo = text.find('\n');
            return echo != text.npos && text.size() > echo + 8 ? text.size() : 0;
        });
    }
    testing::AssertionResult wait_for(const std::string& words) {
        return wait([&](const std::string& text) {
            const size_t at = text.find(words);
            return at == text.npos ? 0 : at + words.size();
        });
    }
    // Waits up to a minute; a session that still runs is killed.
    int exit_status() {
        wait([](const std::string&) { return size_t{0}; });  // reads the rest of the output
        int status = -1;
        pid_t ended = 0;
        for (int i = 0; i < 100 && (ended = ::waitpid(process_, &status, WNOHANG)) == 0; ++i) ::usleep(10'000);
        if (ended == 0) {
            ::kill(process_, SIGKILL);
            ::waitpid(process_, &status, 0);
        }
        process_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    const std::string& seen() const { return seen_; }

private:
    pid_t process_ = -1;
    int terminal_ = -1;
    std::string seen_, unread_;
};

struct ChatTerminalTest : testing::Test {
    ChatTerminalTest() { write_endless_model(folder / "model"); }
    TempDir folder;
};

TEST_F(ChatTerminalTest, CtrlCStopsTheAnswerNotTheSession) {
    ChatTerminal chat(folder.path());
    ASSERT_TRUE(chat.wait_for_prompt());
    for (const std::string line : {"hello", "and again"}) {
        chat.type(line + "\n");
        ASSERT_TRUE(chat.wait_for_answer());
        chat.type("\x03");
        ASSERT_TRUE(chat.wait_for_prompt());
    }
    EXPECT_EQ(chat.seen().find("[the answer was cut"), std::string::npos) << "it ran to its end: " << chat.seen();
    for (int i = 0; i < 3; ++i) {  // at the prompt, it drops the line, any number of times
        chat.type("half a line\x03");
        ASSERT_TRUE(chat.wait_for_prompt());
    }
    chat.type("/exit\n");
    EXPECT_EQ(chat.exit_status(), 0) << chat.seen();
}

TEST_F(ChatTerminalTest, LinesAreEditedAndRemembered) {
    {
        ChatTerminal chat(folder.path());
        ASSERT_TRUE(chat.wait_for_prompt());
        chat.type("help\x01/\n");  // Ctrl-A: moves to the beginning of the line
        ASSERT_TRUE(chat.wait_for("/reset    starts a new conversation"));
        ASSERT_TRUE(chat.wait_for_prompt());
        chat.type("/rest\n");
        ASSERT_TRUE(chat.wait_for("unknown command '/rest'; did you mean '/reset'? (see /help)"));
        ASSERT_TRUE(chat.wait_for_prompt());
        chat.type("a \xC3\xA4 to remember\n");
        ASSERT_TRUE(chat.wait_for_answer());
        chat.type("\x03");
        ASSERT_TRUE(chat.wait_for_prompt());
        chat.type("\x04");  // Ctrl-D: ends the session
        EXPECT_EQ(chat.exit_status(), 0) << chat.seen();
    }
    const fs::path history = folder / "state/nibble/chat_history";
    ASSERT_TRUE(fs::exists(history));
    EXPECT_EQ(fs::status(history).permissions() & (fs::perms::group_all | fs::perms::others_all), fs::perms::none);
    ChatTerminal chat(folder.path());
    ASSERT_TRUE(chat.wait_for_prompt());
    chat.type("\x10");  // Ctrl-P: recalls the previous line
    EXPECT_TRUE(chat.wait_for("a \xC3\xA4 to remember"));
    chat.type("\x15/exit\n");  // Ctrl-U: deletes the line
    EXPECT_EQ(chat.exit_status(), 0) << chat.seen();
}

}  // namespace
}  // namespace nibble::test
