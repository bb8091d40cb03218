// A checkpoint without some of its tensors.
#pragma once

#include "model/missing_weights.h"
#include "model/models.h"

#include "architecture/tensor_list.h"

#include <gtest/gtest.h>

namespace nibble::test {

class FewerTensors : public Checkpoint {
public:
    FewerTensors(const Checkpoint& of, std::string_view without) : of_(of) {
        for (const CheckpointTensor& t : of.tensors())
            if (t.name != without) tensors_.push_back(t);
    }
    const std::filesystem::path& path() const override { return of_.path(); }
    Dialect dialect() const override { return of_.dialect(); }
    const Json& config() const override { return of_.config(); }
    KvFormat kv() const override { return of_.kv(); }
    std::span<const CheckpointTensor> tensors() const override { return tensors_; }
    Result<MatrixView> read_plain(size_t, int64_t, int64_t, Matrix&) const override { return fail("names alone"); }
    Result<QuantView> read_quant(size_t, int64_t, int64_t, QuantMatrix&) const override { return fail("names alone"); }
    void done_with(size_t, int64_t, int64_t) const override {}
    Result<std::vector<SideFile>> side_files() const override { return std::vector<SideFile>{}; }

private:
    const Checkpoint& of_;
    std::vector<CheckpointTensor> tensors_;
};

// The checkpoint lacks nothing; without any one tensor of its description it lacks that one. `other_names`: a tensor
// whose spelling no other tensor shows may be named in the family's own spelling.
inline void expect_weights_are_missed(const Checkpoint& checkpoint, const std::string& place,
                                      bool other_names = false) {
    const auto model = model_config(checkpoint);
    ASSERT_TRUE(model.ok()) << place << ": " << model.error().message();
    const MissingWeights whole = find_missing_weights(checkpoint);
    EXPECT_EQ(whole.text(), "") << place;
    std::vector<TensorEntry> list = tensor_list(*model);
    EXPECT_GE(whole.required, std::ssize(list));
    // Layers for multi-token prediction are complete or absent.
    const std::vector<TensorEntry> prediction = prediction_tensor_list(*model);
    const FewerTensors first(checkpoint, prediction.empty() ? "" : prediction[0].name);
    if (prediction.size() > 1 && whole.required > std::ssize(list)) {
        EXPECT_EQ(find_missing_weights(first).names, std::vector<std::string>{prediction[0].name});
        list.insert(list.end(), prediction.begin(), prediction.end());
    }
    for (const TensorEntry& t : list) {
        const auto missing = find_missing_weights(FewerTensors(checkpoint, t.name)).names;
        const bool lone = t.role == TensorRole::head || t.role == TensorRole::router || t.role == TensorRole::choice;
        ASSERT_EQ(missing.size(), 1U) << place << " without " << t.name;
        if (!other_names || !lone) {
            EXPECT_EQ(missing[0], t.name) << place;
        }
    }
}

inline void expect_weights_are_missed(const std::filesystem::path& folder) {
    expect_weights_are_missed(*open_checkpoint(folder), folder.string());
}

}  // namespace nibble::test
