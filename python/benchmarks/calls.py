"""Times of the Python package in microseconds, best of several runs: python python/benchmarks/calls.py [MODEL]

The table of docs/python.md, "Times". MODEL, a folder, adds the engine. torch is measured where it is installed.
"""

import subprocess
import sys
import time
import timeit

import nibble
from nibble import _core


def best(function, number, repeat=7):
    """Microseconds of one call."""
    return min(timeit.repeat(function, number=number, repeat=repeat)) / number * 1e6


def line(name, value, unit="us"):
    print(f"{name:<58} {value:10.3f} {unit}")


def imports():
    code = "import time; t = time.perf_counter(); import nibble; print(time.perf_counter() - t)"
    return min(float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout) for _ in range(7)) * 1e3


def tensors(name, small, large):
    q = nibble.quantize(small)
    line(f"{name}: 16 x 16 BF16 quantize with out=", best(lambda: nibble.quantize(small, out=q), 20000))
    line(f"{name}: 16 x 16 BF16 quantize with a new result", best(lambda: nibble.quantize(small), 20000))
    big = nibble.quantize(large)
    line(f"{name}: 4096 x 4096 BF16 quantize with out=", best(lambda: nibble.quantize(large, out=big), 1, 15) / 1e3, "ms")


def engine(model):
    prompts = [f"Prompt number {i} of the benchmark" for i in range(64)]
    params = nibble.SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    with nibble.LLM(model) as llm:
        llm.generate(prompts, params)
        start = time.perf_counter()
        llm.generate(prompts, params)
        seconds = time.perf_counter() - start
        line("LLM.generate, 64 prompts of 64 tokens", 64 * 64 / seconds, "tokens/s")


def main():
    line("import nibble", imports(), "ms")
    nothing, x = _core.nothing, object()
    line("a call of the module that does nothing", best(lambda: nothing(x), 200000) - best(lambda: x, 200000))
    try:
        import ml_dtypes
        import numpy as np
    except ImportError:
        print("numpy and ml_dtypes are not installed")
        return
    rng = np.random.default_rng(0)
    small, large = (rng.standard_normal((n, n)).astype(np.float32) for n in (16, 4096))
    tensors("numpy and ml_dtypes", small.astype(ml_dtypes.bfloat16), large.astype(ml_dtypes.bfloat16))
    try:
        import torch
    except ImportError:
        print("torch is not installed")
    else:
        tensors("torch", torch.from_numpy(small).to(torch.bfloat16), torch.from_numpy(large).to(torch.bfloat16))
    if len(sys.argv) > 1:
        engine(sys.argv[1])


if __name__ == "__main__":
    main()
