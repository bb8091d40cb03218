#include "quant/fakes.h"

#include "formats/minifloat.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace nibble::test {
namespace {

float weight(uint64_t key, int64_t i) {
    uint64_t x = key + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    const double u = static_cast<double>(x >> 11) * 0x1p-53 - 0.5;
    if (i / 16 % 37 == 5) return 0;
    return static_cast<float>(u * u * u * (i % 1013 == 7 ? 3.0 : 0.25));
}

void store(std::byte* at, DType dtype, float value) {
    if (dtype == DType::f32) {
        std::memcpy(at, &value, 4);
        return;
    }
    const uint16_t code = dtype == DType::bf16 ? bf16_from_float(value) : fp16_from_float(value);
    std::memcpy(at, &code, 2);
}

}  // namespace

FakeCheckpoint::FakeCheckpoint() { write_file(file(), "weights"); }

void FakeCheckpoint::add(const std::string& name, std::vector<int64_t> shape, DType dtype) {
    CheckpointTensor t{.name = name, .shape = std::move(shape), .dtype = dtype, .file = "weights"};
    const int64_t n = *checked_elements(t.shape), bytes = dtype_bytes(dtype);
    t.stored_bytes = n * bytes;
    std::vector<std::byte> data(static_cast<size_t>(n * bytes));
    const uint64_t key = XXH3_64bits(name.data(), name.size());
    for (int64_t i = 0; i < n; ++i) store(data.data() + i * bytes, dtype, weight(key, i));
    tensors_.push_back(std::move(t));
    plain.push_back(std::move(data));
    quant.emplace_back();
}

void FakeCheckpoint::add_quantized(const std::string& name, QuantMatrix matrix, std::optional<float> input_scale) {
    CheckpointTensor t{.name = name, .shape = {matrix.rows, matrix.cols}, .format = matrix.format, .file = "weights"};
    t.input_scale = input_scale;
    t.stored_type = format_name(matrix.format);
    t.stored_bytes =
        static_cast<int64_t>(matrix.codes.size() + matrix.block_scales.size() + 4 * matrix.float_scales.size());
    tensors_.push_back(std::move(t));
    plain.emplace_back();
    quant.push_back(std::move(matrix));
}

void FakeCheckpoint::add_plain(const std::string& name, std::vector<int64_t> shape, DType dtype,
                               std::span<const uint8_t> bytes) {
    CheckpointTensor t{.name = name, .shape = std::move(shape), .dtype = dtype, .file = "weights"};
    t.stored_bytes = static_cast<int64_t>(bytes.size());
    t.stored_type = dtype_name(dtype);
    tensors_.push_back(std::move(t));
    const auto data = std::as_bytes(bytes);
    plain.emplace_back(data.begin(), data.end());
    quant.emplace_back();
}

size_t FakeCheckpoint::index_of(const std::string& name) const {
    for (size_t i = 0; i < tensors_.size(); ++i)
        if (tensors_[i].name == name) return i;
    throw std::runtime_error("no tensor " + name);
}
CheckpointTensor& FakeCheckpoint::tensor(const std::string& name) { return tensors_[index_of(name)]; }
QuantMatrix& FakeCheckpoint::matrix(const std::string& name) { return quant[index_of(name)]; }

void FakeCheckpoint::set(const std::string& name, int64_t index, float value) {
    const size_t i = index_of(name);
    store(plain[i].data() + index * dtype_bytes(tensors_[i].dtype), tensors_[i].dtype, value);
}

void FakeCheckpoint::remove(const std::string& name) {
    const auto i = static_cast<std::ptrdiff_t>(index_of(name));
    tensors_.erase(tensors_.begin() + i);
    plain.erase(plain.begin() + i);
    quant.erase(quant.begin() + i);
}

Result<MatrixView> FakeCheckpoint::read_plain(size_t index, int64_t begin, int64_t count, Matrix&) const {
    const CheckpointTensor& t = tensors_[index];
    return MatrixView{t.dtype, t.rows(), t.cols(), plain[index].data()}.panel(begin, count);
}

Result<QuantView> FakeCheckpoint::read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix&) const {
    if (quant[index].format == Format::fp8_block128 && begin % 128 != 0) return fail("row {} is inside a tile", begin);
    return quant[index].view().panel(begin, count);
}

void FakeCheckpoint::done_with(size_t, int64_t, int64_t count) const { rows_done += count; }

FakeExport::FakeExport(std::vector<ExportTensor> list) : tensors(std::move(list)), stored(tensors.size()) {
    for (size_t i = 0; i < tensors.size(); ++i) {
        const ExportTensor& t = tensors[i];
        const int64_t rows = t.shape.empty() ? 1 : t.shape[0];
        const int64_t n = *checked_elements(t.shape), cols = rows ? n / rows : 0;
        Stored& s = stored[i];
        s.row_writes.resize(static_cast<size_t>(rows));
        if (t.format == Format::none) {
            s.plain.resize(static_cast<size_t>(n * dtype_bytes(t.dtype)));
        } else {
            const QuantMatrix q(t.format, rows, cols);
            s.codes = q.codes;
            s.block_scales = q.block_scales;
            s.float_scales = q.float_scales;
        }
    }
}

Status FakeExport::begin_write() {
    const int64_t n = writes++;
    if (on_write) on_write(n);
    if (fail_at >= 0 && n >= fail_at) return fail("out.safetensors: cannot write: No space left on device");
    return Ok{};
}

Status FakeExport::write_plain(size_t index, int64_t row, const MatrixView& view) {
    NIBBLE_CHECK(begin_write());
    Stored& s = stored.at(index);
    if (tensors[index].format != Format::none || tensors[index].dtype != view.dtype) return fail("not declared so");
    std::memcpy(s.plain.data() + row * view.row_bytes(), view.data, static_cast<size_t>(view.bytes()));
    for (int64_t r = row; r < row + view.rows; ++r) ++s.row_writes.at(static_cast<size_t>(r));
    return Ok{};
}

Status FakeExport::write_quant(size_t index, int64_t row, const QuantView& p) {
    NIBBLE_CHECK(begin_write());
    Stored& s = stored.at(index);
    if (tensors[index].format != p.format) return fail("not declared so");
    std::copy_n(p.codes, code_bytes(p.format, p.rows, p.cols), s.codes.begin() + code_bytes(p.format, row, p.cols));
    if (p.block_scales)
        std::copy_n(p.block_scales, block_scale_bytes(p.format, p.rows, p.cols),
                    s.block_scales.begin() + block_scale_bytes(p.format, row, p.cols));
    if (p.float_scales)
        std::copy_n(p.float_scales, float_scale_count(p.format, p.rows, p.cols),
                    s.float_scales.begin() + float_scale_count(p.format, row, p.cols));
    for (int64_t r = row; r < row + p.rows; ++r) ++s.row_writes.at(static_cast<size_t>(r));
    return Ok{};
}

Status FakeExport::write_scalars(size_t index, float tensor_scale, std::optional<float> input_scale) {
    NIBBLE_CHECK(begin_write());
    if (tensors.at(index).input_scale != input_scale.has_value()) return fail("input_scale not as declared");
    stored[index].tensor_scale = tensor_scale;
    stored[index].input_scale = input_scale;
    return Ok{};
}

Result<uint64_t> FakeExport::checksum(size_t index, int /*file*/) const {
    const Stored& s = stored.at(index);
    uint64_t sum = 1;
    const auto add = [&](const void* data, size_t bytes) { sum = XXH3_64bits_withSeed(data, bytes, sum); };
    add(s.codes.data(), s.codes.size());
    add(s.block_scales.data(), s.block_scales.size());
    add(s.plain.data(), s.plain.size());
    add(s.float_scales.data(), 4 * s.float_scales.size());
    add(&s.tensor_scale, 4);
    if (s.input_scale) add(&*s.input_scale, 4);
    return sum;
}

void reopen(const FakeExport& out, FakeCheckpoint& checkpoint) {
    for (size_t i = 0; i < out.tensors.size(); ++i) {
        const ExportTensor& t = out.tensors[i];
        const Stored& s = out.stored[i];
        if (t.format == Format::none) {
            checkpoint.add_plain(t.name, t.shape, t.dtype, s.plain);
            continue;
        }
        QuantMatrix q(t.format, t.shape[0], t.shape[1]);
        q.codes = s.codes;
        q.block_scales = s.block_scales;
        q.float_scales = s.float_scales;
        q.tensor_scale = s.tensor_scale;
        checkpoint.add_quantized(t.name, std::move(q), s.input_scale);
        checkpoint.tensor(t.name).activation = t.activation;
    }
}

Plan plan_for(const FakeCheckpoint& source, const WeightSpec& spec, ActivationFormat activation) {
    Plan plan{.recipe = "test"};
    for (const CheckpointTensor& t : source.tensors()) {
        PlanEntry e{.tensor = t.name, .module = t.name, .shape = t.shape, .dtype = t.dtype, .reason = "stays as it is"};
        if (t.name.ends_with(".weight")) e.module.resize(t.name.size() - 7);
        if (t.name.ends_with("_proj.weight") && t.shape.size() == 2) {
            e.spec = spec;
            e.activation = activation;
            e.reason = "rule 1 '*_proj*'";
        }
        plan.entries.push_back(std::move(e));
    }
    return plan;
}

void group(Plan& plan, std::string PlanEntry::*key, const std::vector<std::string>& tensors) {
    for (const std::string& name : tensors) {
        bool found = false;
        for (PlanEntry& e : plan.entries)
            if (e.tensor == name) {
                e.*key = "{" + tensors.front() + "}";
                found = true;
            }
        if (!found) throw std::runtime_error("no tensor " + name);
    }
}

void add_small_model(FakeCheckpoint& source, int layers, bool wide) {
    source.add("model.embed_tokens.weight", {17000, 64});
    for (int l = 0; l < layers; ++l) {
        const std::string p = "model.layers." + std::to_string(l) + ".";
        source.add(p + "input_layernorm.weight", {64});
        source.add(p + "self_attn.k_proj.weight", {128, 64});
        source.add(p + "self_attn.q_proj.weight", {256, 64});
        source.add(p + "self_attn.v_proj.weight", {128, 64});
        source.add(p + "self_attn.o_proj.weight", {64, 256}, DType::f16);
        source.add(p + "mlp.gate_proj.weight", {384, 64});
        source.add(p + "mlp.up_proj.weight", {384, 64});
        source.add(p + "mlp.down_proj.weight", {64, 384}, DType::f32);
        source.add(p + "mlp.unused", {0, 4});
    }
    if (wide) source.add("model.wide_proj.weight", {300, 6144});  // several panels, the last one short
    source.add("model.scalar", {}, DType::f32);
}

Plan small_plan(const FakeCheckpoint& source, const WeightSpec& spec) {
    Plan plan = plan_for(source, spec);
    for (int l = 0;; ++l) {
        const std::string p = "model.layers." + std::to_string(l) + ".";
        const auto has = [&](const CheckpointTensor& t) { return t.name.starts_with(p); };
        if (std::none_of(source.tensors().begin(), source.tensors().end(), has)) return plan;
        for (const auto key : {&PlanEntry::scale_group, &PlanEntry::search_group, &PlanEntry::input_group}) {
            const std::string a = p + "self_attn.", m = p + "mlp.";
            group(plan, key, {a + "q_proj.weight", a + "k_proj.weight", a + "v_proj.weight"});
            group(plan, key, {m + "gate_proj.weight", m + "up_proj.weight"});
        }
    }
}

JobOptions options_for(const Plan& plan) {
    JobOptions options;
    options.scales.input.resize(plan.entries.size());
    options.settings = {{"format", "fake"}};
    options.versions = {{"nibble", "test"}};
    return options;
}

}  // namespace nibble::test
