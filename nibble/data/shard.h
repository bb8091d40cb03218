// Token shards: files in llm.c's format, a header of 256 int32 {magic 20240520, version, tokens} followed by the
// tokens.
//   version 1  uint16 tokens, their number in word 2 (as in llm.c)
//   version 2  nibble's own: uint32 tokens for vocabularies over 65,536; word 2 is zero, words 4 and 5 are the number
// as
//              int64. llm.c rejects this version.
// All numbers are little-endian.
#pragma once

#include "base/mapped_file.h"
#include "io/file_descriptor.h"
#include "text/tokenizer.h"

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

struct XXH3_state_s;

namespace nibble {

inline constexpr int32_t token_shard_magic = 20240520;
inline constexpr int64_t token_shard_header_bytes = 1024;

// Returns the bytes per token in a shard for this vocabulary: 2 or 4.
constexpr int token_width(int64_t vocab) { return vocab <= 65536 ? 2 : 4; }

class TokenShard {
public:
    // Errors name the file: not a shard, another version, a size that differs from the header.
    static Result<TokenShard> open(const std::filesystem::path& path);

    int64_t tokens() const { return tokens_; }
    int width() const { return width_; }
    const std::filesystem::path& path() const { return file_.path(); }

    // Reads tokens [begin, begin + out.size()), which must exist. Errors: an id >= `vocab` (with its position); the
    // file became shorter.
    Status read(int64_t begin, std::span<TokenId> out, int64_t vocab) const;

    // Returns the XXH3 hash of the stored tokens, 16 hexadecimal digits.
    std::string hash() const;

private:
    TokenShard(MappedFile file, int64_t tokens, int width) : file_(std::move(file)), tokens_(tokens), width_(width) {}

    MappedFile file_;
    int64_t tokens_ = 0;
    int width_ = 2;
};

class TokenShardWriter {
public:
    // Creates or truncates a file. width: 2 or 4.
    static Result<TokenShardWriter> create(const std::filesystem::path& path, int width);
    TokenShardWriter(TokenShardWriter&&) noexcept;
    TokenShardWriter& operator=(TokenShardWriter&&) noexcept;
    ~TokenShardWriter();

    int64_t tokens() const { return tokens_; }

    // Errors: an id that does not fit in the width; a full disk.
    Status add(std::span<const TokenId> ids);
    // Writes the header, syncs and closes the file. Returns the hash of the tokens, as TokenShard::hash(). Error: more
    // tokens than the header of version 1 supports (2^31 - 1).
    Result<std::string> finish();

private:
    struct FreeHash {
        void operator()(XXH3_state_s* state) const;
    };
    TokenShardWriter(FileDescriptor file, int width);
    Status flush();

    FileDescriptor file_;
    int width_ = 2;
    int64_t tokens_ = 0, written_ = token_shard_header_bytes;
    std::vector<std::byte> buffer_;
    std::unique_ptr<XXH3_state_s, FreeHash> hash_;
};

}  // namespace nibble
