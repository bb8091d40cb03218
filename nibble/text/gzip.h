// Decompression of gzip (RFC 1952) through zlib.
#pragma once

#include "base/error.h"

#include <memory>
#include <string>
#include <string_view>

struct z_stream_s;

namespace nibble {

struct Unpacked {
    std::string text;
    bool cut = false;  // the text is longer than `limit` bytes; `text` is its beginning
};

// Decompresses at most `limit` bytes. A file may have several members. Data after the limit is not checked. Errors: not
// gzip, damaged, truncated.
Result<Unpacked> gunzip(std::string_view packed, size_t limit);

// Decompresses piece by piece, for texts that are too large for memory.
class GunzipStream {
public:
    // `packed` outlives the stream.
    static Result<GunzipStream> begin(std::string_view packed);
    GunzipStream(GunzipStream&&) noexcept;
    GunzipStream& operator=(GunzipStream&&) noexcept;
    ~GunzipStream();

    // Appends between 1 and `most` bytes to `out`; returns false at the end. Errors as gunzip().
    Result<bool> read(std::string& out, size_t most);

private:
    struct End {
        void operator()(z_stream_s* stream) const;
    };
    GunzipStream(std::string_view packed, std::unique_ptr<z_stream_s, End> stream);
    std::string_view packed_;
    size_t at_ = 0;  // bytes of packed_ passed to zlib
    std::unique_ptr<z_stream_s, End> stream_;
    bool done_ = false;
};

}  // namespace nibble
