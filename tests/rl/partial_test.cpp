// Tests asynchronous rollouts: answers continue with the next weights, old tokens are weighted, and checkpoints store
// unfinished answers.
#include "rl/policy_trainer.h"
#include "rl/rl_log.h"
#include "rl/token_task.h"
#include "run/log.h"
#include "run/state.h"
#include "support/files.h"
#include "train/small_trainer.h"

#include <fmt/format.h>

#include <cstdlib>

namespace nibble::test {
namespace {

// Lengths of answers range from 1 to 75, with a mean of 20.
const std::vector<int32_t> ends{3, 30};

RlConfig partial_config() {
    RlConfig c{.prompts = 3, .generations = 4, .steps = 10, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.loss.kl_penalty = 0;
    c.loss.importance_sampling_correction = true;
    c.generation.most_tokens = 75;
    c.async = RlAsync{.most_age = 2, .prompts_in_flight = 6, .round_tokens = 8};
    return c;
}

struct PartialRun {
    std::vector<RlStep> steps;
    std::vector<float> masters;
    std::vector<Json> places;  // before each step, and at the end
    int64_t engine_steps = 0;
};

PartialRun partial_run(const RlConfig& config, int count, int threads = 2, int64_t sequences = 64,
                       const TrainPrecision& precision = {}) {
    ThreadPool pool(threads);
    const auto trainer = small_trainer(pool, {.precision = precision, .optimizer = config.optimizer});
    TokenTask task(share_of_even_tokens);
    const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = ends, .sequences = sequences});
    EXPECT_TRUE(policy.ok()) << policy.error().message();
    PartialRun run;
    for (int s = 0; s < count; ++s) {
        run.places.push_back((*policy)->place());
        auto step = (*policy)->step(s);
        EXPECT_TRUE(step.ok()) << step.error().message();
        if (!step.ok()) break;
        run.steps.push_back(*std::move(step));
    }
    run.places.push_back((*policy)->place());
    run.engine_steps = (*policy)->engine().stats().steps;
    run.masters = all_masters(trainer->parameters());
    return run;
}

TEST(PartialRollouts, TokensOfTheNewWeightsAreExactAndOldOnesAreMarked) {
    for (const TrainPrecision& precision :
         {TrainPrecision{.recipe = TrainRecipe::bf16}, TrainPrecision{.recipe = TrainRecipe::fp8_block}}) {
        const PartialRun run = partial_run(partial_config(), 5, 2, 64, precision);
        ASSERT_EQ(run.steps.size(), 5u);
        int mixed = 0;
        for (const RlStep& s : run.steps) {
            EXPECT_EQ(s.metrics.mismatch_tokens, 0) << s.step;
            EXPECT_EQ(s.metrics.max_abs_diff, 0);
            EXPECT_EQ(s.metrics.tokens, s.generated_tokens);
            // Log-probabilities of old tokens differ under the new weights; importance weights account for it.
            EXPECT_EQ(s.metrics.token_mult_prob_error > static_cast<double>(s.metrics.tokens),
                      s.metrics.off_policy_tokens > 0);
            EXPECT_EQ(s.answers, 12);
            mixed += s.metrics.off_policy_tokens > 0 && s.metrics.off_policy_tokens < s.metrics.tokens;
            const Json line = to_json(s, std::nullopt, 1);
            EXPECT_EQ(line["off_policy_tokens"], s.metrics.off_policy_tokens);
            EXPECT_EQ(line["unfinished_answers"], *s.unfinished);
        }
        EXPECT_EQ(run.steps[0].metrics.off_policy_tokens, 0);
        EXPECT_GT(mixed, 1);
        EXPECT_GT(run.places.back()["rollouts"].size(), 0u);
    }
}

// Which answers are whole first depends only on tokens.
TEST(PartialRollouts, ThreadsAndBatchesChangeNoBit) {
    const PartialRun one = partial_run(partial_config(), 4, 1, 2), other = partial_run(partial_config(), 4, 3, 64);
    EXPECT_EQ(one.masters, other.masters);
    EXPECT_EQ(one.places, other.places);
}

// The purpose of asynchronous rollouts: as many learned answers with fewer engine steps.
TEST(PartialRollouts, UpdatesDoNotWaitForTheLongestAnswer) {
    RlConfig config = partial_config();
    const PartialRun partial = partial_run(config, 16);
    config.async.reset();
    const PartialRun whole = partial_run(config, 16);
    int64_t partial_tokens = 0, whole_tokens = 0;
    for (const RlStep& s : partial.steps) partial_tokens += s.generated_tokens;
    for (const RlStep& s : whole.steps) whole_tokens += s.generated_tokens;
    EXPECT_EQ(partial.steps.size(), whole.steps.size());
    // Engine steps per learned token.
    EXPECT_LT(3 * partial.engine_steps * whole_tokens, 2 * whole.engine_steps * partial_tokens);
}

TEST(PartialRollouts, ACheckpointRestoresEveryBit) {
    const RlConfig config = partial_config();
    const PartialRun whole = partial_run(config, 4);
    TempDir dir;
    const auto file = dir / "state.safetensors";
    ThreadPool pool(2);
    TokenTask task(share_of_even_tokens);
    for (const int begin : {0, 2}) {
        const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
        const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = ends});
        ASSERT_TRUE(policy.ok());
        if (begin > 0) {
            const auto place = read_state(file, {"same"}, *trainer);
            ASSERT_TRUE(place.ok()) << place.error().message();
            ASSERT_GT(place->source["rollouts"].size(), 0u);
            const auto set = (*policy)->set_place(place->source);
            ASSERT_TRUE(set.ok()) << set.error().message();
        }
        for (int s = begin; s < begin + 2; ++s) ASSERT_TRUE((*policy)->step(s).ok());
        const RunPlace place{.step = begin + 2, .source = (*policy)->place(), .identity = "same"};
        ASSERT_TRUE(write_state(file, *copy_state(*trainer, place)).ok());
        if (begin > 0) {
            EXPECT_EQ(all_masters(trainer->parameters()), whole.masters);
        }
    }
}

TEST(PartialRollouts, ADamagedStateChangesNothing) {
    ThreadPool pool(1);
    const RlConfig config = partial_config();
    const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
    TokenTask task(share_of_even_tokens);
    const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = ends});
    ASSERT_TRUE(policy.ok());
    ASSERT_TRUE((*policy)->step(0).ok());
    const Json good = (*policy)->place();
    const std::function<void(Json&)> faults[] = {
        [](Json& p) { p.erase("prompt"); },
        [](Json& p) { p["rollouts"] = 3; },
        [](Json& p) { p["rollouts"][0]["answers"].erase(0); },
        [](Json& p) { p["rollouts"][0]["answers"][0]["tokens"].push_back(1); },
        [](Json& p) { p["rollouts"][0]["answers"][0]["generated"][0] = "x"; },
        [](Json& p) {
            p["rollouts"][0]["answers"][0]["parts"][0] = {1 << 30, 0, 1};
        },
        [](Json& p) { p["rollouts"][0]["answers"][0]["turn_begin"] = 1000; },
    };
    for (const auto& fault : faults) {
        Json bad = good;
        fault(bad);
        EXPECT_FALSE((*policy)->set_place(bad).ok()) << bad.dump().substr(0, 200);
        EXPECT_EQ((*policy)->place(), good);
    }
    EXPECT_TRUE((*policy)->set_place(good).ok());
    EXPECT_EQ((*policy)->place(), good);
}

TEST(PartialRollouts, TooOldAnswersAreDropped) {
    RlConfig config = partial_config();
    config.async = RlAsync{.most_age = 1, .prompts_in_flight = 12, .round_tokens = 2};
    const PartialRun run = partial_run(config, 5);
    int64_t dropped = 0;
    for (const RlStep& s : run.steps) {
        dropped += s.dropped;
        EXPECT_EQ(s.dropped % 4, 0);
        EXPECT_LE(s.mean_age, 1);
    }
    EXPECT_GT(dropped, 0);
    for (size_t s = 0; s < run.places.size(); ++s) {
        if (!run.places[s].contains("rollouts")) continue;
        for (const Json& group : run.places[s]["rollouts"])
            EXPECT_GE(group["begun"].get<int64_t>(), static_cast<int64_t>(s) - 2);
    }
}

// After a stop between two rounds nothing has changed, and the same step can run again.
TEST(PartialRollouts, AStopChangesNothing) {
    const RlConfig config = partial_config();
    const PartialRun whole = partial_run(config, 3);
    ThreadPool pool(2);
    const auto trainer = small_trainer(pool, {.optimizer = config.optimizer});
    std::atomic<bool> stop{false};
    bool once = false;
    TokenTask task([&](const RolloutPrompt& p, const Rollout& r) {
        if (once) stop = true;
        return share_of_even_tokens(p, r);
    });
    const auto policy = PolicyTrainer::create(config, *trainer, task, {.end_tokens = ends, .stop_requested = &stop});
    ASSERT_TRUE(policy.ok());
    for (int s = 0; s < 3; ++s) {
        once = true;
        const auto stopped = (*policy)->step(s);
        ASSERT_TRUE(stopped.ok()) << stopped.error().message();
        EXPECT_TRUE(stopped->stopped);
        EXPECT_EQ((*policy)->place(), whole.places[static_cast<size_t>(s)]);
        once = stop = false;
        ASSERT_TRUE((*policy)->step(s).ok());
    }
    EXPECT_EQ(all_masters(trainer->parameters()), whole.masters);
}

// With constant weights, an answer generated in pieces is unchanged: tokens, bits, text, and the position of a stop
// string.
TEST(PartialRollouts, PiecesMakeTheSameAnswer) {
    ThreadPool pool(2);
    auto checkpoint = Checkpoint::open(test_data("chat"));
    const auto tokenizer = Tokenizer::from_folder(test_data("chat"));
    ASSERT_TRUE(checkpoint.ok() && tokenizer.ok());
    auto model = Model::load(*std::move(checkpoint), {}, pool);
    ASSERT_TRUE(model.ok()) << model.error().message();
    const auto engine = Engine::create(std::make_shared<const Model>(*std::move(model)), *tokenizer, {.context = 256});
    ASSERT_TRUE(engine.ok()) << engine.error().message();
    TokenTask task(share_of_even_tokens);
    RolloutRequest request{
        .prompts = 4, .answers = 3, .length = 200, .most_tokens = 90, .seed = 4, .end_tokens = {271}};
    const auto free = roll_out(**engine, task, request);
    ASSERT_TRUE(free.ok()) << free.error().message();
    // Stop strings: some text in the middle of each prompt's first answer.
    for (size_t i = 0; i < 12; i += 3)
        if (const std::string& text = free->rollouts[i].text; text.size() > 30)
            request.stop_texts.push_back(text.substr(text.size() / 2, 4));
    ASSERT_GE(request.stop_texts.size(), 2u);
    const auto whole = roll_out(**engine, task, request);
    ASSERT_TRUE(whole.ok());
    for (const int64_t round : {1, 3, 16}) {
        request.round_tokens = round;
        const auto pieces = roll_out(**engine, task, request);
        ASSERT_TRUE(pieces.ok()) << pieces.error().message();
        int stopped = 0;
        for (size_t i = 0; i < 12; ++i) {
            const Rollout& a = whole->rollouts[i];
            const Rollout& b = pieces->rollouts[i];
            EXPECT_EQ(a.tokens, b.tokens) << i;
            EXPECT_EQ(a.generated, b.generated) << i;
            EXPECT_EQ(a.text, b.text) << i;
            EXPECT_EQ(a.cut, b.cut) << i;
            stopped += !a.cut;
        }
        EXPECT_GE(stopped, 2);
    }
}

TEST(PartialRollouts, TheCommandResumesThem) {
    TempDir dir;
    write_file(dir / "rl.yaml", fmt::format(R"(
policy:
  model_name: {}
  max_total_sequence_length: 150
  optimizer: {{lr: 0.003}}
  generation: {{max_new_tokens: 60, stop_strings: [a, e, "1"]}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 3, max_num_steps: 4,
       async_grpo: {{enabled: true, max_trajectory_age_steps: 3, prompts_in_flight: 5, tokens_per_round: 6}}}}
loss_fn: {{reference_policy_kl_penalty: 0, use_importance_sampling_correction: true}}
data: {{task: sum}}
)",
                                            test_data("chat").string()));
    const auto rl = [&](const std::string& arguments) {
        return std::system(fmt::format("cd '{}' && '{}' rl rl.yaml --threads 2 {} < /dev/null > out.txt 2>&1",
                                       dir.path().string(), NIBBLE_PROGRAM, arguments)
                               .c_str());
    };
    ASSERT_EQ(rl("-o whole"), 0) << read_file(dir / "out.txt");
    ASSERT_EQ(rl("-o parts --steps 2"), 0) << read_file(dir / "out.txt");
    std::filesystem::remove_all(dir / "parts/model");
    ASSERT_EQ(rl("-o parts --resume"), 0) << read_file(dir / "out.txt");
    EXPECT_EQ(read_file(dir / "parts/model/model.safetensors"), read_file(dir / "whole/model/model.safetensors"));
    const auto log = read_run_log(dir / "whole/train.jsonl");
    ASSERT_TRUE(log.ok()) << log.error().message();
    int64_t old = 0;
    for (size_t i = 1; i < log->size(); ++i) {
        // If all tokens of a step are of older weights, none is compared, and the log has no count of 0.
        EXPECT_EQ((*log)[i].value("mismatch_tokens", -1), (*log)[i]["compared_tokens"] > 0 ? 0 : -1);
        EXPECT_GT((*log)[i]["unfinished_answers"], 0);
        old += (*log)[i]["off_policy_tokens"].get<int64_t>();
    }
    EXPECT_GT(old, 0);
}

}  // namespace
}  // namespace nibble::test
