#include "base/trace.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble {

void Trace::add(std::string name, std::string_view lane, Clock::time_point begin, Clock::time_point end) {
    const std::lock_guard lock(mutex_);
    if (events_.size() >= most_) return;
    auto place = std::ranges::find(lanes_, lane);
    if (place == lanes_.end()) place = lanes_.insert(lanes_.end(), std::string(lane));
    events_.push_back({std::move(name), static_cast<size_t>(place - lanes_.begin()), begin, end});
}

int64_t Trace::spans() const {
    const std::lock_guard lock(mutex_);
    return std::ssize(events_);
}

Json Trace::to_json() const {
    const std::lock_guard lock(mutex_);
    Json list = Json::array();
    for (size_t lane = 0; lane < lanes_.size(); ++lane)
        list.push_back(
            {{"ph", "M"}, {"name", "thread_name"}, {"pid", 1}, {"tid", lane}, {"args", {{"name", lanes_[lane]}}}});
    const auto first = std::ranges::min_element(events_, {}, &Event::begin);
    const auto microseconds = [](Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); };
    for (const Event& e : events_)
        list.push_back({{"ph", "X"},
                        {"name", e.name},
                        {"pid", 1},
                        {"tid", e.lane},
                        {"ts", microseconds(e.begin - first->begin)},
                        {"dur", microseconds(e.end - e.begin)}});
    return {{"traceEvents", std::move(list)}, {"displayTimeUnit", "ms"}};
}

}  // namespace nibble
