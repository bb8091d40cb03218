#include "base/mapped_file.h"

#include "base/checked.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nibble {
namespace {

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

void advise(Bytes part, int advice) {
    if (part.empty()) return;
    // madvise wants a page-aligned start; widening to the page is harmless here.
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
    const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size());
    ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

void MappedFile::Unmap::operator()(const void* address) const {
    if (size > 0) ::munmap(const_cast<void*>(address), size);
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
    Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.fd < 0) return fail("{}: cannot open: {}", path.string(), std::strerror(errno));
    struct stat info {};
    if (::fstat(file.fd, &info) != 0) return fail("{}: cannot stat: {}", path.string(), std::strerror(errno));
    if (!S_ISREG(info.st_mode)) return fail("{}: not a regular file", path.string());
    if (info.st_size == 0) return MappedFile(path, nullptr, 0);
    void* address = ::mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, file.fd, 0);
    if (address == MAP_FAILED) return fail("{}: cannot map: {}", path.string(), std::strerror(errno));
    return MappedFile(path, address, info.st_size);
}

void MappedFile::done_with(Bytes part) const { advise(part, MADV_DONTNEED); }

Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit) {
    NIBBLE_TRY(auto file, MappedFile::open(path));
    if (file.bytes().size() > limit)
        return fail("{}: {} bytes, more than the limit of {}", path.string(), file.bytes().size(), limit);
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace nibble
