#include "cli/bench_serve.h"

#include "cli/engine.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "measure/serve.h"

namespace nibble {

void add_bench_serve(CLI::App& bench, RunCommand& run) {
    auto config = std::make_shared<BenchServeOptions>();
    CLI::App* command =
        bench.add_subcommand("serve", "measure latencies and throughput of an OpenAI-compatible server");
    command
        ->add_option(
            "TARGET", config->targets,
            "http://HOST:PORT of an OpenAI-compatible server, unix:PATH, or a checkpoint to serve during the test")
        ->required();
    command->add_option("--concurrency", config->concurrencies, "concurrent clients (closed loop); default 1, 4 and 16")
        ->delimiter(',')
        ->check(CLI::Range(1, 4096));
    command->add_option("--request-rate", config->rates, "requests per second (open loop, exponential gaps)")
        ->delimiter(',')
        ->check(CLI::Range(1e-3, 1e6));
    command
        ->add_option("--requests", config->requests,
                     "requests per load; default: --rounds per client, or 64 with --request-rate")
        ->check(CLI::Range(1, 1 << 24));
    command
        ->add_option("--rounds", config->rounds, "requests per client if --requests is not given; at least 16 in total")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--isl", config->plan.input_tokens, "tokens per random prompt")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    command->add_option("--osl", config->plan.output_tokens, "tokens per answer")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    command->add_option("--prompts", config->prompts,
                        "file with lines {\"prompt\"} or {\"text\"}, instead of random tokens");
    command
        ->add_option("--vocabulary", config->plan.vocabulary,
                     "upper limit of random token ids; default for a checkpoint: its vocabulary")
        ->check(CLI::Range(8, 1 << 22))
        ->capture_default_str();
    command->add_option("--model", config->plan.model, "model name in requests; default: the server's first model");
    command->add_option("--api-key", config->key, "API key of the server");
    command->add_option("--seed", config->plan.seed, "seed of random prompts and gaps")->capture_default_str();
    command
        ->add_option("--goodput-ttft", config->goal_ttft_ms,
                     "goal for the first token in ms; goodput counts requests that meet the goals")
        ->check(CLI::Range(1e-3, 1e9));
    command->add_option("--goodput-tpot", config->goal_tpot_ms, "goal for each further token in ms")
        ->check(CLI::Range(1e-3, 1e9));
    command->add_option("-o,--page", config->page,
                        "write an HTML page with the table and a plot of throughput and latency");
    command->add_option("--max-num-seqs", config->served.sequences, "for a checkpoint: most answers that run together")
        ->check(CLI::Range(0, 4096));
    command
        ->add_option("--prompt-stretch", config->served.prompt_stretch, "for a checkpoint: see `nibble serve --help`")
        ->check(CLI::Range(0.0, 1e6));
    add_json_flag(*command, config->json);
    add_cache_flags(*command, config->served.cache);
    add_engine_flags(*command, config->served.engine, config->quiet);
    command->footer(
        "Example:\n  nibble bench serve SmolLM2-135M --concurrency 1,4,16 --isl 128 --osl 64\n"
        "  nibble bench serve http://127.0.0.1:8080 --request-rate 2,4,8");
    command->callback([config, &run] {
        run = [config]() -> Result<Outcome> {
            NIBBLE_TRY(const bool failed, bench_serve(*config, printing_hooks(config->quiet), stdout));
            return Outcome{.findings = failed};
        };
    });
}

}  // namespace nibble
