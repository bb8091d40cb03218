#include "data/shard.h"

#include "base/map_faults.h"

#include <xxhash.h>

#include <fcntl.h>
#include <array>
#include <cstring>
#include <limits>

namespace nibble {
namespace {

constexpr size_t shard_buffer_bytes = size_t{4} << 20;
using ShardHeaderWords = std::array<int32_t, token_shard_header_bytes / 4>;

int64_t count_of(const ShardHeaderWords& words) {
    if (words[1] == 1) return words[2];
    int64_t count;
    std::memcpy(&count, &words[4], sizeof(count));
    return count;
}

}  // namespace

Result<TokenShard> TokenShard::open(const std::filesystem::path& path) {
    NIBBLE_TRY(MappedFile file, MappedFile::open(path));
    const Bytes bytes = file.bytes();
    const auto size = static_cast<int64_t>(bytes.size());
    ShardHeaderWords words{};
    if (size < token_shard_header_bytes)
        return fail("{}: is not a token shard: has {} bytes, but the header needs {}", path.string(), size,
                    token_shard_header_bytes);
    std::memcpy(words.data(), bytes.data(), sizeof(words));
    if (words[0] != token_shard_magic)
        return fail("{}: is not a token shard: begins with {} instead of {}", path.string(), words[0],
                    token_shard_magic);
    if (words[1] != 1 && words[1] != 2)
        return fail("{}: token shard of version {}; only versions 1 and 2 are supported", path.string(), words[1]);
    const int width = words[1] == 1 ? 2 : 4;
    const int64_t tokens = count_of(words), room = (size - token_shard_header_bytes) / width;
    if (tokens < 0) return fail("{}: its header has {} tokens", path.string(), tokens);
    if (tokens != room || (size - token_shard_header_bytes) % width != 0)
        return fail("{}: its header has {} tokens of {} bytes, but the file has {} bytes: {}", path.string(), tokens,
                    width, size - token_shard_header_bytes, tokens > room ? "the file was truncated" : "it is longer");
    return TokenShard(std::move(file), tokens, width);
}

Status TokenShard::read(int64_t begin, std::span<TokenId> out, int64_t vocab) const {
    const std::byte* from = file_.bytes().data() + token_shard_header_bytes + begin * width_;
    TokenId largest = 0;
    for (size_t i = 0; i < out.size(); ++i) {
        if (width_ == 2) {
            uint16_t id;
            std::memcpy(&id, from + i * 2, 2);
            out[i] = id;
        } else {
            std::memcpy(&out[i], from + i * 4, 4);
        }
        largest = std::max(largest, out[i]);
    }
    NIBBLE_CHECK(check_maps());
    if (static_cast<int64_t>(largest) < vocab) return Ok{};
    for (size_t i = 0; i < out.size(); ++i)
        if (static_cast<int64_t>(out[i]) >= vocab)
            return fail("{}: token {} is {}, beyond the vocabulary of {}", path().string(),
                        begin + static_cast<int64_t>(i), out[i], vocab);
    return Ok{};
}

std::string TokenShard::hash() const {
    const Bytes tokens = file_.bytes().subspan(token_shard_header_bytes);
    return fmt::format("{:016x}", XXH3_64bits(tokens.data(), tokens.size()));
}

void TokenShardWriter::FreeHash::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

TokenShardWriter::TokenShardWriter(FileDescriptor file, int width)
    : file_(std::move(file)), width_(width), hash_(XXH3_createState()) {
    XXH3_64bits_reset(hash_.get());
    buffer_.reserve(shard_buffer_bytes + 4);
}

TokenShardWriter::TokenShardWriter(TokenShardWriter&&) noexcept = default;
TokenShardWriter& TokenShardWriter::operator=(TokenShardWriter&&) noexcept = default;
TokenShardWriter::~TokenShardWriter() = default;

Result<TokenShardWriter> TokenShardWriter::create(const std::filesystem::path& path, int width) {
    NIBBLE_TRY(auto file, FileDescriptor::open(path, O_RDWR | O_CREAT | O_TRUNC));
    return TokenShardWriter(std::move(file), width);
}

Status TokenShardWriter::flush() {
    NIBBLE_CHECK(file_.write_at(buffer_, written_));
    XXH3_64bits_update(hash_.get(), buffer_.data(), buffer_.size());
    written_ += static_cast<int64_t>(buffer_.size());
    buffer_.clear();
    return Ok{};
}

Status TokenShardWriter::add(std::span<const TokenId> ids) {
    for (const TokenId id : ids) {
        if (width_ == 2 && id > 0xFFFF) return fail("{}: token id {} does not fit 16 bits", file_.path().string(), id);
        const size_t at = buffer_.size();
        buffer_.resize(at + static_cast<size_t>(width_));
        std::memcpy(buffer_.data() + at, &id, static_cast<size_t>(width_));
        if (buffer_.size() >= shard_buffer_bytes) NIBBLE_CHECK(flush());
    }
    tokens_ += static_cast<int64_t>(ids.size());
    return Ok{};
}

Result<std::string> TokenShardWriter::finish() {
    NIBBLE_CHECK(flush());
    ShardHeaderWords words{};
    words[0] = token_shard_magic;
    words[1] = width_ == 2 ? 1 : 2;
    if (width_ == 2) {
        if (tokens_ > std::numeric_limits<int32_t>::max())
            return fail("{}: {} tokens are too many for a shard of 16-bit tokens", file_.path().string(), tokens_);
        words[2] = static_cast<int32_t>(tokens_);
    } else {
        std::memcpy(&words[4], &tokens_, sizeof(tokens_));
    }
    NIBBLE_CHECK(file_.write_at(std::as_bytes(std::span(words)), 0));
    NIBBLE_CHECK(file_.sync());
    NIBBLE_CHECK(file_.close());
    return fmt::format("{:016x}", XXH3_64bits_digest(hash_.get()));
}

}  // namespace nibble
