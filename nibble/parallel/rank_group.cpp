#include "parallel/rank_group.h"

#include "http/address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

// The first message of a rank. The length and bytes of its identity, or of the address where it listens, follow.
struct Hello {
    char magic[8] = {'n', 'i', 'b', 'r', 'a', 'n', 'k', '1'};
    int32_t rank = 0, size = 0;
    uint64_t identity_bytes = 0, address_bytes = 0;
};
constexpr uint64_t most_hello_bytes = uint64_t{1} << 20;

class Socket {
public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Socket() {
        if (fd_ >= 0) ::close(fd_);
    }
    int number() const { return fd_; }
    int give() { return std::exchange(fd_, -1); }

private:
    int fd_ = -1;
};

// Reads exactly `bytes` bytes before `end`. False: the peer closed, sent nothing in time or failed.
bool read_whole(int fd, void* to, size_t bytes, Clock::time_point end) {
    auto* at = static_cast<char*>(to);
    while (bytes > 0) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
        pollfd ready{fd, POLLIN, 0};
        if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) return false;
        const ssize_t n = ::recv(fd, at, bytes, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n <= 0) return false;
        at += n, bytes -= static_cast<size_t>(n);
    }
    return true;
}

bool write_whole(int fd, const void* from, size_t bytes, Clock::time_point end) {
    const auto* at = static_cast<const char*>(from);
    while (bytes > 0) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
        pollfd ready{fd, POLLOUT, 0};
        if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) return false;
        const ssize_t n = ::send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n <= 0) return false;
        at += n, bytes -= static_cast<size_t>(n);
    }
    return true;
}

bool write_text(int fd, const std::string& text, Clock::time_point end) {
    const uint64_t size = text.size();
    return write_whole(fd, &size, sizeof size, end) && write_whole(fd, text.data(), text.size(), end);
}

bool read_text(int fd, std::string& text, Clock::time_point end) {
    uint64_t size = 0;
    if (!read_whole(fd, &size, sizeof size, end) || size > most_hello_bytes) return false;
    text.resize(size);
    return read_whole(fd, text.data(), size, end);
}

bool say_hello(int fd, int rank, int size, const std::string& identity, const std::string& address,
               Clock::time_point end) {
    const Hello hello{.rank = rank, .size = size, .identity_bytes = identity.size(), .address_bytes = address.size()};
    return write_whole(fd, &hello, sizeof hello, end) && write_whole(fd, identity.data(), identity.size(), end) &&
           write_whole(fd, address.data(), address.size(), end);
}

struct Heard {
    Hello hello;
    std::string identity, address;
};

// Reads the hello of a peer. False: not a rank of nibble; other programs may connect to the port.
bool hear_hello(int fd, Heard& heard, Clock::time_point end) {
    const Hello like;
    if (!read_whole(fd, &heard.hello, sizeof heard.hello, end)) return false;
    const Hello& h = heard.hello;
    if (std::memcmp(h.magic, like.magic, sizeof like.magic) != 0) return false;
    if (h.identity_bytes > most_hello_bytes || h.address_bytes > most_hello_bytes) return false;
    heard.identity.resize(h.identity_bytes);
    heard.address.resize(h.address_bytes);
    return read_whole(fd, heard.identity.data(), h.identity_bytes, end) &&
           read_whole(fd, heard.address.data(), h.address_bytes, end);
}

// Accepts a connection; returns no socket if none arrives before `end`.
Socket accepted(int listener, Clock::time_point end) {
    while (true) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
        pollfd ready{listener, POLLIN, 0};
        if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) return {};
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) return Socket(fd);
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) return {};
    }
}

// Retries until the address accepts a connection or `end` has passed.
Result<Socket> connected(const HttpAddress& address, Clock::time_point end) {
    while (true) {
        auto fd = connect_to(address, std::chrono::milliseconds(1000));
        if (fd.ok()) return Socket(*fd);
        if (Clock::now() > end) return std::move(fd).error();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

// Returns the local host address of the connection `fd`.
std::string own_host(int fd) {
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size);
    char text[64] = "127.0.0.1";
    if (name.ss_family == AF_INET)
        ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&name)->sin_addr, text, sizeof text);
    if (name.ss_family == AF_INET6)
        ::inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(&name)->sin6_addr, text, sizeof text);
    return text;
}

}  // namespace

struct RankGroup::Peer {
    Socket socket;
};

// The bytes that one other rank is sent, and those that it sends.
struct RankGroup::Transfer {
    int rank = 0;
    bool sends = true, receives = true;
    std::span<const std::byte> out;
    std::span<std::byte> into;  // if `fixed`: where the bytes go, which must have this size
    bool fixed = false;
    RankBytes in;                            // otherwise
    uint64_t out_header = 0, in_header = 0;  // the kind of the exchange in the upper eight bits, then the size
    size_t sent = 0, received = 0;           // includes the header
    Clock::time_point heard{};

    bool sending() const { return sends && sent < sizeof out_header + out.size(); }
    bool receiving() const {
        return receives && received < sizeof in_header + (received < sizeof in_header ? 1 : room());
    }
    // Sends a part of what is left; returns what send() returns.
    ssize_t send_some(int fd) {
        constexpr size_t header = sizeof out_header;
        const char* from = sent < header ? reinterpret_cast<const char*>(&out_header) + sent
                                         : reinterpret_cast<const char*>(out.data()) + (sent - header);
        const size_t rest = sent < header ? header - sent : header + out.size() - sent;
        const ssize_t n = ::send(fd, from, rest, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) sent += static_cast<size_t>(n);
        return n;
    }
    bool done() const { return !sending() && !receiving(); }
    bool closed = false;  // the other rank closed the connection after the transfer
    size_t room() const { return fixed ? into.size() : in.size(); }
    std::byte* to() { return fixed ? into.data() : in.data(); }
};

constexpr int kind_shift = 56;

RankGroup::RankGroup(int rank, int size, const Options& options)
    : rank_(rank), size_(size), options_(options), peers_(static_cast<size_t>(size)) {}
RankGroup::~RankGroup() = default;

Result<std::unique_ptr<RankGroup>> RankGroup::meet(const RankPlace& place, const Options& options) {
    std::unique_ptr<RankGroup> group(new RankGroup(place.rank, place.size, options));
    if (place.alone()) return group;
    NIBBLE_CHECK(place.rank == 0 ? group->meet_first(place) : group->meet_others(place));
    if (options.silence.count() > 0) NIBBLE_CHECK(group->begin_beat(place));
    return group;
}

Status RankGroup::adopt(int fd, int rank) {
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // fails for unix sockets, which is harmless
    peers_[static_cast<size_t>(rank)].socket = Socket(fd);
    return Ok{};
}

// Rank 0 accepts all other ranks, then sends each the addresses of the others, or the reason why the group fails.
Status RankGroup::meet_first(const RankPlace& place) {
    const auto end = Clock::now() + options_.meeting;
    NIBBLE_TRY(HttpUrl url, parse_url(place.address));
    NIBBLE_TRY(const int fd, listen_at(url.address));
    const Socket listener(fd);
    std::vector<std::string> addresses(static_cast<size_t>(size_));
    std::string trouble;
    for (int there = 1; there < size_;) {
        Socket one = accepted(fd, end);
        if (one.number() < 0) {
            trouble = fmt::format("only {} of {} ranks came to {} within {} s", there, size_, place.address,
                                  options_.meeting.count() / 1000);
            break;
        }
        Heard heard;
        if (!hear_hello(one.number(), heard, std::min(end, Clock::now() + std::chrono::seconds(10)))) continue;
        const int rank = heard.hello.rank;
        if (heard.hello.size != size_)
            trouble = fmt::format("rank {} knows of {} ranks, rank 0 of {}", rank, heard.hello.size, size_);
        else if (rank < 1 || rank >= size_ || peers_[static_cast<size_t>(rank)].socket.number() >= 0)
            trouble = fmt::format("two ranks are number {}", rank);
        else if (heard.identity != options_.identity)
            trouble = fmt::format("rank {} is of another job: {} there, {} in rank 0", rank, heard.identity,
                                  options_.identity);
        if (!trouble.empty()) {
            write_text(one.number(), trouble, end);
            break;
        }
        addresses[static_cast<size_t>(rank)] = heard.address;
        NIBBLE_CHECK(adopt(one.give(), rank));
        ++there;
    }
    for (int r = 1; r < size_; ++r) {
        const int to = peers_[static_cast<size_t>(r)].socket.number();
        if (to < 0) continue;
        write_text(to, trouble, end);
        for (int other = 1; trouble.empty() && other < r; ++other)
            write_text(to, addresses[static_cast<size_t>(other)], end);
    }
    if (!trouble.empty()) return fail("{}", trouble);
    return Ok{};
}

// Other ranks connect to rank 0, then to lower ranks, and accept connections of higher ranks.
Status RankGroup::meet_others(const RankPlace& place) {
    const auto end = Clock::now() + options_.meeting;
    NIBBLE_TRY(const HttpUrl url, parse_url(place.address));
    NIBBLE_TRY(Socket first, connected(url.address, end));
    HttpAddress own;
    if (!url.address.unix_path.empty())
        own.unix_path = fmt::format("{}.{}", url.address.unix_path, rank_);
    else
        own.host = own_host(first.number());
    NIBBLE_TRY(const int fd, listen_at(own));
    const Socket listener(fd);
    const int zero = first.number();
    std::string trouble;
    if (!say_hello(zero, rank_, size_, options_.identity, to_text(own), end) || !read_text(zero, trouble, end))
        return fail("rank 0 at {} has ended", place.address);
    if (!trouble.empty()) return fail("{}", trouble);
    std::vector<std::string> addresses(static_cast<size_t>(rank_));
    for (int r = 1; r < rank_; ++r)
        if (!read_text(zero, addresses[static_cast<size_t>(r)], end))
            return fail("rank 0 at {} has ended", place.address);
    NIBBLE_CHECK(adopt(first.give(), 0));
    for (int r = 1; r < rank_; ++r) {
        NIBBLE_TRY(const HttpUrl there, parse_url(addresses[static_cast<size_t>(r)]));
        NIBBLE_TRY(Socket one, connected(there.address, end));
        if (!say_hello(one.number(), rank_, size_, options_.identity, "", end)) return fail("rank {} has ended", r);
        NIBBLE_CHECK(adopt(one.give(), r));
    }
    for (int missing = size_ - 1 - rank_; missing > 0;) {
        Socket one = accepted(fd, end);
        if (one.number() < 0) return fail("{} ranks above {} did not connect", missing, rank_);
        Heard heard;
        if (!hear_hello(one.number(), heard, std::min(end, Clock::now() + std::chrono::seconds(10)))) continue;
        const int rank = heard.hello.rank;
        if (rank <= rank_ || rank >= size_ || heard.identity != options_.identity ||
            peers_[static_cast<size_t>(rank)].socket.number() >= 0)
            continue;
        NIBBLE_CHECK(adopt(one.give(), rank));
        --missing;
    }
    if (!own.unix_path.empty()) ::unlink(own.unix_path.c_str());
    return Ok{};
}

// Connects every other rank with rank 0 a second time.
Status RankGroup::begin_beat(const RankPlace& place) {
    const auto end = Clock::now() + options_.meeting;
    std::vector<RankBeat::Connection> connections;
    if (rank_ == 0) {
        NIBBLE_TRY(const HttpUrl url, parse_url(place.address));
        HttpAddress own;
        if (!url.address.unix_path.empty())
            own.unix_path = url.address.unix_path + ".beat";
        else
            own.host = own_host(peers_[1].socket.number());
        NIBBLE_TRY(const int fd, listen_at(own));
        const Socket listener(fd);
        const std::string address = to_text(own);
        const auto* bytes = reinterpret_cast<const std::byte*>(address.data());
        NIBBLE_CHECK(share({bytes, bytes + address.size()}));
        std::vector<Socket> of(static_cast<size_t>(size_));
        for (int missing = size_ - 1; missing > 0;) {
            Socket one = accepted(fd, end);
            if (one.number() < 0) return fail("{} of {} ranks did not connect a second time", missing, size_);
            Heard heard;
            if (!hear_hello(one.number(), heard, std::min(end, Clock::now() + std::chrono::seconds(10)))) continue;
            const int rank = heard.hello.rank;
            if (rank < 1 || rank >= size_ || heard.identity != options_.identity ||
                of[static_cast<size_t>(rank)].number() >= 0)
                continue;
            of[static_cast<size_t>(rank)] = std::move(one);
            --missing;
        }
        if (!own.unix_path.empty()) ::unlink(own.unix_path.c_str());
        for (int r = 1; r < size_; ++r) connections.push_back({r, of[static_cast<size_t>(r)].give()});
    } else {
        NIBBLE_TRY(const RankBytes bytes, share({}));
        NIBBLE_TRY(const HttpUrl there,
                   parse_url(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())));
        NIBBLE_TRY(Socket one, connected(there.address, end));
        if (!say_hello(one.number(), rank_, size_, options_.identity, "", end)) return ended(0);
        connections.push_back({0, one.give()});
    }
    beat_ = std::make_unique<RankBeat>(std::move(connections), options_.silence);
    return Ok{};
}

// Runs all transfers concurrently: two ranks that both send first cannot deadlock.
Status RankGroup::run(Kind kind, std::vector<Transfer>& transfers, bool waits_long) {
    if (broken_) return *broken_;
    int lost = kind == Kind::record && rank_ == 0 ? first_ended() : -1;  // a record waits for no answer
    const Status done = lost < 0 ? transfer(kind, transfers, waits_long, lost) : Status(ended(lost));
    if (done.ok()) return done;
    broken_ = done.error();
    if (lost < 0) return done;
    // The others learn which rank ended first. Bytes in the middle of a message would be taken for its rest.
    const uint64_t note = uint64_t{static_cast<uint8_t>(Kind::lost)} << kind_shift | static_cast<uint64_t>(lost);
    for (int r = 0; r < size_; ++r) {
        const auto t = std::ranges::find(transfers, r, &Transfer::rank);
        const int fd = peers_[static_cast<size_t>(r)].socket.number();
        if (fd < 0 || r == lost) continue;
        while (t != transfers.end() && t->sent > 0 && t->sending() && t->send_some(fd) > 0) {
        }
        if (t == transfers.end() || t->sent == 0 || !t->sending())
            ::send(fd, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    return done;
}

Error RankGroup::ended(int rank) const {
    return fail("rank {} of {} has ended; its own message has the reason", rank, size_);
}

int RankGroup::noted(int fd) const {
    std::byte bytes[1 << 16];
    uint64_t note = 0;
    const ssize_t n = ::recv(fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    if (n < static_cast<ssize_t>(sizeof note) || n == static_cast<ssize_t>(sizeof bytes)) return -1;
    std::memcpy(&note, bytes + n - sizeof note, sizeof note);
    const uint64_t rank = note & ((uint64_t{1} << kind_shift) - 1);
    const bool is_note = note >> kind_shift == static_cast<uint8_t>(Kind::lost) && rank < static_cast<uint64_t>(size_);
    return is_note ? static_cast<int>(rank) : -1;
}

Error RankGroup::stands_still(int rank) const {
    return fail("rank {} of {} stands still: it has sent nothing for {} s", rank, size_,
                options_.silence.count() / 1000);
}

Status RankGroup::transfer(Kind kind, std::vector<Transfer>& transfers, bool waits_long, int& lost) {
    constexpr uint64_t size_bits = (uint64_t{1} << kind_shift) - 1;
    const uint64_t kind_bits = uint64_t{static_cast<uint8_t>(kind)} << kind_shift;
    for (Transfer& t : transfers) {
        t.out_header = kind_bits | t.out.size();
        t.heard = Clock::now();
    }
    std::vector<pollfd> waits;
    std::vector<Transfer*> of;
    while (true) {
        waits.clear(), of.clear();
        int left = 0;  // transfers that are not done
        for (Transfer& t : transfers) {
            const int events = (t.sending() ? POLLOUT : 0) | (t.receiving() ? POLLIN : 0);
            left += events != 0;
            if (t.closed) continue;
            waits.push_back({peers_[static_cast<size_t>(t.rank)].socket.number(),
                             static_cast<short>(events ? events : POLLRDHUP), 0});
            of.push_back(&t);
        }
        if (left == 0) break;
        if (::poll(waits.data(), waits.size(), 1000) < 0 && errno != EINTR)
            return fail("poll: {}", std::strerror(errno));
        for (size_t i = 0; i < waits.size(); ++i) {
            Transfer& t = *of[i];
            const int fd = waits[i].fd;
            const auto gone = [&] {
                const int told = noted(fd);
                lost = told < 0 ? t.rank : told;
                return ended(lost);
            };
            if (t.done()) {
                // It may have ended because the job has, or because it found that another rank ended.
                if (waits[i].revents == 0) continue;
                if (noted(fd) >= 0) return gone();
                t.closed = true;
                continue;
            }
            if (waits[i].revents & POLLIN) {
                constexpr size_t header = sizeof t.in_header;
                char* to = t.received < header ? reinterpret_cast<char*>(&t.in_header) + t.received
                                               : reinterpret_cast<char*>(t.to()) + (t.received - header);
                const size_t room = t.received < header ? header - t.received : header + t.room() - t.received;
                const ssize_t n = ::recv(fd, to, room, 0);
                if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return gone();
                if (n > 0) {
                    t.heard = Clock::now();
                    t.received += static_cast<size_t>(n);
                    if (t.received == header) {
                        const uint64_t size = t.in_header & size_bits;
                        if (t.in_header >> kind_shift == static_cast<uint8_t>(Kind::lost)) {
                            lost = static_cast<int>(size);
                            return ended(lost);
                        }
                        if ((t.in_header & ~size_bits) != kind_bits || (t.fixed && size != t.into.size()))
                            return fail("rank {} of {} is at another exchange than rank {}: one of them has failed",
                                        t.rank, size_, rank_);
                        if (!t.fixed) t.in.resize(size);
                    }
                }
            } else if (waits[i].revents & (POLLERR | POLLHUP | POLLNVAL)) {
                return gone();
            }
            if (waits[i].revents & POLLOUT) {
                const ssize_t n = t.send_some(fd);
                if (n < 0 && errno != EAGAIN && errno != EINTR) return gone();
            }
        }
        if (const int still = silent(); still >= 0) {
            lost = still;
            return stands_still(still);
        }
        for (const Transfer& t : transfers)
            if (!waits_long && t.receiving() && Clock::now() - t.heard > options_.patience)
                return fail("rank {} of {} has sent nothing for {} s", t.rank, size_, options_.patience.count() / 1000);
    }
    return Ok{};
}

Status RankGroup::gather_into(std::span<const std::byte> own, std::span<const std::span<std::byte>> of) {
    std::vector<Transfer> transfers;
    for (int r = 0; r < size_; ++r)
        if (r != rank_)
            transfers.push_back({.rank = r, .out = own, .into = of[static_cast<size_t>(r)], .fixed = true, .in = {}});
    return run(Kind::gather, transfers);
}

Status RankGroup::send_record(std::span<const std::byte> record) {
    std::vector<Transfer> transfers;
    for (int r = 1; r < size_; ++r)
        transfers.push_back({.rank = r, .receives = false, .out = record, .into = {}, .in = {}});
    return run(Kind::record, transfers);
}

Result<RankBytes> RankGroup::next_record() {
    std::vector<Transfer> transfers(1);
    transfers[0].sends = false;
    NIBBLE_CHECK(run(Kind::record, transfers, true));
    return std::move(transfers[0].in);
}

int RankGroup::first_ended() const {
    for (int r = 0; r < size_; ++r) {
        const int fd = peers_[static_cast<size_t>(r)].socket.number();
        if (fd < 0) continue;
        char byte = 0;
        const ssize_t n = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return r;
    }
    return -1;
}

Status RankGroup::alive() const {
    if (const int rank = first_ended(); rank >= 0) return ended(rank);
    if (const int rank = silent(); rank >= 0) return stands_still(rank);
    return Ok{};
}

Result<std::vector<RankBytes>> RankGroup::exchange(std::vector<RankBytes> to) {
    if (std::ssize(to) != size_) return fail("bytes for {} of {} ranks", to.size(), size_);
    std::vector<Transfer> transfers;
    for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        transfers.push_back({.rank = r, .out = to[static_cast<size_t>(r)], .into = {}, .in = {}});
    }
    NIBBLE_CHECK(run(Kind::exchange, transfers));
    for (Transfer& t : transfers) to[static_cast<size_t>(t.rank)] = std::move(t.in);
    return to;
}

Result<std::vector<RankBytes>> RankGroup::gather(RankBytes own) {
    std::vector<RankBytes> to(static_cast<size_t>(size_), own);
    return exchange(std::move(to));
}

Result<RankBytes> RankGroup::share(RankBytes of_first) {
    std::vector<RankBytes> to(static_cast<size_t>(size_));
    if (rank_ == 0) std::ranges::fill(to, of_first);
    NIBBLE_TRY(auto from, exchange(std::move(to)));
    return std::move(from[0]);
}

Result<bool> RankGroup::any(bool mine) {
    NIBBLE_TRY(const auto all, gather({mine ? std::byte{1} : std::byte{0}}));
    return std::ranges::any_of(all, [](const RankBytes& one) { return one == RankBytes{std::byte{1}}; });
}

}  // namespace nibble
