// The bits of a token's logits depend only on the weights and the tokens before it.
#include "model/models.h"

#include <random>

namespace nibble::test {
namespace {

std::vector<int32_t> random_text(int64_t n, int64_t vocab, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> text;
    for (int64_t i = 0; i < n; ++i) text.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(vocab)));
    return text;
}

Model load(const std::filesystem::path& path, const ModelOptions& options, ThreadPool& pool) {
    auto model = Model::load(open_checkpoint(path), options, pool);
    EXPECT_TRUE(model.ok()) << model.error().message();
    return *std::move(model);
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Returns the logits of all rows of `text`, processed in pieces whose sizes repeat `chunks`.
std::vector<float> in_chunks(const Model& model, KvPool& pool, const std::vector<int32_t>& text,
                             const std::vector<int64_t>& chunks) {
    Sequence sequence = pool.sequence();
    std::vector<float> all;
    size_t next = 0;
    for (int64_t at = 0; at < std::ssize(text);) {
        const int64_t n = std::min(chunks[next++ % chunks.size()], std::ssize(text) - at);
        const Batch batch({{&sequence, std::span(text).subspan(size_t(at), size_t(n)), 0}});
        std::vector<float> logits(static_cast<size_t>(n * model.config().vocab));
        const Status status = model.forward(batch, logits);
        EXPECT_TRUE(status.ok()) << status.error().message();
        all.insert(all.end(), logits.begin(), logits.end());
        at += n;
    }
    return all;
}

struct InvarianceCase {
    std::string checkpoint;
    std::optional<KvFormat> kv;
    Compute compute = Compute::bf16;
    SsmStateFormat ssm_state = SsmStateFormat::f32;
    SumOrder sums = SumOrder::lanes;
};
void PrintTo(const InvarianceCase& c, std::ostream* out) {
    *out << c.checkpoint << (c.compute == Compute::f32 ? " f32 " : " bf16 ") << (c.kv ? kv_name(*c.kv) : "")
         << (c.ssm_state == SsmStateFormat::f32 ? "" : " narrow states") << (c.sums == SumOrder::tiles ? " tiles" : "");
}

class Invariance : public testing::TestWithParam<InvarianceCase> {
protected:
    std::filesystem::path path() const {
        return GetParam().checkpoint == "model" ? test_data("model") : test_data("golden") / GetParam().checkpoint;
    }
    ModelOptions options() const {
        ModelOptions o;
        o.compute = GetParam().compute;
        o.kv = GetParam().kv;
        o.ssm_state = GetParam().ssm_state;
        o.sums = GetParam().sums;
        if (o.sums == SumOrder::tiles && !matmul_kernels(o.sums).front().supported()) o.kernels = "ref";
        return o;
    }
};

TEST_P(Invariance, ChunksAndDecodeGiveTheBitsOfTheWholeText) {
    ThreadPool pool(2);
    const Model model = load(path(), options(), pool);
    const auto text = random_text(150, model.config().vocab, 1);
    const auto whole = all_logits(model, {text});
    const auto kv = make_pool(model, 1024);
    for (const std::vector<int64_t>& chunks :
         {std::vector<int64_t>{150}, {1}, {64}, {63, 2}, {7, 1, 1, 40}, {100, 1}, {16}})
        EXPECT_TRUE(same_bits(in_chunks(model, *kv, text, chunks), whole)) << "chunks from " << chunks[0];
    EXPECT_EQ(kv->free_pages(), kv->pages()) << "a sequence did not give its pages back";
}

TEST_P(Invariance, OtherSequencesOfTheBatchDoNotChangeBits) {
    ThreadPool pool(2);
    const Model model = load(path(), options(), pool);
    const int64_t vocab = model.config().vocab;
    const auto kv = make_pool(model, 64 * 128);
    for (const int64_t company : {2, 5, 16, 64}) {
        // Decodes prompts of different lengths, then one token each, together and alone.
        std::vector<std::vector<int32_t>> texts;
        std::vector<Sequence> sequences;
        for (int64_t i = 0; i < company; ++i) {
            texts.push_back(random_text(3 + i * 7 % 60, vocab, static_cast<unsigned>(i)));
            sequences.push_back(kv->sequence());
        }
        std::vector<Segment> prompts, steps;
        for (size_t i = 0; i < texts.size(); ++i)
            prompts.push_back({&sequences[i], std::span(texts[i]).first(texts[i].size() - 1), 1 << 20});
        ASSERT_TRUE(model.forward(Batch(prompts), {}).ok());
        for (size_t i = 0; i < texts.size(); ++i) steps.push_back({&sequences[i], std::span(texts[i]).last(1), 0});
        std::vector<float> together(static_cast<size_t>(company * vocab));
        ASSERT_TRUE(model.forward(Batch(steps), together).ok());
        for (size_t i = 0; i<texts.size(); i += texts.size()> 16 ? 7 : 1) {
            const auto alone = all_logits(model, {texts[i]});
            EXPECT_TRUE(same_bits(std::span(alone).last(size_t(vocab)),
                                  std::span(together).subspan(i * size_t(vocab), size_t(vocab))))
                << "sequence " << i << " of " << company;
        }
    }
}

TEST_P(Invariance, ThreadsAndInstructionSetsDoNotChangeBits) {
    std::vector<float> expected;
    for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const MatmulKernels& kernels : matmul_kernels(GetParam().sums)) {
            if (!kernels.supported() || (threads == 3 && kernels.name == "ref")) continue;
            ModelOptions o = options();
            o.kernels = kernels.name;
            const Model model = load(path(), o, pool);
            const auto logits = all_logits(model, {random_text(70, model.config().vocab, 3)});
            if (expected.empty()) expected = logits;
            EXPECT_TRUE(same_bits(logits, expected)) << kernels.name << ", " << threads << " threads";
        }
    }
}

TEST_P(Invariance, AForkContinuesLikeItsOriginal) {
    ThreadPool pool(2);
    const Model model = load(path(), options(), pool);
    const int64_t vocab = model.config().vocab;
    const auto kv = make_pool(model, 1024);
    const auto text = random_text(130, vocab, 4);
    for (const size_t prefix : {64u, 100u, 128u}) {
        Sequence first = kv->sequence();
        ASSERT_TRUE(model.forward(Batch({{&first, std::span(text).first(prefix), 1 << 20}}), {}).ok());
        auto fork = first.fork();
        ASSERT_TRUE(fork.ok());
        // The original sequence continues differently first; the fork must not be affected.
        const std::vector<int32_t> other = random_text(3, vocab, 5);
        std::vector<float> ignored(size_t(3 * vocab)), logits((130 - prefix) * size_t(vocab));
        ASSERT_TRUE(model.forward(Batch({{&first, other, 0}}), ignored).ok());
        ASSERT_TRUE(model.forward(Batch({{&*fork, std::span(text).subspan(prefix), 0}}), logits).ok());
        const auto whole = all_logits(model, {text});
        EXPECT_TRUE(same_bits(logits, std::span(whole).subspan(prefix * size_t(vocab)))) << prefix;
    }
    EXPECT_EQ(kv->free_pages(), kv->pages());
}

INSTANTIATE_TEST_SUITE_P(
    Models, Invariance,
    testing::Values(InvarianceCase{"model", {}}, InvarianceCase{"model", {}, Compute::f32},
                    InvarianceCase{"model", KvFormat::fp8_cast}, InvarianceCase{"model", KvFormat::fp8_page},
                    InvarianceCase{"models/qwen3_moe", KvFormat::fp8_page}, InvarianceCase{"models/llama", {}},
                    InvarianceCase{"models/qwen2", KvFormat::nvfp4_cast}, InvarianceCase{"models/qwen3", {}},
                    InvarianceCase{"compressed-tensors/nvfp4a16", {}},
                    InvarianceCase{"compressed-tensors/fp8_dynamic", {}},
                    InvarianceCase{"compressed-tensors/fp8_block", {}, Compute::f32},
                    InvarianceCase{"compressed-tensors/mxfp4a16", {}}, InvarianceCase{"models/mixtral", {}},
                    InvarianceCase{"models/qwen3_moe", {}, Compute::f32}, InvarianceCase{"models/deepseek_v3", {}},
                    InvarianceCase{"models/nemotron_h", {}}, InvarianceCase{"families/qwen3_next", {}},
                    InvarianceCase{"families/qwen3_5_moe", {}, Compute::f32},
                    InvarianceCase{"models/nemotron_h", {}, Compute::f32, SsmStateFormat::fp16_stochastic},
                    InvarianceCase{"models/nemotron_h", {}, Compute::f32, SsmStateFormat::fp16},
                    InvarianceCase{"models/nemotron_h", {}, Compute::bf16, SsmStateFormat::bf16},
                    InvarianceCase{"model", {}, Compute::bf16, SsmStateFormat::f32, SumOrder::tiles},
                    InvarianceCase{
                        "compressed-tensors/fp8_block", {}, Compute::bf16, SsmStateFormat::f32, SumOrder::tiles},
                    InvarianceCase{"models/qwen3_moe", {}, Compute::bf16, SsmStateFormat::f32, SumOrder::tiles}));

}  // namespace
}  // namespace nibble::test
