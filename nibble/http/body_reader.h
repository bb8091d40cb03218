// A Beast body type that passes every piece to a value as it arrives.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>

#include <string_view>

namespace nibble {

// Value is default-constructible and has `bool take(std::string_view piece)`; false ends the parse with
// buffer_overflow.
template <class Value>
struct BodyOf {
    using value_type = Value;
    class reader {
    public:
        template <bool is_request, class Fields>
        reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}
        void init(const boost::optional<uint64_t>&, boost::beast::error_code& error) { error = {}; }
        template <class Buffers>
        size_t put(const Buffers& buffers, boost::beast::error_code& error) {
            error = {};
            size_t n = 0;
            for (auto at = boost::asio::buffer_sequence_begin(buffers); at != boost::asio::buffer_sequence_end(buffers);
                 ++at) {
                const boost::asio::const_buffer piece = *at;
                if (!body_.take(std::string_view(static_cast<const char*>(piece.data()), piece.size()))) {
                    error = boost::beast::http::error::buffer_overflow;
                    return n;
                }
                n += piece.size();
            }
            return n;
        }
        void finish(boost::beast::error_code& error) { error = {}; }

    private:
        value_type& body_;
    };
};

}  // namespace nibble
