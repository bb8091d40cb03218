#include "jobs/launch_script.h"

#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace nibble {
namespace {

constexpr std::string_view slurm_template = R"(#!/bin/sh
#SBATCH --job-name={{name}}
#SBATCH --nodes={{nodes}}
#SBATCH --ntasks-per-node={{ranks_per_node}}
#SBATCH --time={{time}}
#SBATCH --output={{log}}
#SBATCH --open-mode=append
#SBATCH --requeue
{{gpu_line}}
set -e
# A rank that ends does not end the others: they take over its work.
srun --kill-on-bad-exit=0 {{command}}
{{then}})";

constexpr std::string_view job_template = R"(apiVersion: batch/v1
kind: Job
metadata:
  name: {{name}}
spec:
  completionMode: Indexed
  completions: {{ranks}}
  parallelism: {{ranks}}
  backoffLimit: 6
  template:
    metadata:
      labels:
        app: {{name}}
    spec:
      restartPolicy: OnFailure
      containers:
        - name: nibble
          image: {{image}}
          command: ["sh", "-c", {{shell}}]
          env:
            - name: NIBBLE_RANKS
              value: "{{ranks}}"
          resources:
            limits: {{limits}}
          volumeMounts:
            - name: models
              mountPath: /models
      volumes:
        - name: models
          persistentVolumeClaim:
            claimName: {{claim}}
)";

constexpr std::string_view serve_template = R"(apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{name}}
spec:
  replicas: {{ranks}}
  selector:
    matchLabels:
      app: {{name}}
  template:
    metadata:
      labels:
        app: {{name}}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "8000"
        prometheus.io/path: /metrics
    spec:
      # Longer than the server waits for running requests after SIGTERM.
      terminationGracePeriodSeconds: 90
      containers:
        - name: nibble
          image: {{image}}
          command: {{words}}
          ports:
            - name: http
              containerPort: 8000
          startupProbe:
            httpGet:
              path: /v1/health/ready
              port: http
            periodSeconds: 5
            failureThreshold: 240
          readinessProbe:
            httpGet:
              path: /v1/health/ready
              port: http
            periodSeconds: 5
          livenessProbe:
            httpGet:
              path: /v1/health/live
              port: http
            periodSeconds: 10
          resources:
            limits: {{limits}}
          volumeMounts:
            - name: models
              mountPath: /models
              readOnly: true
      volumes:
        - name: models
          persistentVolumeClaim:
            claimName: {{claim}}
---
apiVersion: v1
kind: Service
metadata:
  name: {{name}}
spec:
  selector:
    app: {{name}}
  ports:
    - name: http
      port: 80
      targetPort: http
)";

// A group of pods that serves one model. The pods know their number and the first pod's address by LeaderWorkerSet.
constexpr std::string_view group_template = R"(apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {{name}}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: {{ranks}}
    # A server that lost a rank ends: its group starts again.
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      metadata:
        labels:
          app: {{name}}
          role: leader
        annotations:
          prometheus.io/scrape: "true"
          prometheus.io/port: "8000"
          prometheus.io/path: /metrics
      spec:
        # Longer than the server waits for running requests after SIGTERM.
        terminationGracePeriodSeconds: 90
        containers:
          - name: nibble
            image: {{image}}
            command: ["sh", "-c", {{group_shell}}]
            ports:
              - name: http
                containerPort: 8000
              - name: ranks
                containerPort: 29400
            startupProbe:
              httpGet:
                path: /v1/health/ready
                port: http
              periodSeconds: 5
              failureThreshold: 240
            readinessProbe:
              httpGet:
                path: /v1/health/ready
                port: http
              periodSeconds: 5
            livenessProbe:
              httpGet:
                path: /v1/health/live
                port: http
              periodSeconds: 10
            resources:
              limits: {{limits}}
            volumeMounts:
              - name: models
                mountPath: /models
                readOnly: true
        volumes:
          - name: models
            persistentVolumeClaim:
              claimName: {{claim}}
    workerTemplate:
      metadata:
        labels:
          app: {{name}}
      spec:
        # A rank must not end before the leader has answered the running requests.
        terminationGracePeriodSeconds: 90
        containers:
          - name: nibble
            image: {{image}}
            command: ["sh", "-c", {{group_shell}}]
            resources:
              limits: {{limits}}
            volumeMounts:
              - name: models
                mountPath: /models
                readOnly: true
        volumes:
          - name: models
            persistentVolumeClaim:
              claimName: {{claim}}
---
apiVersion: v1
kind: Service
metadata:
  name: {{name}}
spec:
  selector:
    app: {{name}}
    role: leader
  ports:
    - name: http
      port: 80
      targetPort: http
)";

bool serves(const LaunchJob& job) { return !job.command.empty() && job.command[0] == "serve"; }

// Returns a word as a shell reads it back.
std::string quoted_word(std::string_view word) {
    const auto plain = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               std::string_view("_-./=:,+@%").find(c) != std::string_view::npos;
    };
    if (!word.empty() && std::ranges::all_of(word, plain)) return std::string(word);
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
}

std::string shell_line(const LaunchJob& job, const std::vector<std::string>& words) {
    std::string text = quoted_word(job.program);
    for (const std::string& word : words) text += " " + quoted_word(word);
    return text;
}

}  // namespace

bool is_group(const LaunchJob& job) {
    const int ranks = job.nodes * job.ranks_per_node;
    if (!serves(job) || ranks == 1) return false;
    const std::string number = std::to_string(ranks);
    for (size_t i = 1; i < job.command.size(); ++i)
        for (const std::string_view flag : {"--tensor-parallel-size", "--tp"})
            if (job.command[i] == fmt::format("{}={}", flag, number) ||
                (job.command[i] == number && job.command[i - 1] == flag))
                return true;
    return false;
}

std::string_view launch_template(const LaunchJob& job) {
    if (job.system == LaunchSystem::slurm) return slurm_template;
    if (is_group(job)) return group_template;
    return serves(job) ? serve_template : job_template;
}

Result<std::string> launch_script(const LaunchJob& job, std::string_view text) {
    const auto lines = [](const std::string& word) { return word.find_first_of("\n\r") != std::string::npos; };
    for (const auto* value : {&job.name, &job.time, &job.log, &job.image, &job.claim, &job.program})
        if (lines(*value)) return fail(ErrorKind::usage, "a value of the job contains a line break");
    for (const std::string& word : job.command)
        if (lines(word)) return fail(ErrorKind::usage, "a word of the command contains a line break");
    std::string then, shell = shell_line(job, job.command);
    for (const auto& words : job.then) {
        if (std::ranges::any_of(words, lines))
            return fail(ErrorKind::usage, "a word of a following command contains a line break");
        then += "srun --nodes=1 --ntasks=1 " + shell_line(job, words) + "\n";
    }
    if (!job.then.empty()) {
        // One rank continues; a rank ends when the output is complete.
        shell += " && { [ \"$JOB_COMPLETION_INDEX\" != 0 ] || {";
        for (const auto& words : job.then)
            shell += fmt::format(" env -u NIBBLE_RANKS -u JOB_COMPLETION_INDEX {} &&", shell_line(job, words));
        shell += " true; }; }";
    }
    std::vector<std::string> words{job.program};
    words.insert(words.end(), job.command.begin(), job.command.end());
    const Json limits = job.gpus_per_rank > 0 ? Json{{"nvidia.com/gpu", job.gpus_per_rank}} : Json::object();
    const std::map<std::string, std::string, std::less<>> values{
        {"name", job.name},
        {"nodes", std::to_string(job.nodes)},
        {"ranks_per_node", std::to_string(job.ranks_per_node)},
        {"ranks", std::to_string(job.nodes * job.ranks_per_node)},
        {"time", job.time},
        {"log", job.log},
        {"image", job.image},
        {"claim", job.claim},
        {"gpu_line", job.gpus_per_rank > 0
                         ? fmt::format("#SBATCH --gres=gpu:{}", job.gpus_per_rank * job.ranks_per_node)
                         : "# no GPUs"},
        {"limits", limits.dump()},
        {"command", shell_line(job, job.command)},
        {"then", then},
        {"shell", Json(shell).dump()},
        {"group_shell",
         Json("NIBBLE_RANK=$LWS_WORKER_INDEX NIBBLE_RANKS=$LWS_GROUP_SIZE NIBBLE_ADDRESS=$LWS_LEADER_ADDRESS:29400 "
              "exec " +
              shell_line(job, job.command))
             .dump()},
        {"words", Json(words).dump()}};
    std::string out;
    for (size_t at = 0;;) {
        const size_t begin = text.find("{{", at);
        out += text.substr(at, begin == text.npos ? text.npos : begin - at);
        if (begin == text.npos) return out;
        const size_t end = text.find("}}", begin);
        if (end == text.npos) return fail(ErrorKind::usage, "the template has {{{{ without }}}}");
        const std::string_view name = text.substr(begin + 2, end - begin - 2);
        const auto found = values.find(name);
        if (found == values.end()) {
            std::string known;
            for (const auto& [key, value] : values) known += (known.empty() ? "" : ", ") + key;
            return fail(ErrorKind::usage, "the template has the unknown placeholder {{{{{}}}}}; there are {}", name,
                        known);
        }
        out += found->second;
        at = end + 2;
    }
}

}  // namespace nibble
