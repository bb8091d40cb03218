// Compares small models with transformers for features that the golden set lacks: gemma3, sliding windows, linear and
// yarn rotary scaling, biases everywhere. tests/oracles/engine_peer.py computed the numbers; weights are derived from
// tensor names.
#include "model/memory_checkpoint.h"
#include "model/models.h"

namespace nibble::test {
namespace {

std::vector<float> made_up_weights(const std::string& name, int64_t n, bool gemma) {
    uint32_t state = 12345;
    for (size_t i = 0; i < name.size(); ++i) state += static_cast<uint8_t>(name[i]) * static_cast<uint32_t>(i + 1);
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) {
        state = state * 1664525u + 1013904223u;
        float x = static_cast<float>((state >> 8) / 16777216.0 - 0.5);
        if (name.ends_with("norm.weight"))
            x += gemma ? 0.0f : 1.0f;
        else
            x *= name.find("embed_tokens") != std::string::npos ? 2.0f : 0.5f;
        values.push_back(x);
    }
    return values;
}

TEST(Peers, LogitsEqualTransformers) {
    const auto json = read_json_file(test_data("engine_peers.json"));
    ASSERT_TRUE(json.ok()) << json.error().message();
    const auto text = (*json)["tokens"].get<std::vector<int32_t>>();
    ThreadPool pool(2);
    for (const Json& peer : (*json)["models"]) {
        const auto name = peer["name"].get<std::string>();
        SCOPED_TRACE(name);
        auto checkpoint = std::make_shared<MemoryCheckpoint>(peer["config"]);
        for (const auto& [tensor, shape] : peer["tensors"].items()) {
            checkpoint->add(tensor, shape.get<std::vector<int64_t>>());
            const CheckpointTensor& t = checkpoint->tensor(tensor);
            const auto values = made_up_weights(tensor, t.rows() * t.cols(), name == "gemma3");
            for (size_t i = 0; i < values.size(); ++i) checkpoint->set(tensor, i, values[i]);
        }
        for (const Compute compute : {Compute::f32, Compute::bf16}) {
            ModelOptions options;
            options.compute = compute;
            const auto model = Model::load(checkpoint, options, pool);
            ASSERT_TRUE(model.ok()) << model.error().message();
            const auto logits = all_logits(*model, {text});
            const double largest = peer["largest"];
            double difference = 0;
            for (size_t r = 0; r < peer["rows"].size(); ++r)
                for (size_t i = 0; i < 48; ++i)
                    difference = std::max(difference, std::fabs(logits[peer["rows"][r].get<size_t>() * 48 + i] -
                                                                peer["logits"][r][i].get<double>()));
            std::printf("%s %s: %.2g of the largest logit\n", name.c_str(), compute == Compute::f32 ? "f32" : "bf16",
                        difference / largest);
            EXPECT_LT(difference / largest, compute == Compute::f32 ? 1e-5 : 0.03);
        }
    }
}

}  // namespace
}  // namespace nibble::test
