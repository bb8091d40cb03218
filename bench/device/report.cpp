#include "device/report.h"

#include <fstream>

namespace nibble::bench {

Status Report::write(const std::string& path) const {
    if (path.empty()) return Ok{};
    std::ofstream out(path);
    out << json.dump(1) << "\n";
    if (!out.flush()) return fail("cannot write {}", path);
    return Ok{};
}

}  // namespace nibble::bench
