#include "server/digest.h"

#include <sha2.h>

namespace nibble {

std::string sha256_hex(const std::string& data) {
    char digest[SHA256_DIGEST_STRING_LENGTH];
    return SHA256Data(reinterpret_cast<const uint8_t*>(data.data()), data.size(), digest);
}

}  // namespace nibble
