#include "quant/rank_job.h"

#include "base/mapped_file.h"
#include "checkpoint/work_folder.h"
#include "io/atomic_file.h"
#include "parallel/lease.h"
#include "quant/units.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <thread>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prepared_name = "prepared", token_name = ".nibble-ranks", journal_suffix = ".jsonl",
                           done_suffix = ".done", file_prefix = "file-";

fs::path rank_out_path(const fs::path& out, std::string_view ending) {
    const fs::path normal = out.lexically_normal();
    fs::path path = normal.has_filename() ? normal : normal.parent_path();
    return path += ending;
}

std::string file_lease(int file) { return fmt::format("{}{:05d}", file_prefix, file); }
std::string rank_lease(int rank) { return fmt::format("rank-{}", rank); }

// Returns "" for a file that does not exist or cannot be read.
std::string small_text(const fs::path& path) {
    auto text = read_text_file(path);
    return text.ok() ? std::move(*text) : std::string();
}

std::string new_token() {
    std::random_device source;
    return fmt::format("{:08x}{:08x}{:08x}{:08x}\n", source(), source(), source(), source());
}

Json rank_facts(int ranks, const JobIdentity& identity) {
    Json facts{{"number of ranks", std::to_string(ranks)}};
    for (const auto& [name, value] : identity) facts[name] = value;
    return facts;
}

// Returns the first facts that differ, or "".
std::string difference_of_facts(const Json& mine, const Json& other) {
    std::set<std::string> names;
    for (const Json* facts : {&mine, &other})
        for (const auto& [name, value] : facts->items()) names.insert(name);
    const auto text = [](const Json& facts, const std::string& name) {
        return facts.contains(name) ? facts[name].dump(-1, ' ', false, Json::error_handler_t::replace) : "nothing";
    };
    for (const std::string& name : names)
        if (text(mine, name) != text(other, name))
            return fmt::format("{}: {} here, {} there", name, text(mine, name), text(other, name));
    return "";
}

// Returns the journals in the folder of ranks by lease number, ascending.
std::map<std::pair<std::string, int>, fs::path> rank_journals(const fs::path& folder) {
    std::map<std::pair<std::string, int>, fs::path> found;
    std::error_code ignored;
    for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
        const std::string name = it->path().filename().string();
        if (!name.starts_with(file_prefix) || !name.ends_with(journal_suffix)) continue;
        const std::string lease = name.substr(0, name.size() - journal_suffix.size());
        const size_t dot = lease.rfind('.');
        if (dot == std::string::npos) continue;
        int number = 0;
        std::istringstream(lease.substr(dot + 1)) >> number;
        found.emplace(std::pair(lease.substr(0, dot), number), it->path());
    }
    return found;
}

}  // namespace

struct RankJob::Work {
    const Checkpoint& source;
    const Plan& plan;
    const JobOptions& job;
    ThreadPool& pool;
    Export& out;
    const Journal* earlier;
};

fs::path rank_calibration_folder(const fs::path& out) { return rank_folder(out) / "calibration"; }

fs::path rank_folder(const fs::path& out) { return rank_out_path(out, ".partial.ranks"); }

void remove_rank_folder(const fs::path& out) {
    std::error_code ignored;
    fs::remove_all(rank_folder(out), ignored);
}

bool is_finished_output(const fs::path& out) {
    std::error_code ignored;
    if (fs::is_directory(rank_out_path(out, ".partial"), ignored)) return false;
    return fs::exists(out, ignored) && !fs::is_empty(out, ignored);
}

RankJob::RankJob(RankJobOptions options, const JobHooks& hooks)
    : options_(std::move(options)), hooks_(hooks), folder_(rank_folder(options_.out)) {}

RankJob::~RankJob() = default;

bool RankJob::finished() const { return is_finished_output(options_.out); }

Result<std::unique_ptr<RankJob>> RankJob::join(RankJobOptions options, const JobIdentity& facts,
                                               const JobHooks& hooks) {
    std::unique_ptr<RankJob> job(new RankJob(std::move(options), hooks));
    std::error_code error;
    fs::create_directories(job->folder_, error);
    if (error) return fail(ErrorKind::file, "{}: cannot create: {}", job->folder_.string(), error.message());
    job->leases_ = Leases::open(
        job->folder_, {.who = fmt::format("rank {}", job->options_.place.rank), .expiry = job->options_.expiry});
    NIBBLE_CHECK(job->meet(facts));
    return job;
}

Status RankJob::wait() const {
    if (hooks_.should_stop())
        return fail(ErrorKind::cancelled,
                    "stopped on request: finished files are kept in {}; the same command continues",
                    rank_out_path(options_.out, ".partial").string());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return Ok{};
}

Status RankJob::meet(const JobIdentity& identity) {
    const auto begin = std::chrono::steady_clock::now();
    const auto since = [](auto time) { return std::chrono::steady_clock::now() - time; };
    const auto late = [&] { return since(begin) > 2 * options_.expiry; };
    const RankPlace& place = options_.place;
    const Json facts = rank_facts(place.size, identity);
    for (;;) {
        NIBBLE_TRY(const auto taken, leases_->take(rank_lease(place.rank), facts));
        if (taken) break;
        const auto other = leases_->holder(rank_lease(place.rank));
        const bool sure = other && other->here && !other->ended;
        if (late() || (sure && since(begin) > std::chrono::seconds(3)))
            return fail(ErrorKind::usage, "{}: {} is running already: another job writes this output; wait for it",
                        options_.out.string(), other ? other->text : rank_lease(place.rank));
        NIBBLE_CHECK(wait());
    }
    for (int rank = 0; rank < place.size; ++rank) {
        while (rank != place.rank) {
            const auto other = leases_->holder(rank_lease(rank));
            const std::string differs = other ? difference_of_facts(facts, other->facts) : "";
            if (other && !other->ended && differs.empty()) break;
            if (finished()) return Ok{};
            if (other && !other->ended && (late() || other->here)) {
                std::this_thread::sleep_for(std::chrono::seconds(1));  // the other rank sees this one's facts, too
                return fail(ErrorKind::usage, "{}: {} has another job than rank {}: {}", options_.out.string(),
                            other->text, place.rank, differs);
            }
            if (late())
                return fail(ErrorKind::usage,
                            "{}: rank {} of {} has not appeared within {} s: start it, or choose an output folder that "
                            "all machines share",
                            folder_.string(), rank, place.size,
                            std::chrono::duration_cast<std::chrono::seconds>(2 * options_.expiry).count());
            NIBBLE_CHECK(wait());
        }
    }
    return Ok{};
}

// Returns whether the work folder was created for the files in the folder of ranks.
bool RankJob::prepared() const {
    const std::string token = small_text(folder_ / prepared_name);
    return !token.empty() && token == small_text(rank_out_path(options_.out, ".partial") / token_name);
}

// Creates the work folder, or opens that of an interrupted job, in one rank. The others wait.
Status RankJob::prepare(const ExportSpec& spec) {
    for (;;) {
        if (prepared() || finished()) return Ok{};
        NIBBLE_TRY(const auto taken, leases_->take("prepare"));
        if (taken) break;
        NIBBLE_CHECK(wait());
    }
    if (!prepared() && !finished()) {
        std::error_code ignored;
        for (fs::directory_iterator it(folder_, ignored), end; !ignored && it != end; it.increment(ignored)) {
            const std::string name = it->path().filename().string();
            if (name.starts_with(file_prefix) || name == prepared_name) fs::remove(it->path(), ignored);
        }
        if (const auto made = open_export(spec, ExportMode::resume); !made.ok()) {
            if (finished()) return Ok{};  // another rank published the output in the meantime
            return made.error();
        }
        const std::string token = new_token();
        NIBBLE_CHECK(write_file_atomically(rank_out_path(options_.out, ".partial") / token_name, token));
        NIBBLE_CHECK(write_file_atomically(folder_ / prepared_name, token));
    }
    leases_->release("prepare");
    return Ok{};
}

// Returns the files in the order in which this rank tries to take them: first its own, so that every rank has about the
// same number of bytes, then the others.
std::vector<int> RankJob::order(const Export& out) const {
    std::vector<int> files(static_cast<size_t>(out.files()));
    std::iota(files.begin(), files.end(), 0);
    std::ranges::stable_sort(files, [&](int a, int b) { return out.file_bytes(a) > out.file_bytes(b); });
    std::vector<int64_t> load(static_cast<size_t>(options_.place.size));
    std::vector<int> own, others;
    for (const int file : files) {
        const auto least = std::ranges::min_element(load);
        *least += out.file_bytes(file);
        (least - load.begin() == options_.place.rank ? own : others).push_back(file);
    }
    std::ranges::reverse(others);  // the small ones, with which their ranks end
    own.insert(own.end(), others.begin(), others.end());
    return own;
}

bool RankJob::done(int file) const {
    std::error_code ignored;
    return fs::exists(folder_ / (file_lease(file) + std::string(done_suffix)), ignored);
}

// Quantizes a file if no other rank does. Returns whether it did.
Result<bool> RankJob::work_on(const Work& work, int file) {
    const std::string lease = file_lease(file);
    NIBBLE_TRY(const auto number, leases_->take(lease));
    if (!number) return false;
    if (!done(file)) {
        const std::string name = fmt::format("{}.{}{}", lease, *number, journal_suffix);
        for (const auto& [key, path] : rank_journals(folder_))  // the last one of this file wins
            if (key.first == lease && key.second < *number) {
                std::error_code error;
                fs::copy_file(path, folder_ / name, fs::copy_options::overwrite_existing, error);
                if (error) return fail(ErrorKind::file, "{}: cannot copy: {}", path.string(), error.message());
            }
        NIBBLE_CHECK(work.out.select(file));
        NIBBLE_TRY(const auto journal, Journal::open(folder_, identity_, name));
        NIBBLE_CHECK(run_quantize_file(work.source, work.plan, work.job, work.out,
                                       {.file = file, .journal = *journal, .earlier = work.earlier}, work.pool,
                                       hooks_));
        NIBBLE_CHECK(work.out.finish_file());
        NIBBLE_CHECK(write_file_atomically(folder_ / (lease + std::string(done_suffix)), std::string_view("done\n")));
    }
    leases_->release(lease);
    return true;
}

Result<bool> RankJob::work(const Checkpoint& source, const Plan& plan, const JobOptions& job, const ExportSpec& spec,
                           ThreadPool& pool) {
    if (finished()) return false;
    NIBBLE_TRY(identity_, quantize_identity(source, plan, job));
    NIBBLE_CHECK(prepare(spec));
    if (finished()) return false;
    const fs::path journal = rank_out_path(options_.out, ".partial") / Journal::file_name;
    std::unique_ptr<Journal> earlier;
    if (fs::exists(journal)) {
        auto read = Journal::read(journal, identity_);
        if (read.ok())
            earlier = *std::move(read);
        else if (fs::exists(journal))  // otherwise another rank moved it, because it publishes the output
            return read.error();
    }
    const auto opened = open_export(spec, ExportMode::share);
    if (!opened.ok() && finished()) return false;  // another rank published the output in the meantime
    if (!opened.ok()) return opened.error();
    const auto& out = *opened;
    const Work work{source, plan, job, pool, *out, earlier.get()};
    const std::vector<int> files = order(*out);
    if (std::ssize(files) < options_.place.size && options_.place.rank == 0)
        hooks_.emit_note(
            fmt::format("{} ranks share {} output files, so some have no work; a smaller --max-shard-size "
                        "gives more files",
                        options_.place.size, files.size()));
    for (;;) {
        bool worked = false, complete = true;
        for (const int file : files) {
            if (done(file)) continue;
            complete = false;
            const auto mine = work_on(work, file);
            if (!mine.ok() && finished()) return false;
            if (!mine.ok()) return mine.error();
            worked = worked || *mine;
        }
        if (complete) return finish_turn();
        if (finished()) return false;
        if (!worked) NIBBLE_CHECK(wait());
    }
}

Result<bool> RankJob::finish_turn() {
    for (;;) {
        if (finished()) return false;
        const auto taken = leases_->take("finish");
        if (!taken.ok() && finished()) return false;
        if (!taken.ok()) return taken.error();
        if (*taken) return !finished();
        NIBBLE_CHECK(wait());
    }
}

Status merge_rank_journals(const fs::path& out, const fs::path& work_dir, const JobIdentity& identity, int64_t units) {
    const auto found = rank_journals(rank_folder(out));
    if (found.empty()) return Ok{};
    std::vector<std::unique_ptr<Journal>> parts;
    std::error_code ignored;
    if (fs::exists(work_dir / Journal::file_name, ignored)) {
        NIBBLE_TRY(auto before, Journal::read(work_dir / Journal::file_name, identity));
        parts.push_back(std::move(before));
    }
    for (const auto& [key, path] : found) {
        NIBBLE_TRY(auto part, Journal::read(path, identity));
        parts.push_back(std::move(part));
    }
    NIBBLE_TRY(const auto whole, Journal::open(work_dir, identity));
    return merge_journals(parts, units, *whole);
}

Status refuse_working_ranks(const fs::path& out, bool resume, std::chrono::milliseconds expiry, const JobHooks& hooks) {
    const fs::path folder = rank_folder(out);
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) return Ok{};
    std::set<std::string> names;
    for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored))
        if (const std::string name = it->path().stem().string(); name.starts_with("rank-")) names.insert(name);
    const auto leases = Leases::open(folder, {.who = "one process", .expiry = expiry});
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& name : names)
        for (bool noted = false;;) {
            const auto holder = leases->holder(name);
            if (!holder || holder->ended) break;
            if (std::chrono::steady_clock::now() - begin > 2 * expiry)
                return fail(ErrorKind::file, "{}: {} is writing it; wait for it or stop it", out.string(),
                            holder->text);
            if (!noted) hooks.emit_note(fmt::format("waiting to see whether {} has ended", holder->text));
            noted = true;
            if (hooks.should_stop()) return fail(ErrorKind::cancelled, "stopped on request; nothing was changed");
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
    if (resume || (rank_journals(folder).empty() && !fs::exists(rank_calibration_folder(out), ignored))) return Ok{};
    return fail(
        ErrorKind::file,
        "{}: is left from an interrupted job of several ranks; resume it with --resume or remove that folder and "
        "{}",
        folder.string(), rank_out_path(out, ".partial").string());
}

}  // namespace nibble
