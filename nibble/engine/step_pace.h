// Limits the prompt rows of a step so that they lengthen the time between two tokens of a running answer by at most a
// given factor, estimated from earlier steps. Affects only times, never the contents of answers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nibble {

class StepPace {
public:
    // stretch: a step with running answers and prompt rows may take at most `stretch` > 1 times as long as one without
    // prompt rows. most: > 0, most prompt rows of such a step.
    StepPace(double stretch, int64_t most) : stretch_(stretch), most_(most), rows_(static_cast<double>(most)) {}

    // Records a step with these numbers of answer and prompt rows. The cost of a prompt row is computed only from these
    // two kinds of steps (answers with and without prompts): other steps use other kernels, and the first step of a
    // process has unusual costs.
    void see(double seconds, int64_t answers, int64_t prompts) {
        if (!(seconds > 0) || answers == 0) return;
        if (prompts == 0) {
            alone_ = alone_ == 0 ? seconds : alone_ + (seconds - alone_) / 4;
            mixed_steps_ = 0;
            return;
        }
        ++mixed_steps_;
        if (alone_ == 0) return;
        // In a small step, a prompt row costs more than in a large one. A step that was not full therefore only shows
        // whether it took too long.
        if (static_cast<double>(prompts) < rows_ / 2 && seconds <= stretch_ * alone_) return;
        const double row = (seconds - alone_) / static_cast<double>(prompts);
        const double fit = row > 0 ? (stretch_ - 1) * alone_ / row : 2 * rows_;
        rows_ = std::clamp((rows_ + fit) / 2, std::max<double>(least, rows_ / 2), 2 * rows_);
        rows_ = std::min(rows_, static_cast<double>(most_));
    }
    // Returns the most prompt rows of the next step if answers run. It is 0 now and then, because steps without prompts
    // must be measured again: they become slower with more answers.
    int64_t rows() const {
        if (mixed_steps_ >= between) return 0;
        return std::max(static_cast<int64_t>(rows_), std::min(least, most_));
    }

private:
    static constexpr int64_t least = 16;    // rows of a product's tile
    static constexpr int64_t between = 32;  // steps with prompts between two without

    double stretch_;
    int64_t most_;
    double rows_;
    double alone_ = 0;  // seconds of a step without prompts; 0: none was measured
    int64_t mixed_steps_ = 0;
};

}  // namespace nibble
