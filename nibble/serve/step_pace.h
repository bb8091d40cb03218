// How many rows of prompts stretch the time between two tokens of a running answer by no more than is wanted, going by
// the steps before. What a step holds changes no answer: nothing but times depends on these times.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nibble {

class StepPace {
public:
    // A step with running answers takes `stretch` > 1 times as long with prompts as without them, at most; it holds
    // `most` > 0 of their rows at most.
    StepPace(double stretch, int64_t most) : stretch_(stretch), most_(most), rows_(static_cast<double>(most)) {}

    // A step with so many rows of answers and of prompts. What a row of a prompt adds follows from steps of both kinds
    // alone: a step of a kind of its own has other kernels, and the first one of a process whatever a first one takes.
    void see(double seconds, int64_t answers, int64_t prompts) {
        if (!(seconds > 0) || answers == 0) return;
        if (prompts == 0) {
            alone_ = alone_ == 0 ? seconds : alone_ + (seconds - alone_) / 4;
            mixed_steps_ = 0;
            return;
        }
        ++mixed_steps_;
        if (alone_ == 0) return;
        // A row of few costs more than one of many, so a step that was not full says nothing but that it was too long.
        if (static_cast<double>(prompts) < rows_ / 2 && seconds <= stretch_ * alone_) return;
        const double row = (seconds - alone_) / static_cast<double>(prompts);
        const double fit = row > 0 ? (stretch_ - 1) * alone_ / row : 2 * rows_;
        rows_ = std::clamp((rows_ + fit) / 2, std::max<double>(least, rows_ / 2), 2 * rows_);
        rows_ = std::min(rows_, static_cast<double>(most_));
    }
    // Of prompts in the next step, if answers run. Prompts that never end hide what a step takes without them, and more
    // answers take longer: now and then a step has none.
    int64_t rows() const {
        if (mixed_steps_ >= between) return 0;
        return std::max(static_cast<int64_t>(rows_), std::min(least, most_));
    }

private:
    static constexpr int64_t least = 16;    // rows of a product's tile
    static constexpr int64_t between = 32;  // steps with prompts, in front of one without

    double stretch_;
    int64_t most_;
    double rows_;
    double alone_ = 0;  // seconds of a step without prompts; 0: none was seen
    int64_t mixed_steps_ = 0;
};

}  // namespace nibble
