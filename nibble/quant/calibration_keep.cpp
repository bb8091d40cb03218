#include "quant/calibration_keep.h"

#include "base/fields.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

constexpr std::string_view solutions_name = "solutions.bin";

// Returns codes, block scales and float scales, one after the other.
std::vector<std::byte> bytes_of(const QuantMatrix& m) {
    std::vector<std::byte> bytes(m.codes.size() + m.block_scales.size() + 4 * m.float_scales.size());
    std::byte* at = bytes.data();
    const auto put = [&](const void* from, size_t n) {
        if (n > 0) std::memcpy(at, from, n);
        at += n;
    };
    put(m.codes.data(), m.codes.size());
    put(m.block_scales.data(), m.block_scales.size());
    put(m.float_scales.data(), 4 * m.float_scales.size());
    return bytes;
}

void take_bytes(std::span<const std::byte> bytes, QuantMatrix& m) {
    const std::byte* at = bytes.data();
    const auto get = [&](void* to, size_t n) {
        if (n > 0) std::memcpy(to, at, n);
        at += n;
    };
    get(m.codes.data(), m.codes.size());
    get(m.block_scales.data(), m.block_scales.size());
    get(m.float_scales.data(), 4 * m.float_scales.size());
}

std::string checksum_of(std::span<const std::byte> bytes) {
    return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace

CalibrationKeep::CalibrationKeep(const Plan& plan, std::unique_ptr<Journal> journal, FileDescriptor file)
    : plan_(&plan), journal_(std::move(journal)), file_(std::move(file)) {
    for (size_t i = 0; i < plan.entries.size(); ++i)
        if (plan.entries[i].solver) entries_.emplace(plan.entries[i].module, static_cast<int64_t>(i));
}

Result<std::unique_ptr<CalibrationKeep>> CalibrationKeep::read(const std::filesystem::path& folder, const Plan& plan,
                                                               const JobIdentity& identity) {
    NIBBLE_TRY(auto journal, Journal::read(folder / Journal::file_name, identity));
    NIBBLE_TRY(auto file, FileDescriptor::open(folder / solutions_name, O_RDONLY));
    return std::unique_ptr<CalibrationKeep>(new CalibrationKeep(plan, std::move(journal), std::move(file)));
}

Result<std::unique_ptr<CalibrationKeep>> CalibrationKeep::open(const std::filesystem::path& folder, const Plan& plan,
                                                               const JobIdentity& identity) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return fail("{}: cannot create: {}", folder.string(), error.message());
    NIBBLE_TRY(auto journal, Journal::open(folder, identity));
    NIBBLE_TRY(auto file, FileDescriptor::open(folder / solutions_name, O_RDWR | O_CREAT));
    return std::unique_ptr<CalibrationKeep>(new CalibrationKeep(plan, std::move(journal), std::move(file)));
}

Status CalibrationKeep::recall(const std::function<Status(const std::string&, Solution)>& take) {
    NIBBLE_TRY(const int64_t size, file_.size());
    for (const auto& [module, index] : entries_) {
        const auto line = journal_->finished(index);
        if (!line) continue;
        const PlanEntry& entry = plan_->entries[static_cast<size_t>(index)];
        Solution solution{QuantMatrix(entry.spec.format, entry.rows(), entry.cols()), 0};
        QuantMatrix& m = solution.matrix;
        int64_t offset = -1;
        std::string checksum;
        if (!Fields(*line).need("offset", offset).ok() || !Fields(*line).need("checksum", checksum).ok() ||
            !Fields(*line).need("tensor_scale", m.tensor_scale).ok() ||
            !Fields(*line).need("raised_blocks", solution.raised_blocks).ok())
            continue;
        std::vector<std::byte> bytes(m.codes.size() + m.block_scales.size() + 4 * m.float_scales.size());
        const int64_t end = offset + std::ssize(bytes);
        if (offset < 0 || end > size) continue;
        NIBBLE_CHECK(file_.read_at(bytes, offset));
        if (checksum_of(bytes) != checksum) continue;
        SolvedOutputError& e = solution.output_error;
        const auto outputs = line->find("outputs");
        if (outputs == line->end() || !outputs->is_array() || outputs->size() != 4 ||
            !std::ranges::all_of(*outputs, [](const Json& x) { return x.is_number(); }))
            continue;
        e = {(*outputs)[0].get<int64_t>(), (*outputs)[1].get<double>(), (*outputs)[2].get<double>(),
             (*outputs)[3].get<double>()};
        SolveGaps& g = solution.gaps;
        if (!Fields(*line).need("blind_blocks", g.blind_blocks).ok() ||
            !Fields(*line).need("no_feedback", g.no_feedback).ok() ||
            !Fields(*line).need("too_small", g.too_small).ok())
            continue;
        take_bytes(bytes, m);
        end_ = std::max(end_, end);
        NIBBLE_CHECK(take(entry.module, std::move(solution)));
    }
    return Ok{};
}

Status CalibrationKeep::note(const std::string& module, const Solution& solution) {
    const std::vector<std::byte> bytes = bytes_of(solution.matrix);
    const SolvedOutputError& e = solution.output_error;
    NIBBLE_CHECK(file_.write_at(bytes, end_));
    NIBBLE_CHECK(journal_->append(entries_.at(module), Json{{"offset", end_},
                                                            {"checksum", checksum_of(bytes)},
                                                            {"tensor_scale", solution.matrix.tensor_scale},
                                                            {"raised_blocks", solution.raised_blocks},
                                                            {"outputs", {e.rows, e.energy, e.before, e.after}},
                                                            {"blind_blocks", solution.gaps.blind_blocks},
                                                            {"no_feedback", solution.gaps.no_feedback},
                                                            {"too_small", solution.gaps.too_small}}));
    end_ += std::ssize(bytes);
    return Ok{};
}

}  // namespace nibble
