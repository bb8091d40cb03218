# pyright: strict
"""A program that mypy and pyright accept in strict mode: arrays of numpy, jobs, answers."""

import numpy as np
import numpy.typing as npt

import nibble

Floats = npt.NDArray[np.float32]


def product(x: Floats, w: Floats) -> Floats:
    q = nibble.quantize(w, "nvfp4", four_over_six=True)
    scales: Floats | None = q.block_scales
    assert scales is not None
    decoded: Floats = q.dequantize("float32")
    assert decoded.shape == w.shape and q.bits < 5.0
    return np.asarray(nibble.matmul(x, nibble.Packed(q), inputs="nvfp4", input_scale=0.01), np.float32)


def job(source: str, out: str) -> float:
    report = nibble.quantize_checkpoint(source, out, "w4a16_nvfp4", ignore=["*o_proj*"], progress=False)
    rows: list[dict[str, object]] = report.rows()
    return report.sqnr_db + len(rows)


def answers(model: str) -> list[str]:
    params = nibble.SamplingParams(temperature=0, max_tokens=8, stop=["\n"], logprobs=1)
    with nibble.LLM(model, max_model_len=128) as llm:
        return [output.outputs[0].text for output in llm.generate(["a", "b"], params)]


async def stream(model: str) -> str:
    text = ""
    engine = nibble.AsyncLLM(model)
    async for output in engine.generate("hello", nibble.SamplingParams(), request_id="1"):
        text = output.outputs[0].text
    return text


def names(path: str) -> list[str]:
    with nibble.open(path) as checkpoint:
        return [name for name, info in checkpoint.items() if info.quantized and info.shape[0] > 0]
