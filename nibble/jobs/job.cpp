#include "jobs/job.h"

#include "base/map_faults.h"

#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

namespace nibble {

Error error_of_exception() {
    try {
        throw;
    } catch (const std::bad_alloc&) {
        return fail(ErrorKind::memory, "out of memory");
    } catch (const std::filesystem::filesystem_error& e) {
        return Error(e.what(), ErrorKind::file);
    } catch (const std::system_error& e) {
        if (e.code() == std::errc::resource_unavailable_try_again)
            return fail(ErrorKind::memory, "out of memory: the system starts no further thread");
        return Error(e.what());
    } catch (const std::exception& e) {
        return Error(e.what());
    } catch (...) {
        return Error("unknown exception");
    }
}

Status check_inputs_unchanged() { return check_maps().as(ErrorKind::file); }

}  // namespace nibble
