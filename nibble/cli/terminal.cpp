#include "cli/terminal.h"

#include "base/utf8.h"
#include "page/numbers.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>

namespace nibble {
namespace {

// A signal handler can only use globals; this is the only one in the program.
std::atomic<bool> stop_flag{false};

void on_interrupt(int) {
    stop_flag = true;
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
}

int terminal_width() {
    winsize size{};
    return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 100;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

void say(std::string_view line) {
    const std::string whole = fmt::format("{}\n", line);  // one write, so that lines of several threads are not mixed
    std::fwrite(whole.data(), 1, whole.size(), stderr);
}

std::string progress_line(const Progress& p, double seconds, int width) {
    const double rate = seconds > 0 ? static_cast<double>(p.done) / seconds : 0;
    const int64_t percent = p.total > 0 ? p.done * 100 / p.total : 100;
    std::string line =
        p.unit.empty()
            ? fmt::format("{:<9} {:3} %  {} of {}  {}/s", p.phase, percent, human_bytes(p.done), human_bytes(p.total),
                          human_bytes(static_cast<int64_t>(rate)))
            : fmt::format("{:<9} {:3} %  {} of {} {}  {:.3g}/s", p.phase, percent, p.done, p.total, p.unit, rate);
    if (rate > 0 && p.done < p.total) line += fmt::format("  {} left", human_seconds(double(p.total - p.done) / rate));
    line += fmt::format("  {}", printable(p.item));
    if (static_cast<int>(line.size()) > width) line.resize(static_cast<size_t>(width));
    return line;
}

namespace {

void print_note(std::string_view line) { say(fmt::format("nibble: {}", printable(line))); }
void print_warning(std::string_view line) { say(fmt::format("nibble: warning: {}", printable(line))); }

}  // namespace

JobHooks printing_hooks(bool quiet) {
    JobHooks hooks{.warn = print_warning};
    if (!quiet) hooks.note = print_note;
    return hooks;
}

struct Console::State {
    bool quiet = false, no_notes = false, terminal = false, on_line = false;
    std::string phase;
    double phase_start = 0, last_print = 0;
};

Console::Console(bool quiet, bool no_notes) : state_(std::make_unique<State>()) {
    state_->quiet = quiet;
    state_->no_notes = no_notes;
    state_->terminal = ::isatty(STDERR_FILENO);
}

Console::~Console() {
    end_line();
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
}

void Console::end_line() {
    if (state_->on_line) std::fputc('\n', stderr);
    state_->on_line = false;
}

JobHooks Console::hooks() {
    stop_flag = false;
    std::signal(SIGINT, on_interrupt);
    std::signal(SIGTERM, on_interrupt);
    JobHooks hooks;
    hooks.stop_requested = &stop_flag;
    hooks.warn = [this](std::string_view text) {
        end_line();
        print_warning(text);
    };
    if (!state_->no_notes)
        hooks.note = [this](std::string_view text) {
            end_line();
            print_note(text);
        };
    if (state_->quiet) return hooks;
    hooks.progress = [this](const Progress& progress) {
        State& s = *state_;
        const double time = now();
        if (s.phase != progress.phase) {
            end_line();
            s.phase = progress.phase;
            s.phase_start = time;
            s.last_print = s.terminal ? 0 : time;  // logs get a line every few seconds, and none for short phases
        }
        const bool finished = progress.done >= progress.total;
        if (time - s.last_print < (s.terminal ? 0.1 : 5.0) && !(finished && s.terminal)) return;
        s.last_print = time;
        const std::string line = progress_line(progress, time - s.phase_start, s.terminal ? terminal_width() - 1 : 160);
        std::fprintf(stderr, s.terminal ? "\r\033[K%s" : "%s\n", line.c_str());
        std::fflush(stderr);
        s.on_line = s.terminal;
    };
    return hooks;
}

}  // namespace nibble
