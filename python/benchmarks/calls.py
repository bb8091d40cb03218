"""The numbers of the Python package, each with its target: python python/benchmarks/calls.py [MODEL]

Times of calls are processor times, so that other programs do not count: the best of several runs. Ratios compare
measurements that take turns. MODEL, a folder, adds the engine next to `nibble bench throughput`. torch is measured
where it is installed. tools/bench-python runs this over the wheel of a build.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import timeit

import nibble
from nibble import _core


def best(function, number, repeat=7):
    """Microseconds of one call, of all threads."""
    return min(timeit.repeat(function, timer=time.process_time, number=number, repeat=repeat)) / number * 1e6


def line(name, value, unit, target=""):
    print(f"{name:<62} {value:>10.3f} {unit:<9} {target}", flush=True)


def imports():
    code = "import time; t = time.process_time(); import nibble; print(time.process_time() - t)"
    return min(float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout) for _ in range(7)) * 1e3


def tensors(name, small, large, targets):
    q = nibble.quantize(small)
    line(f"{name}: 16 x 16 BF16 quantize with out=", best(lambda: nibble.quantize(small, out=q), 20000), "us", targets and "<= 1.5")
    line(f"{name}: 16 x 16 BF16 quantize with a new result", best(lambda: nibble.quantize(small), 20000), "us", targets and "<= 5")
    big = nibble.quantize(large)
    line(f"{name}: 4096 x 4096 BF16 quantize with out=", best(lambda: nibble.quantize(large, out=big), 1, 15) / 1e3, "ms")


def kernel(large):
    """quantize of 4096 x 4096 BF16 over the kernels that it runs, in one thread: the scan for the maximum, then the codes."""
    info = nibble.build_info()
    command = [info["program"], "bench", "quantize", "--rows", "4096", "--cols", "4096", "--threads", "1", "--kernels", info["cpu_kernels"][0], "--json"]
    q = nibble.quantize(large)
    nibble.set_threads(1)
    ratios = []  # ratios of the shortest wall times, which the program measures, too
    for _ in range(5):
        done = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["results"]
        fastest = {r["operation"]: large.nbytes / r["most"] for r in done}
        call = min(timeit.repeat(lambda: nibble.quantize(large, out=q), number=1, repeat=15))
        ratios.append(call / (fastest["scan"] + fastest["nvfp4 max"]))
    nibble.set_threads(0)
    line("numpy: 4096 x 4096 BF16 quantize over its kernels, one thread", sorted(ratios)[2], "times", "<= 1.02")


def products(np):
    """scaled_mm over the time of the same product on a packed weight. The pairs take turns; the middle ratio counts."""
    rng = np.random.default_rng(0)
    a, b = (nibble.quantize(rng.standard_normal((n, 2048)).astype(np.float32)) for n in (256, 2048))
    left, right = a.to_scaled_mm(), b.to_scaled_mm()

    def scaled():
        nibble.scaled_mm(left["mat"], right["mat"].T, left["scale"], left["recipe"], right["scale"], right["recipe"], left["swizzle"],
                         right["swizzle"], output_dtype="float32")

    packed, x = nibble.Packed(b), a.dequantize()
    def with_packed():
        nibble.scaled_mm(left["mat"], packed, left["scale"], left["recipe"], swizzle_a=left["swizzle"], output_dtype="float32")

    times = [tuple(best(f, 1, 3) for f in (scaled, with_packed, lambda: nibble.matmul(x, packed))) for _ in range(9)]
    line("matmul 256 x 2048 x 2048 with a packed weight, NVFP4", sorted(t[2] for t in times)[4] / 1e3, "ms")
    for i, name in enumerate(("scaled_mm", "scaled_mm with a packed weight")):
        line(f"  {name} over it", sorted(t[i] / t[2] for t in times)[4], "times", "<= 1.05")


def interrupt():
    """Milliseconds from SIGINT to the exception in a long call."""
    import numpy as np

    big = np.ones((4096, 4096), np.float32)
    sent = [0.0]

    def send():
        time.sleep(0.3)
        sent[0] = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send).start()
    try:
        while True:
            nibble.quantize(big)
    except KeyboardInterrupt:
        return (time.perf_counter() - sent[0]) * 1e3


async def streams(engine, prompts, params):
    async def one(i, prompt):
        async for _ in engine.generate(prompt, params, request_id=str(i)):
            pass

    await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts)))


def engine(model, tokens=64):
    """Tokens per second of LLM and AsyncLLM over those of the program. They take turns; the middle ratio counts."""
    program = nibble.build_info()["program"]
    params = nibble.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)

    def bench(requests):
        done = subprocess.run([program, "bench", "throughput", model, "--isl", "32", "--osl", str(tokens), "--requests", str(requests), "--json"],
                              capture_output=True, text=True, check=True).stdout
        return json.loads(done)["loads"][0]["output_tokens_per_second"]

    def prompts(requests):
        return [{"prompt_token_ids": [(7 * i + j) % 200 + 5 for j in range(32)]} for i in range(requests)]

    def whole(requests):
        with nibble.LLM(model) as llm:
            llm.generate(prompts(8), params)
            start = time.perf_counter()
            llm.generate(prompts(requests), params)
            return requests * tokens / (time.perf_counter() - start)

    def streamed(requests):
        async def many():
            asynchronous = nibble.AsyncLLM(model)
            start = time.perf_counter()
            await streams(asynchronous, prompts(requests), params)
            seconds = time.perf_counter() - start
            asynchronous.close()
            return requests * tokens / seconds

        return asyncio.run(many())

    for name, run, requests, target in (("LLM.generate, 512 prompts", whole, 512, ">= 0.98"),
                                        ("AsyncLLM.generate, 256 streams", streamed, 256, ">= 0.95")):
        pairs = [(bench(requests), run(requests)) for _ in range(5)]
        line(f"nibble bench throughput, {requests} requests", sorted(p[0] for p in pairs)[2], "tokens/s")
        line(name, sorted(p[1] for p in pairs)[2], "tokens/s")
        line("  over bench throughput", sorted(p[1] / p[0] for p in pairs)[2], "times", target)


def main():
    line("import nibble", imports(), "ms", "<= 30")
    nothing, x = _core.nothing, object()
    line("a call of the module that does nothing", (best(lambda: nothing(x), 200000) - best(lambda: x, 200000)) * 1e3, "ns", "<= 50")
    try:
        import ml_dtypes
        import numpy as np
    except ImportError:
        print("numpy and ml_dtypes are not installed")
        return
    rng = np.random.default_rng(0)
    small, large = (rng.standard_normal((n, n)).astype(np.float32) for n in (16, 4096))
    tensors("numpy", small.astype(ml_dtypes.bfloat16), large.astype(ml_dtypes.bfloat16), "")
    try:
        import torch
    except ImportError:
        print("torch is not installed")
    else:
        # The time of torch for a result of this size shows the machine's current speed.
        line("torch: an empty 16 x 16 tensor", best(lambda: torch.empty((16, 16)), 20000), "us")
        tensors("torch", torch.from_numpy(small).to(torch.bfloat16), torch.from_numpy(large).to(torch.bfloat16), "target")
    kernel(large.astype(ml_dtypes.bfloat16))
    products(np)
    line("from SIGINT to KeyboardInterrupt in quantize", interrupt(), "ms", "<= 100")
    if len(sys.argv) > 1:
        engine(sys.argv[1])


if __name__ == "__main__":
    main()
