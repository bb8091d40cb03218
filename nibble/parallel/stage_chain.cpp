#include "parallel/stage_chain.h"

#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "io/file_descriptor.h"

#include <fcntl.h>

#include <sstream>
#include <thread>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view done_suffix = ".done", results_suffix = ".results";

}  // namespace

Result<std::unique_ptr<StageChain>> StageChain::open(StageChainOptions options, int64_t stages) {
    std::error_code error;
    fs::create_directories(options.folder, error);
    if (error) return fail(ErrorKind::file, "{}: cannot create: {}", options.folder.string(), error.message());
    std::unique_ptr<StageChain> chain(new StageChain(std::move(options), stages));
    chain->leases_ =
        Leases::open(chain->options_.folder, {.who = chain->options_.who, .expiry = chain->options_.expiry});
    return chain;
}

std::string StageChain::lease(int64_t stage) const { return fmt::format("stage-{:05d}", stage); }

fs::path StageChain::piece(int64_t stage, int64_t index) const {
    return options_.folder / fmt::format("piece-{:05d}-{:05d}", stage, index);
}

bool StageChain::done(int64_t stage) const {
    std::error_code ignored;
    return fs::exists(options_.folder / (lease(stage) + std::string(done_suffix)), ignored);
}

bool StageChain::abandoned(int64_t stage) {
    const auto holder = leases_->holder(lease(stage));
    // A rank marks its stage as complete before it releases the lease.
    return (!holder || holder->ended) && !done(stage);
}

Status StageChain::wait(milliseconds time) const {
    if (options_.should_stop && options_.should_stop())
        return fail(ErrorKind::cancelled,
                    "stopped on request: complete stages are kept in {}; the same command continues",
                    options_.folder.string());
    std::this_thread::sleep_for(time);
    return Ok{};
}

Result<fs::path> StageChain::results(int64_t stage) const {
    const fs::path file = options_.folder / (lease(stage) + std::string(done_suffix));
    NIBBLE_TRY(const std::string text, read_text_file(file, 64));
    int number = -1;
    std::istringstream(text) >> number;
    const fs::path folder = options_.folder / fmt::format("{}.{}{}", lease(stage), number, results_suffix);
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored))
        return fail(ErrorKind::file, "{}: names results that do not exist", file.string());
    return folder;
}

Status StageChain::run(const std::function<Result<bool>(Stage&)>& work) {
    for (;;) {
        bool complete = true, worked = false;
        for (int64_t s = 0; s < stages_ && !worked; ++s) {
            if (done(s)) continue;
            complete = false;
            NIBBLE_TRY(const auto number, leases_->take(lease(s)));
            if (!number) continue;
            worked = true;
            bool whole = done(s);
            if (!whole) {
                Stage stage(*this, s, *number,
                            options_.folder / fmt::format("{}.{}{}", lease(s), *number, results_suffix));
                std::error_code error;
                fs::create_directories(stage.results(), error);
                if (error)
                    return fail(ErrorKind::file, "{}: cannot create: {}", stage.results().string(), error.message());
                NIBBLE_TRY(whole, work(stage));
                if (whole) {
                    NIBBLE_CHECK(write_file_atomically(options_.folder / (lease(s) + std::string(done_suffix)),
                                                       fmt::format("{}\n", *number)));
                    for (const auto& [from, first, last] : stage.free_)
                        for (int64_t i = first; i < last; ++i) fs::remove(piece(from, i), error);
                }
            }
            leases_->release(lease(s));
        }
        if (complete) return Ok{};
        if (!worked) NIBBLE_CHECK(wait(milliseconds(20)));
    }
}

Result<bool> StageChain::Stage::read(int64_t stage, int64_t piece, std::span<float> values) {
    const fs::path path = chain_.piece(stage, piece);
    const auto bytes = std::as_writable_bytes(values);
    const auto begin = steady_clock::now();
    for (milliseconds pause(1);; pause = std::min(2 * pause, milliseconds(64))) {
        const auto file = FileDescriptor::open(path, O_RDONLY);
        if (file.ok()) {
            NIBBLE_TRY(const int64_t size, file->size());
            if (size != std::ssize(bytes))
                return fail(ErrorKind::file, "{}: {} bytes instead of {}", path.string(), size, bytes.size());
            NIBBLE_CHECK(file->read_at(bytes, 0));
            return true;
        }
        if (chain_.done(index_)) return false;
        if (pause >= milliseconds(16) && chain_.abandoned(stage)) return false;
        // A network file system may show the mark of a complete stage before its pieces.
        if (chain_.done(stage) && steady_clock::now() - begin > 2 * chain_.options_.expiry)
            return fail(ErrorKind::file, "{}: is missing although its stage is complete", path.string());
        NIBBLE_CHECK(chain_.wait(pause));
    }
}

Result<bool> StageChain::Stage::wait_for(int64_t stage) {
    while (!chain_.done(stage)) {
        if (chain_.done(index_) || chain_.abandoned(stage)) return false;
        NIBBLE_CHECK(chain_.wait(milliseconds(20)));
    }
    return true;
}

Status StageChain::Stage::write(int64_t piece, std::span<const float> values) {
    const fs::path path = chain_.piece(index_, piece);
    const fs::path unfinished = path.string() + fmt::format(".{}", number_);
    NIBBLE_TRY(auto file, FileDescriptor::open(unfinished, O_RDWR | O_CREAT | O_TRUNC));
    NIBBLE_CHECK(file.write_at(std::as_bytes(values), 0));
    NIBBLE_CHECK(file.close());
    std::error_code error;
    fs::rename(unfinished, path, error);
    if (error) return fail(ErrorKind::file, "{}: cannot rename: {}", unfinished.string(), error.message());
    return Ok{};
}

}  // namespace nibble
