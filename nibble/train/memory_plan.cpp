#include "train/memory_plan.h"

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

Result<int64_t> most_rows(int64_t rows, int64_t micro_batch, int64_t seq, int64_t most_tokens) {
    const int64_t most = most_tokens / seq;
    if (most < 1) return fail("rows of {} tokens are above the limit of {} on --device cuda", seq, most_tokens);
    if (micro_batch > most)
        return fail("micro_batch: {} rows of {} tokens are above the limit of {} tokens on --device cuda; use {} row{}",
                    micro_batch, seq, most_tokens, most, most == 1 ? "" : "s");
    while (rows > most) rows = (rows + 1) / 2;
    return rows;
}

Error too_much_memory(const TrainMemoryPlan& least, int64_t free) {
    return fail("a step in micro-batches of {} row{} does not fit: {}; {} are free", least.micro_batch,
                least.micro_batch == 1 ? "" : "s", least.text(), gib_of(free));
}

}  // namespace nibble
