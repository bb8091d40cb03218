#include "text/meter.h"

namespace nibble {

bool Meter::poll() {
    if (steps_ < 0) stop(Limit::steps);
    if (!ok()) return false;
    if (limits_.cancel && limits_.cancel->load(std::memory_order_relaxed)) stop(Limit::cancel);
    if (limits_.deadline && std::chrono::steady_clock::now() >= *limits_.deadline) stop(Limit::deadline);
    poll_below_ = ok() ? next_poll() : 0;
    return ok();
}

Error Meter::error() const {
    switch (limit_) {
        case Limit::bytes:
            return fail("the limit of {} bytes of texts and lists made on the way is reached", limits_.bytes);
        case Limit::depth:
            return fail("the limit of {} nested evaluations is reached", limits_.depth);
        case Limit::tokens:
            return fail("the text has over {} tokens", limits_.tokens);
        case Limit::deadline:
            return fail("the time limit is reached");
        case Limit::cancel:
            return fail(ErrorKind::cancelled, "the work was cancelled");
        default:
            return fail("the limit of {} steps is reached", limits_.steps);
    }
}

}  // namespace nibble
