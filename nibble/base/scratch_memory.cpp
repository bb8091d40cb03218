#include "base/scratch_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nibble {
namespace {

// Creates an unnamed file with all blocks reserved: a full disk is an error here instead of a SIGBUS later.
Result<int> reserved_file(size_t bytes, const std::filesystem::path& folder) {
    int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) {  // some file systems cannot create files without a name
        std::string name = (folder / ".nibble-scratch-XXXXXX").string();
        file = ::mkostemp(name.data(), O_CLOEXEC);
        if (file >= 0) ::unlink(name.c_str());
    }
    if (file < 0) return fail("{}: cannot make a scratch file: {}", folder.string(), std::strerror(errno));
    if (const int problem = ::posix_fallocate(file, 0, static_cast<off_t>(bytes)); problem != 0) {
        ::close(file);
        return fail("{}: no room for {} bytes of scratch: {}", folder.string(), bytes, std::strerror(problem));
    }
    return file;
}

}  // namespace

void ScratchMemory::Unmap::operator()(void* address) const {
    if (address) ::munmap(address, size);
}

Result<ScratchMemory> ScratchMemory::create(size_t bytes, size_t limit, const std::filesystem::path& folder) {
    const size_t size = bytes ? bytes : 1;
    const bool spill = bytes > limit;
    int file = -1;
    if (spill) {
        NIBBLE_TRY(file, reserved_file(size, folder));
    }
    void* address =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, spill ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file, 0);
    const int problem = errno;
    if (file >= 0) ::close(file);
    if (address == MAP_FAILED) return fail("no memory for {} bytes: {}", size, std::strerror(problem));
    return ScratchMemory(address, size, spill);
}

}  // namespace nibble
