#include "text/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <memory>

namespace nibble {
namespace {

struct EndInflate {
    void operator()(z_stream* stream) const { ::inflateEnd(stream); }
};

}  // namespace

Result<Unpacked> gunzip(std::string_view packed, size_t limit) {
    constexpr int gzip_only = 16 + MAX_WBITS;
    constexpr size_t step = size_t{1} << 20;
    z_stream stream{};
    if (::inflateInit2(&stream, gzip_only) != Z_OK) return fail("zlib cannot begin");
    const std::unique_ptr<z_stream, EndInflate> end(&stream);
    Unpacked out;
    size_t at = 0;  // of what zlib was given
    for (;;) {
        if (stream.avail_in == 0) {
            const size_t size = std::min(packed.size() - at, step);
            if (size == 0) return fail("ends in the middle of its gzip data");
            stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + at));
            stream.avail_in = static_cast<uInt>(size);
            at += size;
        }
        const size_t old = out.text.size(), room = std::min(step, limit - old);
        if (room == 0) {
            out.cut = true;
            return out;
        }
        out.text.resize(old + room);
        stream.next_out = reinterpret_cast<Bytef*>(out.text.data() + old);
        stream.avail_out = static_cast<uInt>(room);
        const int state = ::inflate(&stream, Z_NO_FLUSH);
        out.text.resize(old + room - stream.avail_out);
        if (state == Z_STREAM_END) {
            const size_t left = stream.avail_in + (packed.size() - at);
            if (left == 0) return out;
            if (::inflateReset(&stream) != Z_OK) return fail("zlib cannot go on");
        } else if (state != Z_OK && state != Z_BUF_ERROR) {
            return fail("is no gzip file, or is damaged{}{}", stream.msg ? ": " : "", stream.msg ? stream.msg : "");
        }
    }
}

}  // namespace nibble
