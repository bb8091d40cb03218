// Answers under load equal, bit for bit, the answers to each request alone: for several model families, with a cache
// that is too small, shared prefixes, drafts, priorities, constraints (some faulty) and cancellations.
#include "engine/faulty_model.h"
#include "engine/random_load.h"
#include "engine/small_models.h"

namespace nibble::test {
namespace {

class BatchInvariance : public testing::TestWithParam<SmallModel> {};

TEST_P(BatchInvariance, AnswersUnderLoadEqualThoseOfEachRequestAlone) {
    ThreadPool pool(2);
    const auto model = load_small(GetParam(), pool);
    expect_same_under_load(model.get(), model.get(), GetParam().golden ? 50 : 100, false);
}

TEST_P(BatchInvariance, OverlappingStepsGiveTheSameAnswers) {
    ThreadPool pool(2);
    const auto model = load_small(GetParam(), pool);
    const Overlapping overlapping(*model, 29, 0);
    expect_same_under_load(model.get(), &overlapping, GetParam().golden ? 70 : 100, true);
    EXPECT_GT(overlapping.carried(), 200);
    EXPECT_GT(overlapping.masked(), 200);
}

TEST_P(BatchInvariance, PromptPiecesByTimeGiveTheSameAnswers) {
    ThreadPool pool(2);
    const auto model = load_small(GetParam(), pool);
    const Overlapping overlapping(*model, 29, 0);
    expect_same_under_load(model.get(), &overlapping, GetParam().golden ? 40 : 60, true, 1.5);
}

// Drafts by prediction layers in a model that chooses tokens on its device.
TEST(PredictedDrafts, DoNotChangeAnswersOfAModelThatChoosesTokens) {
    ThreadPool pool(2);
    for (const SmallModel& m : small_models()) {
        if (!m.prediction) continue;
        const auto model = load_small(m, pool);
        const Faulty chooser(*model, true, 29, 0);
        expect_same_under_load(model.get(), &chooser, 60, false);
    }
}

// Recurrent states and pages of preempted choices are computed again.
TEST(HybridPreemption, GivesTheSameAnswers) {
    ThreadPool pool(2);
    for (const char* name : {"hybrid", "hybrid_bf16_states"})
        for (const bool prefix_cache : {false, true}) {
            const auto model = load_small(
                {name, false, {}, std::string(name) == "hybrid" ? SsmStateFormat::f32 : SsmStateFormat::bf16}, pool);
            const auto layouts = model->states();
            const auto engine =
                make_engine(*model, {.sequences = 3,
                                     .step_rows = 64,
                                     .kv_memory = std::max(pool_bytes(layouts, 384, 5), pool_bytes(layouts, 0, 10)),
                                     .prefix_cache = prefix_cache});
            std::vector<Request> requests;
            for (int i = 0; i < 6; ++i) {
                Request& r = requests.emplace_back();
                for (int k = 0; k < 70 + i; ++k) r.prompt.push_back((k * (i / 2 + 3) + 1) % 64);
                r.max_tokens = 230 + i;
                r.sampling.seed = uint64_t(i);
            }
            const auto heard = run_all(*engine, requests);
            for (size_t i = 0; i < requests.size(); ++i)
                EXPECT_EQ(heard[i].choices, run_alone(*model, requests[i]).choices) << name << " " << i;
            EXPECT_GT(engine->stats().preemptions, 0) << name << " " << prefix_cache;
            EXPECT_EQ(engine->stats().used_pages, 0);
        }
}

INSTANTIATE_TEST_SUITE_P(Families, BatchInvariance, testing::ValuesIn(small_models()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nibble::test
