#include "quant/meter.h"

#include <cinttypes>
#include <cstdio>

namespace nibble {

MemoryUse memory_use() {
    MemoryUse use;
    std::FILE* file = std::fopen("/proc/self/status", "re");
    if (!file) return use;
    char line[256];
    int64_t kib = 0;
    while (std::fgets(line, sizeof line, file)) {
        if (std::sscanf(line, "RssAnon: %" SCNd64, &kib) == 1) use.anonymous = kib * 1024;
        if (std::sscanf(line, "VmHWM: %" SCNd64, &kib) == 1) use.peak_resident = kib * 1024;
    }
    std::fclose(file);
    return use;
}

void ProgressMeter::add(int64_t bytes, std::string_view item) {
    done_ += bytes;
    const auto now = static_cast<int64_t>(seconds() * 1e3);
    int64_t due = next_ms_.load(std::memory_order_relaxed);
    if (now < due || !next_ms_.compare_exchange_strong(due, now + 50)) return;
    // If another thread is reporting, this one does not wait.
    if (std::unique_lock lock(mutex_, std::try_to_lock); lock) tell(item);
}

void ProgressMeter::warn(std::string_view text) {
    std::lock_guard lock(mutex_);
    if (hooks_.warn) hooks_.warn(text);
}

void ProgressMeter::finish() {
    std::lock_guard lock(mutex_);
    tell({});
}

void ProgressMeter::tell(std::string_view item) {
    peak_anonymous_ = std::max(peak_anonymous_, memory_use().anonymous);
    if (hooks_.progress) hooks_.progress({phase_, item, done_, total_, unit_});
}

}  // namespace nibble
