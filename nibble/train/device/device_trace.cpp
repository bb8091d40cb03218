#include "train/device/device_trace.h"

#include "tensor/device_range.h"

#include <chrono>

namespace nibble {

void DeviceTrace::end_range() {
    if (in_range_) pop_device_range();
    in_range_ = false;
}

Status DeviceTrace::mark(Lane lane, std::string_view name, int64_t number, const Stream& stream) {
    std::string text(name);
    if (number >= 0) text += " " + std::to_string(number);
    if (lane == compute) {
        end_range();
        if (!text.empty()) push_device_range(text.c_str());
        in_range_ = !text.empty();
    }
    if (!records()) return Ok{};
    const size_t event = marks_.size();
    if (event == events_.size()) {
        NIBBLE_TRY(Event made, Event::create());
        events_.push_back(std::move(made));
    }
    NIBBLE_CHECK(events_[event].record(stream));
    marks_.push_back({std::move(text), lane, event});
    return Ok{};
}

Status DeviceTrace::land(const Stream& stream) {
    NIBBLE_CHECK(mark(compute, "", -1, stream));
    if (marks_.empty()) return Ok{};
    NIBBLE_CHECK(mark(exchange, "", -1, stream));
    const Event& last = events_[marks_.back().event];
    NIBBLE_CHECK(last.synchronize());
    const auto now = Trace::Clock::now();
    std::array<Trace::Clock::time_point, lanes> end;
    end.fill(now);
    constexpr std::array<std::string_view, lanes> names{"GPU", "GPU, between GPUs"};
    for (size_t i = marks_.size(); i-- > 0;) {
        const Mark& m = marks_[i];
        NIBBLE_TRY(const float before, last.since(events_[m.event]));
        const auto begin =
            now - std::chrono::duration_cast<Trace::Clock::duration>(std::chrono::duration<double, std::milli>(before));
        if (!m.name.empty()) trace_->add(m.name, names[m.lane], begin, end[m.lane]);
        end[m.lane] = begin;
    }
    marks_.clear();
    return Ok{};
}

}  // namespace nibble
