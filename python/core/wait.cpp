#include "core/wait.h"

#include "core/gil.h"

namespace nibble::python {

JobHooks JobWatch::hooks() {
    JobHooks hooks;
    hooks.progress = [this](const Progress& p) {
        const std::lock_guard lock(mutex_);
        if (!numbers_) numbers_.emplace();
        numbers_->phase = p.phase;
        numbers_->item = p.item;
        numbers_->unit = p.unit;
        numbers_->done = p.done;
        numbers_->total = p.total;
    };
    const auto line = [this](const char* kind) {
        return [this, kind](std::string_view text) {
            const std::lock_guard lock(mutex_);
            lines_.emplace_back(kind, text);
        };
    };
    hooks.warn = line("warning");
    hooks.note = line("note");
    hooks.stop_requested = &stop_;
    return hooks;
}

void JobWatch::add_event(std::string json) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(json));
    changed_.notify_all();
}

bool JobWatch::in_caller(const std::function<void()>& call) {
    std::unique_lock lock(mutex_);
    if (left_) return false;
    call_ = &call;
    changed_.notify_all();
    changed_.wait(lock, [&] { return left_ || !call_; });
    return std::exchange(call_, nullptr) == nullptr;
}

void JobWatch::deliver(const JobCallbacks& callbacks) {
    std::optional<Numbers> numbers;
    std::vector<std::pair<const char*, std::string>> lines;
    std::vector<std::string> events;
    {
        const std::lock_guard lock(mutex_);
        std::swap(numbers, numbers_);
        std::swap(lines, lines_);
        std::swap(events, events_);
    }
    for (const auto& [kind, text] : lines)
        if (!callbacks.line.is_none()) callbacks.line(kind, nb::str(text.data(), text.size()));
    if (numbers && !callbacks.progress.is_none())
        callbacks.progress(nb::str(numbers->phase.c_str()), nb::str(numbers->item.c_str()), numbers->done,
                           numbers->total, nb::str(numbers->unit.c_str()));
    for (const std::string& event : events)
        if (!callbacks.event.is_none() && nb::cast<bool>(nb::bool_(callbacks.event(nb::str(event.c_str())))))
            stop_ = true;
    if (!callbacks.cancel.is_none() && nb::cast<bool>(nb::bool_(callbacks.cancel.attr("is_set")()))) stop_ = true;
}

void JobWatch::make_call() {
    const std::function<void()>* call = nullptr;
    {
        const std::lock_guard lock(mutex_);
        call = call_;
    }
    if (!call) return;
    (*call)();
    const std::lock_guard lock(mutex_);
    call_ = nullptr;
    changed_.notify_all();
}

void JobWatch::run(const std::function<void()>& work, const JobCallbacks& callbacks) {
    note_threads();
    std::thread worker([&] {
        set_float_control();
        work();
        const std::lock_guard lock(mutex_);
        done_ = true;
        changed_.notify_all();
    });
    const auto join = [&] {
        const WithoutGil released;
        worker.join();
    };
    try {
        for (bool done = false; !done;) {
            {
                const WithoutGil released;
                std::unique_lock lock(mutex_);
                if (!done_ && events_.empty() && !call_) changed_.wait_for(lock, std::chrono::milliseconds(20));
                done = done_;
            }
            if (PyErr_CheckSignals() != 0) raise_set();
            deliver(callbacks);
            make_call();
        }
    } catch (...) {
        {
            const std::lock_guard lock(mutex_);
            stop_ = left_ = true;
            changed_.notify_all();
        }
        join();
        throw;
    }
    join();
}

}  // namespace nibble::python
