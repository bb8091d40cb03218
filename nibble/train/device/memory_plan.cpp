#include "train/device/memory_plan.h"

namespace nibble {

std::string gib_of(int64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }

int64_t TrainMemoryPlan::total() const {
    int64_t sum = 0;
    for (const Item& item : items) sum += item.bytes;
    return sum;
}

std::string TrainMemoryPlan::text() const {
    std::string out;
    for (const Item& item : items)
        if (item.bytes > 0) out += fmt::format("{} {}, ", item.name, gib_of(item.bytes));
    return out + fmt::format("together {}", gib_of(total()));
}

Error too_much_memory(const TrainMemoryPlan& least, int64_t free) {
    return fail("a step in micro-batches of {} row{} does not fit: {}; {} are free", least.micro_batch,
                least.micro_batch == 1 ? "" : "s", least.text(), gib_of(free));
}

}  // namespace nibble
