// `nibble launch slurm|kubernetes ... -- COMMAND`: writes a batch script or manifest, submits it, follows its log and
// returns its status.
#include "base/child_process.h"
#include "base/mapped_file.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "cli/usage.h"
#include "io/atomic_file.h"
#include "jobs/launch_script.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

namespace nibble {
namespace {

struct LaunchConfig : LaunchJob {
    std::string template_file, script;
    std::vector<std::string> following;
    bool dry_run = false;
};

Result<pid_t> start_words(std::vector<std::string> words) {
    const std::string program = words[0];
    auto child = start_child({.words = std::move(words)});
    if (!child.ok()) return fail("cannot start {}: {}", program, child.error().message());
    return child;
}

// Returns the exit status; 128 + the signal that ended the program.
int status_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

Result<int> run_words(std::vector<std::string> words) {
    NIBBLE_TRY(const pid_t child, start_words(std::move(words)));
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status_of(status);
}

// Prints what a program adds to a log until the program ends; returns its exit status.
Result<int> follow_log(const std::string& path, pid_t child) {
    int log = -1, status = 0;
    bool ended = false;
    for (;;) {
        if (log < 0) log = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        char text[4096];
        ssize_t n = 0;
        while (log >= 0 && (n = ::read(log, text, sizeof text)) > 0) {
            std::fwrite(text, 1, static_cast<size_t>(n), stdout);
            std::fflush(stdout);
        }
        if (ended) break;
        ended = ::waitpid(child, &status, WNOHANG) == child;
        if (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    if (log >= 0) ::close(log);
    return status_of(status);
}

Result<Outcome> outcome_of(const LaunchConfig& config, int status) {
    if (status == 0) return Outcome{};
    return fail("job {}: ended with status {}; {}", config.name, status,
                config.system == LaunchSystem::slurm ? fmt::format("its log is {}", config.log)
                                                     : fmt::format("kubectl describe job {}", config.name));
}

Result<Outcome> submit(const LaunchConfig& config, const std::string& file) {
    if (config.system == LaunchSystem::slurm) {
        // sbatch prints the number of the job, and ends with its status.
        NIBBLE_TRY(const pid_t child, start_words({"sbatch", "--wait", file}));
        NIBBLE_TRY(const int status, follow_log(config.log, child));
        return outcome_of(config, status);
    }
    NIBBLE_TRY(const int applied, run_words({"kubectl", "apply", "-f", file}));
    if (applied != 0) return outcome_of(config, applied);
    const bool serves = !config.command.empty() && config.command[0] == "serve";
    if (is_group(config)) {
        NIBBLE_TRY(const int ready, run_words({"kubectl", "wait", "--for=condition=Available", "--timeout=-1s",
                                               "leaderworkerset/" + config.name}));
        return outcome_of(config, ready);
    }
    const std::string object = (serves ? "deployment/" : "job/") + config.name;
    if (serves) {
        NIBBLE_TRY(const int ready, run_words({"kubectl", "rollout", "status", object}));
        return outcome_of(config, ready);
    }
    // The log ends when the pod does; a job that failed never becomes complete.
    NIBBLE_TRY(const pid_t logs, start_words({"kubectl", "logs", "--follow", "--pod-running-timeout=1h", object}));
    NIBBLE_TRY(const pid_t failed, start_words({"kubectl", "wait", "--for=condition=failed", "--timeout=-1s", object}));
    NIBBLE_TRY(const pid_t complete,
               start_words({"kubectl", "wait", "--for=condition=complete", "--timeout=-1s", object}));
    int status = 1;
    for (;;) {
        int ended = 0;
        if (::waitpid(complete, &ended, WNOHANG) == complete) {
            status = status_of(ended);
            break;
        }
        if (::waitpid(failed, &ended, WNOHANG) == failed) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    for (const pid_t other : {failed, complete, logs})
        if (::waitpid(other, nullptr, WNOHANG) == 0) {
            ::kill(other, SIGTERM);
            ::waitpid(other, nullptr, 0);
        }
    return outcome_of(config, status);
}

Result<Outcome> run_launch(LaunchConfig config) {
    if (!config.command.empty() && config.command[0] == "nibble") config.command.erase(config.command.begin());
    const bool slurm = config.system == LaunchSystem::slurm;
    if (config.log.empty()) config.log = std::filesystem::absolute(config.name + ".log").string();
    if (config.script.empty()) config.script = config.name + (slurm ? ".sbatch" : ".yaml");
    for (const std::string& line : config.following) {
        std::istringstream in(line);
        std::vector<std::string> words;
        for (std::string word; in >> word;) words.push_back(word);
        if (words.empty()) return fail(ErrorKind::usage, "--then: names no command");
        if (words[0] == "nibble") words.erase(words.begin());
        config.then.push_back(std::move(words));
    }
    std::string text(launch_template(config));
    if (!config.template_file.empty()) {
        NIBBLE_TRY(text, read_text_file(config.template_file, size_t{1} << 20));
    }
    NIBBLE_TRY(const std::string script, launch_script(config, text));
    if (config.dry_run) {
        fmt::print("{}", script);
        return Outcome{};
    }
    NIBBLE_CHECK(write_file_atomically(config.script, script));
    return submit(config, config.script);
}

void add_system(CLI::App& launch, RunCommand& run, LaunchSystem system) {
    auto config = std::make_shared<LaunchConfig>();
    config->system = system;
    const bool slurm = system == LaunchSystem::slurm;
    CLI::App* command = launch.add_subcommand(
        slurm ? "slurm" : "kubernetes",
        slurm ? "submit a batch script with sbatch and follow its log" : "apply a manifest with kubectl and follow it");
    command->add_option("command", config->command, "after --: the nibble command that all ranks run")->required();
    command->add_option("--name", config->name, "name of the job")->capture_default_str();
    command->add_option("--nodes", config->nodes, slurm ? "number of nodes" : "number of pods, or replicas of a server")
        ->check(CLI::Range(1, 100'000))
        ->capture_default_str();
    command->add_option("--gpus-per-rank", config->gpus_per_rank, "GPUs of a rank")
        ->check(CLI::Range(0, 64))
        ->capture_default_str();
    command->add_option("--program", config->program, "nibble on the machines of the job")->capture_default_str();
    command
        ->add_option("--then", config->following,
                     "command that one rank runs after the first succeeded; may be given several times")
        ->allow_extra_args(false);
    command->add_option("--template", config->template_file,
                        "file in place of the built-in template; {{command}} and others are replaced");
    command->add_option("--script", config->script, "file to write; default: NAME.sbatch or NAME.yaml");
    command->add_flag("--dry-run", config->dry_run, "print the script or manifest and stop");
    if (slurm) {
        command->add_option("--ranks-per-node", config->ranks_per_node, "ranks of a node")
            ->check(CLI::Range(1, 1024))
            ->capture_default_str();
        command->add_option("--time", config->time, "limit of the job")->capture_default_str();
        command->add_option("--log", config->log, "log file on the shared file system; default: NAME.log");
    } else {
        command->add_option("--image", config->image, "container image")->capture_default_str();
        command->add_option("--claim", config->claim, "volume claim that is mounted at /models")->capture_default_str();
    }
    command->footer(slurm ? "Example:\n"
                            "  nibble launch slurm --nodes 4 --then 'verify /shared/OUT' -- quantize /shared/MODEL -o "
                            "/shared/OUT --recipe w4a16_nvfp4"
                          : "Examples:\n"
                            "  nibble launch kubernetes --nodes 4 -- quantize /models/MODEL -o /models/OUT --recipe "
                            "w4a16_nvfp4\n"
                            "  nibble launch kubernetes --nodes 2 --dry-run -- serve /models/OUT --host 0.0.0.0");
    command->callback([config, &run] { run = [config] { return run_launch(*config); }; });
}

}  // namespace

void add_launch(CLI::App& app, RunCommand& run) {
    CLI::App* command = app.add_subcommand("launch", "run a command on a cluster: Slurm or Kubernetes");
    command->require_subcommand(1);
    add_system(*command, run, LaunchSystem::slurm);
    add_system(*command, run, LaunchSystem::kubernetes);
}

}  // namespace nibble
