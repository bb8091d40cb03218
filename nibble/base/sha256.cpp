#include "base/sha256.h"

#include <sha2.h>

namespace nibble {

std::string sha256_hex(std::string_view bytes) {
    char digest[SHA256_DIGEST_STRING_LENGTH];
    return SHA256Data(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digest);
}

}  // namespace nibble
