// Texts packed by gzip (RFC 1952), through zlib.
#pragma once

#include "base/error.h"

#include <memory>
#include <string>
#include <string_view>

struct z_stream_s;

namespace nibble {

struct Unpacked {
    std::string text;
    bool cut = false;  // there is more than `limit` bytes; `text` is the beginning
};

// At most `limit` bytes of the text; a file may hold several members one after the other. What lies behind the limit is
// not looked at. Errors: not gzip, damaged, or ending early.
Result<Unpacked> gunzip(std::string_view packed, size_t limit);

// The same piece by piece, for texts that memory should not hold.
class GunzipStream {
public:
    // `packed` outlives the stream.
    static Result<GunzipStream> begin(std::string_view packed);
    GunzipStream(GunzipStream&&) noexcept;
    GunzipStream& operator=(GunzipStream&&) noexcept;
    ~GunzipStream();

    // Adds at most `most` bytes to `out`, at least one before the end; false: the end. Errors as gunzip().
    Result<bool> read(std::string& out, size_t most);

private:
    struct End {
        void operator()(z_stream_s* stream) const;
    };
    GunzipStream(std::string_view packed, std::unique_ptr<z_stream_s, End> stream);
    std::string_view packed_;
    size_t at_ = 0;  // of what zlib was given
    std::unique_ptr<z_stream_s, End> stream_;
    bool done_ = false;
};

}  // namespace nibble
