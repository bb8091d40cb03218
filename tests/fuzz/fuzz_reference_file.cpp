// Input: a cache of reference log-probabilities. It must be refused with one line, or give a file whose windows are
// read (possible values of a model) or refused with one line, and which can be continued.
#include "eval/reference_file.h"
#include "message.h"
#include "scratch_file.h"

#include <cmath>

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const ScratchFile scratch(".ref");
    static const ReferenceShape shape{4, {2, 1, 3}, {{"model", "m"}, {"text", "t"}}};
    auto file = ReferenceFile::open(scratch.write(data, size), shape);
    if (!file.ok()) {
        require_message(file.error());
        return 0;
    }
    require(file->windows() >= 0 && file->windows() <= 3 && file->complete() == (file->windows() == 3));
    for (int64_t w = 0; w < file->windows(); ++w) {
        std::vector<float> rows(static_cast<size_t>(4 * shape.rows[static_cast<size_t>(w)]));
        const Status read = file->read(w, rows);
        if (!read.ok())
            require_message(read.error());
        else
            for (const float x : rows) require(std::isfinite(x) && x < 1);
    }
    while (!file->complete()) {
        const int64_t w = file->windows();
        const std::vector<float> rows(static_cast<size_t>(4 * shape.rows[static_cast<size_t>(w)]), -1.5f);
        require(file->append(rows).ok());
        std::vector<float> found(rows.size());
        require(file->read(w, found).ok() && found == rows);
    }
    return 0;
}
