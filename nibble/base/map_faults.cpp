#include "base/map_faults.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace nibble {
namespace {

// Read by the signal handler, which must not lock or allocate.
struct Watched {
    std::atomic<uintptr_t> begin{0}, end{0};  // begin 0: the entry is free
    std::atomic<bool> failed{false};
};

constexpr size_t most_maps = 8192;
std::array<Watched, most_maps> watched;
std::atomic<size_t> used{0};  // number of entries ever used
std::atomic<bool> any_failed{false};

std::mutex mutex;                                     // guards `paths` and changes of `watched`
std::array<std::string, most_maps>* paths = nullptr;  // never freed: maps may outlive static objects
int scopes = 0;                                       // number of running jobs
std::string* first_failed = nullptr;                  // path of a map that was removed since
struct sigaction before;
uintptr_t page_size = 4096;

// Replaces the page at `at`, where the file is too short, by zeros. Other pages of the map stay, because they may be in
// use.
bool replace_page(uintptr_t at) {
    const size_t n = used.load(std::memory_order_acquire);
    for (size_t i = 0; i < n; ++i) {
        const uintptr_t begin = watched[i].begin.load(std::memory_order_acquire), end = watched[i].end.load();
        if (begin == 0 || at < begin || at >= end) continue;
        const uintptr_t page = at / page_size * page_size;
        if (::mmap(reinterpret_cast<void*>(page), page_size, PROT_READ,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
            return false;
        watched[i].failed.store(true);
        any_failed.store(true);
        return true;
    }
    return false;
}

void on_bus_error(int number, siginfo_t* info, void* context) {
    const int saved = errno;
    const bool ours = info->si_code == BUS_ADRERR && replace_page(reinterpret_cast<uintptr_t>(info->si_addr));
    errno = saved;
    if (ours) return;
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else {
        ::signal(SIGBUS, SIG_DFL);  // the access is repeated and then ends the process as usual
    }
}

void install() {
    page_size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    paths = new std::array<std::string, most_maps>;
    first_failed = new std::string;
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    ::sigaction(SIGBUS, &action, &before);
}

}  // namespace

bool watch_map(const void* address, size_t size, const std::string& path) {
    static std::once_flag once;
    std::call_once(once, install);
    const std::lock_guard lock(mutex);
    size_t place = 0;
    while (place < most_maps && watched[place].begin.load() != 0) ++place;
    if (place == most_maps) return false;
    (*paths)[place] = path;
    const auto begin = reinterpret_cast<uintptr_t>(address);
    watched[place].failed.store(false);
    watched[place].end.store((begin + size + page_size - 1) / page_size * page_size);
    watched[place].begin.store(begin, std::memory_order_release);
    if (place >= used.load()) used.store(place + 1, std::memory_order_release);
    return true;
}

void forget_map(const void* address) {
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < used.load(); ++i) {
        if (watched[i].begin.load() != reinterpret_cast<uintptr_t>(address)) continue;
        if (watched[i].failed.load() && first_failed->empty()) *first_failed = (*paths)[i];
        watched[i].begin.store(0);
        return;
    }
}

MapFaultScope::MapFaultScope() {
    const std::lock_guard lock(mutex);
    if (scopes++ > 0 || !any_failed.load()) return;
    first_failed->clear();
    bool failed = false;
    for (size_t i = 0; i < used.load(); ++i)
        failed = failed || (watched[i].begin.load() != 0 && watched[i].failed.load());
    any_failed.store(failed);
}

MapFaultScope::~MapFaultScope() {
    const std::lock_guard lock(mutex);
    --scopes;
}

Status hold_pages(std::span<const std::byte> part) {
    const std::lock_guard lock(mutex);
    const auto from = reinterpret_cast<uintptr_t>(part.data()), to = from + part.size();
    for (size_t i = 0; i < used.load() && !part.empty(); ++i) {
        const uintptr_t map_begin = watched[i].begin.load(), map_end = watched[i].end.load();
        if (map_begin == 0 || from < map_begin || to > map_end) continue;
        const uintptr_t begin = from / page_size * page_size;
        const size_t size = (to - begin + page_size - 1) / page_size * page_size;
        // Shared memory: after done_with() drops pages, their contents can still be read again.
        void* const copy = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (copy == MAP_FAILED) return fail(ErrorKind::memory, "{}: no memory for {} bytes of it", (*paths)[i], size);
        std::memcpy(copy, reinterpret_cast<const void*>(begin), size);
        ::mprotect(copy, size, PROT_READ);
        if (::mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void*>(begin)) == MAP_FAILED) {
            ::munmap(copy, size);
            return fail("{}: {} bytes of it cannot be held", (*paths)[i], size);
        }
    }
    return Ok{};
}

Status check_maps() {
    if (!any_failed.load(std::memory_order_relaxed)) return Ok{};
    const std::lock_guard lock(mutex);
    std::string path = *first_failed;
    for (size_t i = 0; i < used.load() && path.empty(); ++i)
        if (watched[i].begin.load() != 0 && watched[i].failed.load()) path = (*paths)[i];
    return fail(ErrorKind::file, "{}: became shorter while it was read", path);
}

}  // namespace nibble
