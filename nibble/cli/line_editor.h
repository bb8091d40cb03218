// Lines that a person types: edited (arrows, Ctrl-A, Ctrl-W ...) and remembered through libedit on a terminal, read as
// they come elsewhere.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

namespace nibble {

// $XDG_STATE_HOME/nibble/chat_history, else ~/.local/state/nibble/chat_history; empty when neither variable is set.
std::filesystem::path chat_history_file();

class LineEditor {
public:
    enum class End : uint8_t { line, interrupted, end_of_input };

    // `history`: lines of earlier sessions, and where these go (readable by the user only; the last 1000). Empty: they
    // are forgotten at the end. A file that cannot be read or written is no error.
    LineEditor(const std::filesystem::path& history, const std::string& prompt);
    ~LineEditor();
    LineEditor(const LineEditor&) = delete;
    LineEditor& operator=(const LineEditor&) = delete;

    bool edits() const;  // standard input and output are a terminal

    // UTF-8, without the line end. The prompt shows on a terminal only. `stop` becoming true (Ctrl-C) drops what was
    // typed: interrupted.
    End read(std::string& line, const std::atomic<bool>* stop);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace nibble
