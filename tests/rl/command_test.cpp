// Tests `nibble rl` from config to trained model, stopped and resumed.
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "run/log.h"
#include "support/files.h"
#include "support/markup_check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace nibble::test {
namespace {

int rl(const TempDir& dir, const std::string& arguments) {
    return std::system(
        fmt::format("cd '{}' && '{}' rl {} < /dev/null > out.txt 2>&1", dir.path().string(), NIBBLE_PROGRAM, arguments)
            .c_str());
}

TEST(RlCommand, RunsStopsAndResumes) {
    TempDir dir;
    write_file(dir / "rl.yaml", fmt::format(R"(
policy:
  model_name: {}
  max_total_sequence_length: 96
  optimizer: {{lr: 0.003}}
  generation: {{max_new_tokens: 16}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 3, max_num_steps: 3, val_period: 2, max_val_samples: 2,
        num_val_generations_per_prompt: 3}}
loss_fn: {{reference_policy_kl_penalty: 0.01}}
data: {{task: sort, chat: false, prompt: "Q: {{}}\nA:"}}
)",
                                            test_data("chat").string()));
    ASSERT_EQ(rl(dir, "rl.yaml -o whole --threads 2"), 0) << read_file(dir / "out.txt");
    EXPECT_NE(read_file(dir / "out.txt").find("mismatch_tokens 0 of "), std::string::npos);
    const auto log = read_run_log(dir / "whole/train.jsonl");
    ASSERT_TRUE(log.ok()) << log.error().message();
    ASSERT_EQ(log->size(), 4u);
    for (size_t i = 1; i < 4; ++i) {
        EXPECT_EQ((*log)[i]["mismatch_tokens"], 0);
        EXPECT_EQ((*log)[i]["token_mult_prob_error"], 1.0);
        EXPECT_EQ((*log)[i]["max_seq_mult_prob_error"], 1.0);
        EXPECT_EQ((*log)[i]["num_valid_samples"], 6);
        EXPECT_EQ((*log)[i]["compared_tokens"], (*log)[i]["generated_tokens"]);
        EXPECT_EQ((*log)[i]["answers"], 6);
        EXPECT_EQ((*log)[i].contains("validation_reward"), i == 2);
        if (i != 2) continue;
        EXPECT_EQ((*log)[i]["validation_prompts"], 2);
        EXPECT_EQ((*log)[i]["validation_answers"], 3);
        for (const char* name : {"avg_at_k", "pass_at_k", "cons_at_k"}) EXPECT_GE((*log)[i][name], 0.0) << name;
    }
    // Checks the page and the samples.
    const std::string page = read_file(dir / "whole/report.html"), samples = read_file(dir / "whole/samples.json");
    EXPECT_EQ(page_data(page)["samples"]["step"], 2);
    EXPECT_EQ(page_data(page)["fields"]["mismatch_tokens"]["sum"], 0);
    EXPECT_EQ(page.find("http-equiv=\"refresh\""), std::string::npos) << "the run is over";
    EXPECT_NE(samples.find("\"same\":true"), std::string::npos);
    EXPECT_EQ(samples.find("\"same\":false"), std::string::npos);
    const std::string events = read_file(dir / "whole/events/events.out.tfevents.00000000");
    for (const char* tag :
         {"train/reward", "train/grad_norm", "train/lr", "train/token_mult_prob_error", "train/mismatch_tokens",
          "validation/accuracy", "validation/pass_at_k", "timing/train/generation", "timing/train/policy_training",
          "train/kl_penalty", "train/mean_seq_mult_prob_error", "train/num_valid_samples",
          "train/num_masked_seqs_by_logprob_error", "train/filtered_tokens", "train/outside_truncation"})
        EXPECT_NE(events.find(tag), std::string::npos) << tag;
    // Two steps, then one more, give the same weights.
    ASSERT_EQ(rl(dir, "rl.yaml -o parts --steps 2 --threads 1"), 0) << read_file(dir / "out.txt");
    ASSERT_EQ(rl(dir, "rl.yaml -o parts --resume --threads 1 --quiet"), 0) << read_file(dir / "out.txt");
    EXPECT_EQ(read_file(dir / "out.txt"), "");
    EXPECT_EQ(read_file(dir / "parts/model/model.safetensors"), read_file(dir / "whole/model/model.safetensors"));
    EXPECT_EQ(read_file(dir / "parts/samples.json"), samples);
    // Things that a run must refuse.
    std::filesystem::remove_all(dir / "parts/model");
    EXPECT_NE(rl(dir, "rl.yaml -o parts --resume --steps 2"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"),
              "nibble: parts: has already completed 3 steps, but this run has 2; give more steps\n");
    // only the model is written
    ASSERT_EQ(rl(dir, "rl.yaml -o parts --resume --quiet"), 0) << read_file(dir / "out.txt");
    EXPECT_EQ(read_file(dir / "parts/model/model.safetensors"), read_file(dir / "whole/model/model.safetensors"));
    std::string stops = read_file(dir / "rl.yaml");
    stops.replace(stops.find("max_new_tokens: 16"), 18, "max_new_tokens: 16, stop_token_ids: [7, 272]");
    write_file(dir / "stops.yaml", stops);
    EXPECT_NE(rl(dir, "stops.yaml -o stops"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"),
              fmt::format("nibble: policy.generation.stop_token_ids: 272 is none of the 272 "
                          "tokens of {}\n",
                          test_data("chat").string()));
    EXPECT_NE(rl(dir, "rl.yaml -o whole"), 0);
    EXPECT_NE(read_file(dir / "out.txt")
                  .find("whole: has a finished run; run more steps with --resume, or choose another output"),
              std::string::npos);
    EXPECT_NE(rl(dir, "rl.yaml"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"), "nibble: rl.yaml: 'output' is missing; or give -o DIR\n");
}

TEST(RlCommand, SavesNothingWhereCheckpointsAreOff) {
    TempDir dir;
    write_file(dir / "rl.yaml", fmt::format(R"(
policy: {{model_name: {}, max_total_sequence_length: 96, generation: {{max_new_tokens: 8}}}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 2}}
loss_fn: {{reference_policy_kl_penalty: 0}}
data: {{task: sort, chat: false}}
checkpointing: {{enabled: false}}
)",
                                            test_data("chat").string()));
    ASSERT_EQ(rl(dir, "rl.yaml -o run --threads 2"), 0) << read_file(dir / "out.txt");
    EXPECT_TRUE(std::filesystem::is_empty(dir / "run/checkpoints"));
    EXPECT_TRUE(std::filesystem::exists(dir / "run/model/model.safetensors"));
    // Without a checkpoint the run and its log start again; the log of another run stays.
    std::filesystem::remove_all(dir / "run/model");
    const std::string log = read_file(dir / "run/train.jsonl");
    std::string other = read_file(dir / "rl.yaml");
    other.replace(other.find("max_num_steps: 2"), 16, "max_num_steps: 2, seed: 9");
    write_file(dir / "other.yaml", other);
    EXPECT_NE(rl(dir, "other.yaml -o run --resume"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"),
              "nibble: run: has 2 lines of a run with another config or data, and no checkpoint of it; remove it "
              "or choose another output\n");
    EXPECT_EQ(read_file(dir / "run/train.jsonl"), log);
    ASSERT_EQ(rl(dir, "rl.yaml -o run --resume --threads 1 --quiet"), 0) << read_file(dir / "out.txt");
    EXPECT_EQ(read_run_log(dir / "run/train.jsonl")->size(), 3u);
    EXPECT_NE(rl(dir, "rl.yaml -o run --resume"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"),
              "nibble: run: has a finished run without a checkpoint; choose another output\n");
    EXPECT_NE(rl(dir, "rl.yaml -o other --gpu-memory 0.5"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"), "nibble: --gpu-memory: belongs to --device cuda\n");
    EXPECT_FALSE(std::filesystem::exists(dir / "other"));
}

// Replaces the identity in a checkpoint by `text`, in the form of version 1 (before commit 8d459c62).
void write_identity(const std::filesystem::path& file, const std::string& text) {
    const auto stored = SafetensorsFile::open(file);
    ASSERT_TRUE(stored.ok());
    auto about = parse_json(stored->metadata().at("nibble_run"));
    ASSERT_TRUE(about.ok());
    (*about)["version"] = 1;
    (*about)["identity"] = text;
    std::vector<TensorSpec> specs;
    for (const TensorRecord& t : stored->tensors()) specs.push_back({t.name, t.dtype, t.shape});
    const std::filesystem::path written = file.string() + ".new";
    auto writer =
        SafetensorsFileWriter::create(written, *SafetensorsLayout::make(specs, {{"nibble_run", about->dump()}}));
    ASSERT_TRUE(writer.ok());
    for (size_t i = 0; i < specs.size(); ++i) ASSERT_TRUE(writer->write(i, 0, stored->tensors()[i].data).ok());
    ASSERT_TRUE(writer->finish().ok());
    std::filesystem::rename(written, file);
}

// A config with equal values in another spelling, explicit defaults and another path of the model, and a checkpoint of
// an earlier version, whose identity has the texts of the values.
TEST(RlCommand, ResumesByValue) {
    TempDir dir;
    std::filesystem::copy(test_data("chat"), dir / "m", std::filesystem::copy_options::recursive);
    const std::string like =
        "policy: {{model_name: {}, max_total_sequence_length: 96, generation: {{max_new_tokens: 8{}}}, optimizer: "
        "{{lr: "
        "{}}}}}\n"
        "grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 2{}}}\n"
        "data: {{task: sort, chat: {}}}\ncheckpointing: {{save_period: 1}}\n";
    write_file(dir / "rl.yaml", fmt::format(fmt::runtime(like), "m", "", "3.0e-3", "", "false"));
    write_file(dir / "same.yaml",
               fmt::format(fmt::runtime(like), "./m", ", temperature: 1.0", "0.003", ", seed: 42", "no"));
    write_file(dir / "other.yaml", fmt::format(fmt::runtime(like), "m", "", "4.0e-3", "", "false"));
    ASSERT_EQ(rl(dir, "rl.yaml -o whole --quiet"), 0) << read_file(dir / "out.txt");
    const auto resumes = [&](const std::string& name) {
        ASSERT_EQ(rl(dir, "same.yaml -o " + name + " --resume"), 0) << read_file(dir / "out.txt");
        EXPECT_NE(read_file(dir / "out.txt").find("resuming after 1 steps"), std::string::npos);
        EXPECT_EQ(read_file(dir / name / "model/model.safetensors"), read_file(dir / "whole/model/model.safetensors"));
    };
    ASSERT_EQ(rl(dir, "rl.yaml -o run --steps 1 --quiet"), 0) << read_file(dir / "out.txt");
    std::filesystem::remove_all(dir / "run/model");
    std::filesystem::copy(dir / "run", dir / "old", std::filesystem::copy_options::recursive);
    EXPECT_NE(rl(dir, "other.yaml -o run --resume"), 0);
    EXPECT_NE(read_file(dir / "out.txt")
                  .find("belongs to another run: config/policy/optimizer/lr: 0.003 in the checkpoint, 0.004 now"),
              std::string::npos)
        << read_file(dir / "out.txt");
    resumes("run");
    const std::filesystem::path old = dir / "old/checkpoints/step_00000001.safetensors";
    const auto about = parse_json(SafetensorsFile::open(old)->metadata().at("nibble_run"));
    const auto identity = parse_json((*about)["identity"].get<std::string>());
    ASSERT_TRUE(identity.ok());
    write_identity(old, fmt::format(R"({{"policy":{{"model_name":"m","max_total_sequence_length":"96",)"
                                    R"("generation":{{"max_new_tokens":"8"}},"optimizer":{{"lr":"3.0e-3"}},)"
                                    R"("weights":{}}},"grpo":{{"num_prompts_per_step":"2",)"
                                    R"("num_generations_per_prompt":"2"}},"data":{{"task":"sort","chat":"false"}}}})",
                                    (*identity)["weights"].dump()));
    resumes("old");
}

TEST(RlCommand, SetsKeysAndListsThem) {
    TempDir dir;
    write_file(dir / "rl.yaml", "policy: {model_name: M}\ndata: {task: sum}\noutput: o\n");
    EXPECT_NE(rl(dir, "rl.yaml --set grpo.num_prompts=3"), 0);
    EXPECT_NE(read_file(dir / "out.txt").find("--set: grpo has no key 'num_prompts'; it has: num_prompts_per_step"),
              std::string::npos)
        << read_file(dir / "out.txt");
    EXPECT_NE(rl(dir, "rl.yaml --set policy.train_global_batch_size=5"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"),
              "nibble: rl.yaml: policy.train_global_batch_size 5 does not divide the 512 answers of a step\n");
    ASSERT_EQ(rl(dir, "--keys"), 0);
    EXPECT_NE(read_file(dir / "out.txt").find("policy.optimizer.lr\n    number from 0 to 10; default: 5e-06\n"),
              std::string::npos)
        << read_file(dir / "out.txt");
}

TEST(RlCommand, AChangedInitialModelIsReported) {
    TempDir dir;
    std::filesystem::copy(test_data("chat"), dir / "m", std::filesystem::copy_options::recursive);
    write_file(dir / "rl.yaml", R"(
policy: {model_name: m, max_total_sequence_length: 96, generation: {max_new_tokens: 8}, optimizer: {lr: 0.003}}
grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 2}
data: {task: sort, chat: false}
checkpointing: {save_period: 1}
)");
    ASSERT_EQ(rl(dir, "rl.yaml -o run --quiet"), 0) << read_file(dir / "out.txt");
    std::string weights = read_file(dir / "m/model.safetensors");
    weights[weights.size() - 2] = static_cast<char>(weights[weights.size() - 2] ^ 1);
    write_file(dir / "m/model.safetensors", weights);
    std::filesystem::remove_all(dir / "run/model");
    EXPECT_NE(rl(dir, "rl.yaml -o run --resume --steps 3"), 0);
    EXPECT_NE(read_file(dir / "out.txt").find("belongs to another run: weights: "), std::string::npos)
        << read_file(dir / "out.txt");
    std::string longer = read_file(dir / "rl.yaml");
    longer.replace(longer.find("max_total_sequence_length: 96"), 29, "max_total_sequence_length: 100000");
    write_file(dir / "longer.yaml", longer);
    EXPECT_NE(rl(dir, "longer.yaml -o longer"), 0);
    EXPECT_NE(read_file(dir / "out.txt").find("policy.max_total_sequence_length 100000: m has a context of "),
              std::string::npos)
        << read_file(dir / "out.txt");
}

TEST(RlCommand, LearnsFromRowsOfFiles) {
    TempDir dir;
    std::string rows;
    for (int i = 0; i < 5; ++i)
        rows +=
            fmt::format("{{\"question\": \"What is {0} + 1?\", \"answer\": \"{0} + 1 = {1}\\n#### {1}\"}}\n", i, i + 1);
    write_file(dir / "train.jsonl", rows);
    write_file(dir / "held.jsonl", rows.substr(0, rows.find('\n')));
    write_file(dir / "rl.yaml", fmt::format(R"(
policy:
  model_name: {}
  max_total_sequence_length: 96
  generation: {{max_new_tokens: 8}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 4, val_period: 2, max_val_samples: 9}}
loss_fn: {{reference_policy_kl_penalty: 0}}
data: {{train: train.jsonl, validation: held.jsonl, input_key: question, output_key: answer, chat: false, prompt: "Q: {{}}\nA:"}}
)",
                                            test_data("chat").string()));
    ASSERT_EQ(rl(dir, "rl.yaml -o whole"), 0) << read_file(dir / "out.txt");
    const auto log = read_run_log(dir / "whole/train.jsonl");
    ASSERT_EQ(log->size(), 5u);
    EXPECT_EQ((*log)[2]["validation_prompts"], 1);  // all rows of the file
    EXPECT_EQ((*log)[4]["mismatch_tokens"], 0);
    ASSERT_EQ(rl(dir, "rl.yaml -o parts --steps 3"), 0) << read_file(dir / "out.txt");
    std::filesystem::remove_all(dir / "parts/model");
    ASSERT_EQ(rl(dir, "rl.yaml -o parts --resume"), 0) << read_file(dir / "out.txt");
    EXPECT_EQ(read_file(dir / "parts/model/model.safetensors"), read_file(dir / "whole/model/model.safetensors"));
    // Other rows are another run; a broken row is named.
    std::filesystem::remove_all(dir / "parts/model");
    write_file(dir / "train.jsonl", rows + rows);
    EXPECT_NE(rl(dir, "rl.yaml -o parts --resume --steps 5"), 0);
    EXPECT_NE(read_file(dir / "out.txt").find("data"), std::string::npos) << read_file(dir / "out.txt");
    write_file(dir / "train.jsonl", rows + "{\"question\": \"\"}\n");
    EXPECT_NE(rl(dir, "rl.yaml -o other"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"), "nibble: train.jsonl: line 6: 'question': is empty\n");
    EXPECT_FALSE(std::filesystem::exists(dir / "other"));
}

// A time limit ends a run with its state saved. The final export has codes, scales of inputs, and scales of the cache.
class RlCommandCodes : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(RlCommandCodes, SavesInTimeAndExportsCodes) {
    const auto& [recipe, algorithm] = GetParam();
    TempDir dir;
    const auto config = [&](std::string_view more) {
        write_file(dir / "rl.yaml", fmt::format(R"(
policy:
  model_name: {}
  precision: {}
  max_total_sequence_length: 96
  generation: {{max_new_tokens: 8, kv_cache_dtype: fp8}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 3}}
loss_fn: {{reference_policy_kl_penalty: 0}}
data: {{task: sum, chat: false}}
{}
)",
                                                test_data("chat").string(), recipe, more));
    };
    config("export: {format: fp8_block128}");
    EXPECT_NE(rl(dir, "rl.yaml -o run"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"),
              "nibble: export.format: fp8_block128; the forward products of rollouts are nvfp4\n");
    config("export: {format: nvfp4}");
    ASSERT_EQ(rl(dir, "rl.yaml -o whole"), 0) << read_file(dir / "out.txt");
    EXPECT_THAT(read_file(dir / "out.txt"),
                testing::HasSubstr("model-nvfp4: the policy in the quantized format of its rollouts\n"));
    // After every step the time limit forbids another one.
    config("checkpointing: {checkpoint_must_save_by: 0.001}\nexport: {format: nvfp4}");
    for (int done = 1; done < 3; ++done) {
        EXPECT_NE(rl(dir, "rl.yaml -o run --resume --quiet"), 0);
        EXPECT_EQ(
            read_file(dir / "out.txt"),
            fmt::format("nibble: stopped after {} of 3 steps by checkpoint_must_save_by; resume it with --resume\n",
                        done));
        EXPECT_FALSE(std::filesystem::exists(dir / "run/model"));
    }
    ASSERT_EQ(rl(dir, "rl.yaml -o run --resume --quiet"), 0) << read_file(dir / "out.txt");
    for (const char* file : {"model/model.safetensors", "model-nvfp4/model.safetensors"})
        EXPECT_EQ(read_file(dir / "run" / file), read_file(dir / "whole" / file)) << file;
    EXPECT_NE(read_file(dir / "whole/events/events.out.tfevents.00000000").find("train/kv_clipped"), std::string::npos);
    const std::string served = fmt::format(
        "cd '{}' && '{}' generate whole/model-nvfp4 'What is 1 + 2?' --max-tokens 4 "
        "< /dev/null > out.txt 2>&1",
        dir.path().string(), NIBBLE_PROGRAM);
    EXPECT_EQ(std::system(served.c_str()), 0) << read_file(dir / "out.txt");
    const auto config_json = read_json_file(dir / "whole/model-nvfp4/hf_quant_config.json");
    ASSERT_TRUE(config_json.ok()) << config_json.error().message();
    EXPECT_EQ((*config_json)["quantization"]["kv_cache_quant_algo"], "FP8");
    EXPECT_EQ((*config_json)["quantization"]["quant_algo"], algorithm);
    const auto read = Checkpoint::open(dir / "whole/model-nvfp4");
    ASSERT_TRUE(read.ok()) << read.error().message();
    for (const CheckpointTensor& t : (*read)->tensors())
        if (t.quantized()) {
            EXPECT_EQ(t.input_scale.has_value(), std::string_view(algorithm) == "NVFP4") << t.name;
        }
    const auto log = read_run_log(dir / "run/train.jsonl");
    ASSERT_TRUE(log.ok()) << log.error().message();
    for (size_t i = 1; i < log->size(); ++i) EXPECT_EQ((*log)[i]["mismatch_tokens"], 0);
}
INSTANTIATE_TEST_SUITE_P(All, RlCommandCodes,
                         testing::Values(std::pair{"nvfp4_w4a16", "W4A16_NVFP4"}, std::pair{"nvfp4_w4a4", "NVFP4"}),
                         [](const auto& i) { return std::string(i.param.first); });

TEST(RlCommand, ReportsWhereTheServedModelDiffersFromThePolicy) {
    TempDir dir;
    write_file(dir / "rl.yaml", fmt::format(R"(
policy:
  model_name: {}
  precision: {{recipe: nvfp4, row_scaled: true}}
  max_total_sequence_length: 96
  generation: {{max_new_tokens: 4}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 1}}
loss_fn: {{reference_policy_kl_penalty: 0}}
data: {{task: sum, chat: false}}
export: {{format: nvfp4}}
)",
                                            test_data("chat").string()));
    ASSERT_EQ(rl(dir, "rl.yaml -o run"), 0) << read_file(dir / "out.txt");
    EXPECT_THAT(read_file(dir / "out.txt"), testing::HasSubstr("format of its rollouts; its inputs stay BF16"));
}

// Runs programs as answers from start to end. The model's answers are not programs: there is no reward and no failure,
// in validation too.
TEST(RlCommand, JudgesProgramsInASandbox) {
    TempDir dir;
    write_file(dir / "rows.jsonl", R"({"text": "Write f.", "test_list": ["assert f(1) == 2"]}
{"text": "Print 3.", "test_list": {"inputs": [""], "outputs": ["3"]}}
)");
    write_file(dir / "rl.yaml", fmt::format(R"(
policy:
  model_name: {}
  max_total_sequence_length: 96
  generation: {{max_new_tokens: 8}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 2, val_period: 2, max_val_samples: 2}}
loss_fn: {{reference_policy_kl_penalty: 0}}
data: {{train: rows.jsonl, validation: rows.jsonl, input_key: text, output_key: test_list, reward: code, chat: false,
        code: {{seconds: 2, memory_mib: 256, partial: true}}}}
)",
                                            test_data("chat").string()));
    const int status = rl(dir, "rl.yaml -o run");
    const std::string out = read_file(dir / "out.txt");
    if (out.starts_with("nibble: data.reward: sandbox: ")) {  // the machine forbids user namespaces
        EXPECT_NE(status, 0);
        EXPECT_EQ(std::ranges::count(out, '\n'), 1);
        EXPECT_FALSE(std::filesystem::exists(dir / "run/train.jsonl"));
        GTEST_SKIP() << out;
    }
    ASSERT_EQ(status, 0) << out;
    const auto log = read_run_log(dir / "run/train.jsonl");
    ASSERT_TRUE(log.ok()) << log.error().message();
    ASSERT_EQ(log->size(), 3u);
    for (size_t i = 1; i < 3; ++i) {
        EXPECT_EQ((*log)[i]["answers"], 4);
        EXPECT_EQ((*log)[i]["failures"], 0);
        EXPECT_EQ((*log)[i]["reward"], 0.0);
    }
    EXPECT_EQ((*log)[2]["validation_reward"], 0.0);
}

// The start shows the formats of every layer, of the cache and of queries, except with --json and --quiet.
TEST(RlCommand, PrintsTheFormatsAtTheStart) {
    TempDir dir;
    const auto start = [&](std::string_view precision, std::string_view generation, std::string_view flags = "") {
        write_file(dir / "rl.yaml", fmt::format(R"(
policy:
  model_name: {}
  precision: {}
  max_total_sequence_length: 96
  generation: {{max_new_tokens: 4{}}}
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 1}}
loss_fn: {{reference_policy_kl_penalty: 0}}
data: {{task: sum, chat: false}}
)",
                                                test_data("chat").string(), precision, generation));
        std::filesystem::remove_all(dir / "run");
        EXPECT_EQ(rl(dir, fmt::format("rl.yaml -o run {}", flags)), 0) << read_file(dir / "out.txt");
        return read_file(dir / "out.txt");
    };
    const std::string nvfp4 =
        start("{recipe: nvfp4, row_scaled: true, first_bf16: 1}", ", kv_cache_dtype: fp8, query_dtype: fp8");
    EXPECT_THAT(nvfp4, testing::HasSubstr("\n  layer 0 q_proj: forward BF16"));
    EXPECT_THAT(nvfp4, testing::ContainsRegex("\n  layers? 1[-0-9]* q_proj: forward NVFP4"));
    EXPECT_THAT(nvfp4, testing::HasSubstr("\n  KV cache: FP8 E4M3, one scale for K and one for V in each layer, in "
                                          "updates too; queries: FP8 E4M3, one scale in each layer\n"));
    EXPECT_THAT(nvfp4, testing::Not(testing::HasSubstr("rollouts: ")));
    const std::string apart = start("bf16", ", precision: mxfp8, num_first_layers_in_bf16: 1, kv_cache_dtype: fp8");
    EXPECT_THAT(apart, testing::HasSubstr("\n  rollouts: mxfp8, first_bf16 1, weights of their own\n"));
    EXPECT_THAT(apart, testing::HasSubstr("in each layer, in rollouts alone; queries: BF16\n"));
    EXPECT_THAT(start("bf16", ""), testing::HasSubstr("\n  KV cache: BF16; queries: BF16\n"));
    for (const char* flag : {"--json", "--quiet"})
        EXPECT_THAT(start("bf16", "", flag), testing::Not(testing::HasSubstr("KV cache"))) << flag;
}

TEST(RlCommand, TranslatesRecipesAndOverwritesNothing) {
    TempDir dir;
    write_file(dir / "nemo.yaml", "policy: {model_name: M}\ngrpo: {seed: 7, val_at_start: true}\n");
    ASSERT_EQ(rl(dir, "--from-nemo nemo.yaml -o rl.yaml"), 0) << read_file(dir / "out.txt");
    EXPECT_NE(read_file(dir / "out.txt").find("not mapped: nemo.yaml:2: grpo.val_at_start true: "), std::string::npos);
    const std::string config = read_file(dir / "rl.yaml");
    EXPECT_NE(config.find("  seed: 7\n"), std::string::npos);
    EXPECT_NE(rl(dir, "--from-nemo nemo.yaml -o rl.yaml"), 0);
    EXPECT_EQ(read_file(dir / "out.txt"), "nibble: rl.yaml: exists already; choose another output\n");
    EXPECT_EQ(read_file(dir / "rl.yaml"), config);
    ASSERT_EQ(rl(dir, "--from-nemo nemo.yaml"), 0);
    EXPECT_NE(read_file(dir / "out.txt").find(config), std::string::npos);
}

}  // namespace
}  // namespace nibble::test
