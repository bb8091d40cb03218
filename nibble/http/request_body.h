// The body of a request as Beast's parser fills it: a string that grows with the bytes that came, not with the length
// that the peer announced, and that is counted against what all requests together may hold.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>

#include <atomic>
#include <memory>
#include <string>

namespace nibble {

using BodyBudget = std::shared_ptr<std::atomic<int64_t>>;  // bytes left

// A share of the budget; gives it back when it ends.
class BodyShare {
public:
    explicit BodyShare(BodyBudget budget) : budget_(std::move(budget)) {}
    BodyShare(const BodyShare&) = delete;
    BodyShare& operator=(const BodyShare&) = delete;
    ~BodyShare() {
        if (budget_) *budget_ += taken_;
    }
    bool take(size_t bytes) {
        const auto n = static_cast<int64_t>(bytes);
        if ((*budget_ -= n) < 0) {
            *budget_ += n;
            return false;
        }
        taken_ += n;
        return true;
    }

private:
    BodyBudget budget_;
    int64_t taken_ = 0;
};

struct CountedBody {
    struct value_type {
        std::string text;
        std::shared_ptr<BodyShare> share;
    };
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
                if (!body_.share->take(piece.size())) {
                    error = boost::beast::http::error::buffer_overflow;  // too much of all requests together
                    return n;
                }
                body_.text.append(static_cast<const char*>(piece.data()), piece.size());
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
