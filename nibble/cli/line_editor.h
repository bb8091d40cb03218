// Reads lines that a user types: on a terminal with editing (arrows, Ctrl-A, Ctrl-W ...) and history through libedit,
// otherwise unchanged.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

namespace nibble {

// Returns $XDG_STATE_HOME/nibble/chat_history, else ~/.local/state/nibble/chat_history; empty: neither variable is set.
std::filesystem::path chat_history_file();

class LineEditor {
public:
    enum class End : uint8_t { line, interrupted, end_of_input };

    // `history`: file with lines of earlier sessions, to which new lines are added (readable only by the user; the last
    // 1000 lines). Empty: no file. A file that cannot be read or written is not an error.
    LineEditor(const std::filesystem::path& history, const std::string& prompt);
    ~LineEditor();
    LineEditor(const LineEditor&) = delete;
    LineEditor& operator=(const LineEditor&) = delete;

    bool edits() const;  // returns true if standard input and output are a terminal

    // Reads a line of UTF-8 without its line end. The prompt is shown only on a terminal. If `stop` becomes true
    // (Ctrl-C), the typed text is dropped and the result is `interrupted`.
    End read(std::string& line, const std::atomic<bool>* stop);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace nibble
