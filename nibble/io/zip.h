// Lists the files of a ZIP archive that stores them without compression, as torch.save() does. Archives over 4 GB
// (ZIP64) are read; compressed, encrypted and split ones are errors.
#pragma once

#include "base/error.h"
#include "base/mapped_file.h"

#include <string_view>
#include <vector>

namespace nibble {

struct ZipEntry {
    std::string_view name;
    Bytes data;
};

// Views refer to `bytes`. Source of the format: PKWARE's APPNOTE.TXT.
Result<std::vector<ZipEntry>> list_zip(Bytes bytes);

}  // namespace nibble
