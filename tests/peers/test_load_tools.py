"""Runs load generators, proxies and Prometheus against a nibble server: `test_load_tools.py build/cpu/nibble [WORD]`

Every load generator is installed into an environment of its own below .cache/load_tools; nginx, haproxy, caddy and
prometheus are Debian packages (tools/setup --peers). One that cannot be installed is reported as skipped, by name.
Requirements: each ends with status 0 after the requested number of requests; a stream passes each proxy piece by piece,
with the request's headers; every query of vLLM's dashboard gives numbers. Exit status 77: nothing could run.
"""
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from peer_server import SECONDS, Server, Skipped, environment, free_port, get, model_folder, run_tests, wait_for

REQUESTS = 8
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def finished(server):
    return sum(float(v) for v in re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", get(server.url + "/metrics"), re.M))


# Load generators: the package, and the command that sends REQUESTS requests. {bin}: the environment's programs, {url}:
# the server, {model}: the folder with the tokenizer, {work}: a folder for results.
GENERATORS = {
    "aiperf": ("aiperf==0.13.0", "{bin}/aiperf profile --model tiny --url {url} --endpoint-type chat --streaming --concurrency 2 --request-count 8 "
                         "--tokenizer {model} --synthetic-input-tokens-mean 40 --output-tokens-mean 8 --ui simple --artifact-dir {work}"),
    "guidellm": ("guidellm==0.8.1", "{bin}/guidellm run --backend kind=openai_http,target={url},model=tiny --profile kind=concurrent,streams=2 "
                             "--constraint kind=max_requests,count=8 --tokenizer kind=hf_auto,model={model} "
                             "--data kind=synthetic_text,prompt_tokens=40,output_tokens=8 --output kind=json,path={work}/out.json "
                             "--disable-console-interactive"),
    "evalscope": ("evalscope[perf]==1.14.1", "{bin}/evalscope perf --url {url}/v1/chat/completions --model tiny --api openai --parallel 2 --number 8 "
                                     "--dataset random --tokenizer-path {model} --min-prompt-length 20 --max-prompt-length 40 --max-tokens 8 "
                                     "--outputs-dir {work}"),
    "inference-perf": ("inference-perf==0.7.0", "{bin}/inference-perf --config_file {work}/config.yml"),
}
INFERENCE_PERF = """
load:
  type: constant
  stages: [{rate: 4, duration: 3}]
api: {type: completion, streaming: true}
server: {type: vllm, model_name: tiny, base_url: %(url)s, ignore_eos: true}
tokenizer: {pretrained_model_name_or_path: %(model)s}
data:
  type: random
  input_distribution: {min: 20, max: 40, mean: 30, std_dev: 5, total_count: 16}
  output_distribution: {min: 4, max: 8, mean: 6, std_dev: 1, total_count: 16}
storage: {local_storage: {path: %(work)s}}
"""


def run_generator(name, server, folder):
    package, command = GENERATORS[name]
    programs = environment(name, package)
    with tempfile.TemporaryDirectory() as work:
        words = {"bin": str(programs), "url": server.url, "model": folder, "work": work}
        (pathlib.Path(work) / "config.yml").write_text(INFERENCE_PERF % words)
        before = finished(server)
        # If the Hub is set to be offline, aiperf takes a folder for a name of the Hub.
        # evalscope reads a field of its progress bar that a disabled bar does not have.
        variables = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "TQDM_DISABLE")}
        result = subprocess.run(command.format(**words).split(), cwd=work, text=True, capture_output=True, timeout=SECONDS,
                                env={**variables, "COLUMNS": "200"})
        said = (result.stdout + result.stderr)[-3000:]
        assert result.returncode == 0, f"ended with {result.returncode}: {said}"
        done = finished(server) - before
        assert done >= REQUESTS, f"{done} requests were finished: {said}"


# Proxies: the configuration, and the command that uses it. {port}: the proxy's port, {upstream}: the server's port.
PROXIES = {
    "nginx": ("nginx", """
daemon off; error_log stderr; pid {work}/nginx.pid; events {{}}
http {{
  access_log off; client_body_temp_path {work}/body; proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/f; uwsgi_temp_path {work}/u; scgi_temp_path {work}/s;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream}; proxy_read_timeout 1h; }} }}
}}
""", "nginx -e stderr -c {config}"),
    "haproxy": ("haproxy", """
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen nibble
  bind 127.0.0.1:{port}
  option httpchk GET /health
  server one 127.0.0.1:{upstream} check
""", "haproxy -db -f {config}"),
    "caddy": ("caddy", """
{{
  admin off
  auto_https off
}}
http://127.0.0.1:{port} {{
  reverse_proxy 127.0.0.1:{upstream}
}}
""", "caddy run --adapter caddyfile --config {config}"),
}


class Started:
    """Runs a Debian program with a configuration for the duration of a `with`."""

    def __init__(self, program, config, command, **words):
        if not (path := shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")):
            raise Skipped(f"{program} is not installed (tools/setup --peers)")
        self.work = tempfile.mkdtemp()
        file = pathlib.Path(self.work) / "config"
        file.write_text(config.format(work=self.work, **words))
        arguments = command.format(config=file, work=self.work, **words).split()
        self.log = open(pathlib.Path(self.work) / "log", "w+")
        self.process = subprocess.Popen([path, *arguments[1:]], stdout=self.log, stderr=self.log, cwd=self.work,
                                        env={**os.environ, "XDG_DATA_HOME": self.work, "XDG_CONFIG_HOME": self.work, "HOME": self.work})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
        shutil.rmtree(self.work, ignore_errors=True)


def run_proxy(name, server, _):
    program, config, command = PROXIES[name]
    port = free_port()
    with Started(program, config, command, port=port, upstream=server.port):
        url = f"http://127.0.0.1:{port}"
        wait_for(url + "/health")
        assert [m["id"] for m in json.loads(get(url + "/v1/models"))["data"]] == ["tiny"]
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10000, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", "X-Request-Id": "through-" + name, "traceparent": TRACE})
        arrived, last = [], b""
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            assert answer.headers["X-Request-Id"] == "through-" + name and answer.headers["traceparent"] == TRACE, answer.headers
            for line in answer:
                if line.startswith(b"data: "):
                    arrived.append(time.monotonic())
                    last = line
        assert last.strip() == b"data: [DONE]" and len(arrived) > 5000, (last, len(arrived))
        # A proxy that buffers the stream delivers it all at its end.
        whole = arrived[-1] - arrived[0]
        early = sum(t - arrived[0] < whole / 2 for t in arrived)
        assert whole > 0.1 and early < 0.9 * len(arrived), (whole, early)
        try:
            get(url + "/v1/nothing")
            raise AssertionError("an unknown route is no error")
        except urllib.error.HTTPError as error:
            assert error.code == 404


PROMETHEUS = """
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: nibble
  static_configs: [{{targets: ['127.0.0.1:{upstream}']}}]
"""
SELECT = '{model_name="tiny"}'
QUANTILES = [f"histogram_quantile({q}, sum by(le) (rate(vllm:{name}_seconds_bucket{SELECT}[30s])))" for q in (0.5, 0.9, 0.95, 0.99)
             for name in ("e2e_request_latency", "time_per_output_token", "inter_token_latency", "time_to_first_token")]
RATES = [f"rate(vllm:{name}{SELECT}[30s])" for name in
         ("prompt_tokens_total", "generation_tokens_total", "request_queue_time_seconds_sum", "request_decode_time_seconds_sum",
          "request_prefill_time_seconds_sum", "prefix_cache_hits_total", "prefix_cache_queries_total", "prompt_tokens_cached_total",
          "prompt_tokens_by_source_total", "num_preemptions_total")]
GAUGES = [f"vllm:{name}{SELECT}" for name in ("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason",
                                              "gpu_cache_usage_perc", "kv_cache_usage_perc", "cache_config_info")]
OTHERS = [f"rate(vllm:e2e_request_latency_seconds_sum{SELECT}[30s]) / rate(vllm:e2e_request_latency_seconds_count{SELECT}[30s])",
          f"sum by(le) (increase(vllm:request_prompt_tokens_bucket{SELECT}[30s]))",
          f"sum by(le) (increase(vllm:request_generation_tokens_bucket{SELECT}[30s]))",
          f"sum by(le) (increase(vllm:request_prefill_kv_computed_tokens_bucket{SELECT}[30s]))",
          f"sum by(finished_reason) (increase(vllm:request_success_total{SELECT}[30s]))",
          f"vllm:request_max_num_generation_tokens_sum{SELECT}"]


def run_prometheus(_, server, __):
    port = free_port()
    command = "prometheus --config.file={config} --web.listen-address=127.0.0.1:{port} --storage.tsdb.path={work}/data"
    with Started("prometheus", PROMETHEUS, command, port=port, upstream=server.port):
        def ask(query):
            answer = json.loads(get(f"http://127.0.0.1:{port}/api/v1/query?query=" + urllib.parse.quote(query)))
            assert answer["status"] == "success", answer
            return [float(series["value"][1]) for series in answer["data"]["result"]]

        wait_for(f"http://127.0.0.1:{port}/api/v1/query?query=up", lambda text: '"1"' in text)
        for _ in range(4):
            body = {"model": "tiny", "prompt": "hello", "max_tokens": 20, "ignore_eos": True}
            urllib.request.urlopen(urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode()), timeout=SECONDS).read()
            time.sleep(1)
        time.sleep(2)
        for query in QUANTILES + RATES + GAUGES + OTHERS:
            assert ask(query), f"no series: {query}"
        for query in QUANTILES:
            assert all(value == value for value in ask(query)), f"no number: {query}"


TESTS = {**{name: run_generator for name in GENERATORS}, **{name: run_proxy for name in PROXIES}, "prometheus": run_prometheus}


def main():
    with tempfile.TemporaryDirectory() as work:
        folder = model_folder(os.path.join(work, "tiny"), context=16384)
        server = Server(os.path.abspath(sys.argv[1]), folder)
        status = run_tests({name: functools.partial(run, name, server, folder) for name, run in TESTS.items()})
        server.stop()
    return status


if __name__ == "__main__":
    sys.exit(main())
