#include "text/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <memory>

namespace nibble {

void GunzipStream::End::operator()(z_stream_s* stream) const {
    ::inflateEnd(stream);
    delete stream;
}

GunzipStream::GunzipStream(std::string_view packed, std::unique_ptr<z_stream_s, End> stream)
    : packed_(packed), stream_(std::move(stream)) {}
GunzipStream::GunzipStream(GunzipStream&&) noexcept = default;
GunzipStream& GunzipStream::operator=(GunzipStream&&) noexcept = default;
GunzipStream::~GunzipStream() = default;

Result<GunzipStream> GunzipStream::begin(std::string_view packed) {
    constexpr int gzip_only = 16 + MAX_WBITS;
    auto stream = std::make_unique<z_stream_s>();
    if (::inflateInit2(stream.get(), gzip_only) != Z_OK) return fail("zlib cannot begin");
    return GunzipStream(packed, std::unique_ptr<z_stream_s, End>(stream.release()));
}

Result<bool> GunzipStream::read(std::string& out, size_t most) {
    constexpr size_t step = size_t{1} << 20;
    z_stream& stream = *stream_;
    const size_t old = out.size();
    while (!done_ && out.size() == old && most > 0) {
        if (stream.avail_in == 0) {
            const size_t size = std::min(packed_.size() - at_, step);
            if (size == 0) return fail("ends in the middle of its gzip data");
            stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed_.data() + at_));
            stream.avail_in = static_cast<uInt>(size);
            at_ += size;
        }
        const size_t room = std::min(step, most);
        out.resize(old + room);
        stream.next_out = reinterpret_cast<Bytef*>(out.data() + old);
        stream.avail_out = static_cast<uInt>(room);
        const int state = ::inflate(&stream, Z_NO_FLUSH);
        out.resize(old + room - stream.avail_out);
        if (state == Z_STREAM_END) {
            done_ = stream.avail_in + (packed_.size() - at_) == 0;
            if (!done_ && ::inflateReset(&stream) != Z_OK) return fail("zlib cannot go on");
        } else if (state != Z_OK && state != Z_BUF_ERROR) {
            return fail("is not a gzip file, or is damaged{}{}", stream.msg ? ": " : "", stream.msg ? stream.msg : "");
        }
    }
    return out.size() > old;
}

Result<Unpacked> gunzip(std::string_view packed, size_t limit) {
    NIBBLE_TRY(auto stream, GunzipStream::begin(packed));
    Unpacked out;
    for (;;) {
        if (out.text.size() == limit) {
            out.cut = true;
            return out;
        }
        NIBBLE_TRY(const bool more, stream.read(out.text, limit - out.text.size()));
        if (!more) return out;
    }
}

}  // namespace nibble
