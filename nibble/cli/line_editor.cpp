#include "cli/line_editor.h"

#include "base/utf8.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <iostream>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int most_history_lines = 1000;
// Interval for checking the flag. Another thread may receive Ctrl-C, which does not interrupt a call of this thread.
constexpr int look_again_ms = 100;

// libedit counts columns by the locale's character type. nibble uses UTF-8 everywhere.
void use_utf8_characters() {
    std::setlocale(LC_CTYPE, "");
    if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

std::wstring wide(std::string_view text) {
    std::wstring out;
    for (size_t at = 0; at < text.size();) {
        const Utf8Step step = utf8_step(text, at);
        out += static_cast<wchar_t>(step.code);
        at += step.size;
    }
    return out;
}

struct EndEdit {
    void operator()(EditLine* edit) const { ::el_end(edit); }
};
struct EndHistory {
    void operator()(HistoryW* history) const { ::history_wend(history); }
};

}  // namespace

struct LineEditor::State {
    std::unique_ptr<HistoryW, EndHistory> history;
    std::unique_ptr<EditLine, EndEdit> edit;  // null: not a terminal
    std::string history_file;
    std::wstring prompt;
    const std::atomic<bool>* stop = nullptr;
    bool interrupted = false;

    // Reads one character from the terminal. Returns 1, 0 at the end of input, -1 for Ctrl-C.
    int next_character(wchar_t* out) {
        std::string bytes;
        for (;;) {
            if (stop && *stop) {
                interrupted = true;
                errno = EINTR;
                return -1;
            }
            pollfd ready{STDIN_FILENO, POLLIN, 0};
            if (::poll(&ready, 1, look_again_ms) <= 0) continue;
            char byte = 0;
            const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return 0;
            bytes += byte;
            const Utf8Step step = utf8_step(bytes, 0);
            if (step.cut) continue;
            *out = static_cast<wchar_t>(step.code);
            return 1;
        }
    }

    static State* of(EditLine* edit) {
        void* state = nullptr;
        ::el_wget(edit, EL_CLIENTDATA, &state);
        return static_cast<State*>(state);
    }
    static int read_character(EditLine* edit, wchar_t* out) { return of(edit)->next_character(out); }
    static wchar_t* show_prompt(EditLine* edit) { return of(edit)->prompt.data(); }

    void open(const std::string& text) {
        use_utf8_characters();
        prompt = wide(text);
        history.reset(::history_winit());
        edit.reset(::el_init("nibble", stdin, stdout, stderr));
        if (!history || !edit) {
            edit.reset();
            return;
        }
        HistEventW event;
        ::history_w(history.get(), &event, H_SETSIZE, most_history_lines);
        ::history_w(history.get(), &event, H_SETUNIQUE, 1);
        if (!history_file.empty()) ::history_w(history.get(), &event, H_LOAD, history_file.c_str());
        ::el_wset(edit.get(), EL_CLIENTDATA, static_cast<void*>(this));
        ::el_wset(edit.get(), EL_PROMPT, &State::show_prompt);
        ::el_wset(edit.get(), EL_GETCFN, &State::read_character);
        ::el_wset(edit.get(), EL_EDITOR, L"emacs");
        ::el_wset(edit.get(), EL_HIST, &history_w, history.get());
        ::el_wset(edit.get(), EL_SIGNAL, 0);
        ::el_source(edit.get(), nullptr);  // reads the user's ~/.editrc
    }

    void remember(const wchar_t* line) {
        HistEventW event;
        ::history_w(history.get(), &event, H_ENTER, line);
        if (!history_file.empty()) ::history_w(history.get(), &event, H_SAVE, history_file.c_str());
    }
};

fs::path chat_history_file() {
    const char* state = std::getenv("XDG_STATE_HOME");
    const char* home = std::getenv("HOME");
    if (state && *state == '/') return fs::path(state) / "nibble/chat_history";
    if (home && *home == '/') return fs::path(home) / ".local/state/nibble/chat_history";
    return {};
}

LineEditor::LineEditor(const fs::path& history, const std::string& prompt) : state_(std::make_unique<State>()) {
    if (!::isatty(STDIN_FILENO) || !::isatty(STDOUT_FILENO)) return;
    if (!history.empty()) {
        std::error_code ignored;
        fs::create_directories(history.parent_path(), ignored);
        state_->history_file = history.string();
    }
    state_->open(prompt);
}

LineEditor::~LineEditor() = default;

bool LineEditor::edits() const { return state_->edit != nullptr; }

LineEditor::End LineEditor::read(std::string& line, const std::atomic<bool>* stop) {
    State& s = *state_;
    line.clear();
    if (!s.edit) return std::getline(std::cin, line) ? End::line : End::end_of_input;
    s.stop = stop;
    s.interrupted = false;
    ::el_resize(s.edit.get());
    // libedit shows the prompt before it disables the terminal's line mode. Keys typed in between would be echoed
    // twice, and a Ctrl-D among them would be lost.
    ::el_wset(s.edit.get(), EL_PREP_TERM, 1);
    int count = 0;
    const wchar_t* text = ::el_wgets(s.edit.get(), &count);
    if (s.interrupted) return End::interrupted;
    if (!text || count <= 0) return End::end_of_input;
    for (int i = 0; i < count && text[i] != L'\n'; ++i) utf8_append(line, static_cast<char32_t>(text[i]));
    if (line.find_first_not_of(" \t\r") != line.npos) s.remember(text);
    return End::line;
}

}  // namespace nibble
