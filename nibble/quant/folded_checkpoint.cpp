#include "quant/folded_checkpoint.h"

#include "formats/minifloat.h"

#include <cstring>

namespace nibble {
namespace {

class FoldedCheckpoint : public Checkpoint {
public:
    FoldedCheckpoint(const Checkpoint& source, Folds folds) : source_(source), folds_(std::move(folds)) {}

    const std::filesystem::path& path() const override { return source_.path(); }
    Dialect dialect() const override { return source_.dialect(); }
    const Json& config() const override { return source_.config(); }
    KvFormat kv() const override { return source_.kv(); }
    std::span<const CheckpointTensor> tensors() const override { return source_.tensors(); }
    Result<std::vector<SideFile>> side_files() const override { return source_.side_files(); }
    void done_with(size_t index, int64_t begin, int64_t count) const override {
        source_.done_with(index, begin, count);
    }
    Result<QuantView> read_quant(size_t index, int64_t begin, int64_t count, QuantMatrix& scratch) const override {
        return source_.read_quant(index, begin, count, scratch);
    }

    Result<MatrixView> read_plain(size_t index, int64_t begin, int64_t count, Matrix& scratch) const override {
        const auto found = folds_.find(index);
        if (found == folds_.end()) return source_.read_plain(index, begin, count, scratch);
        const Fold& fold = found->second;
        Matrix read;
        NIBBLE_TRY(const MatrixView from, source_.read_plain(index, begin, count, read));
        Matrix out(from.dtype, from.rows, from.cols);
        for (int64_t i = 0; i < from.rows; ++i)
            for (int64_t j = 0; j < from.cols; ++j) {
                float x = load(from, i * from.cols + j) + (fold.plus_one ? 1.0f : 0.0f);
                if (!fold.rows.empty()) x *= fold.rows[static_cast<size_t>(begin + i)];
                if (!fold.columns.empty()) x *= fold.columns[static_cast<size_t>(j)];
                store(out, i * from.cols + j, x - (fold.plus_one ? 1.0f : 0.0f));
            }
        scratch = std::move(out);
        return scratch.view();
    }

private:
    static float load(const MatrixView& m, int64_t at) {
        float x;
        uint16_t code;
        if (m.dtype == DType::f32) {
            std::memcpy(&x, m.data + 4 * at, 4);
            return x;
        }
        std::memcpy(&code, m.data + 2 * at, 2);
        return m.dtype == DType::bf16 ? bf16_to_float(code) : fp16_to_float(code);
    }
    static void store(Matrix& out, int64_t at, float x) {
        if (out.dtype == DType::f32) {
            std::memcpy(out.data.data() + 4 * at, &x, 4);
            return;
        }
        const uint16_t code = out.dtype == DType::bf16 ? bf16_from_float(x) : fp16_from_float(x);
        std::memcpy(out.data.data() + 2 * at, &code, 2);
    }

    const Checkpoint& source_;
    const Folds folds_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> fold_checkpoint(const Checkpoint& source, Folds folds) {
    for (const auto& [index, fold] : folds) {
        const CheckpointTensor& t = source.tensors()[index];
        if (t.quantized() || (t.dtype != DType::bf16 && t.dtype != DType::f16 && t.dtype != DType::f32))
            return fail("{}: a tensor in {} cannot be scaled", t.name, t.stored_type);
        if ((!fold.rows.empty() && std::ssize(fold.rows) != t.rows()) ||
            (!fold.columns.empty() && std::ssize(fold.columns) != t.cols()))
            return fail("{}: {} and {} scales for {} x {}", t.name, fold.rows.size(), fold.columns.size(), t.rows(),
                        t.cols());
    }
    return std::unique_ptr<Checkpoint>(std::make_unique<FoldedCheckpoint>(source, std::move(folds)));
}

}  // namespace nibble
