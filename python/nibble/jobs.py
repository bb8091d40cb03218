"""The jobs of the program as functions. Names and defaults are those of the C++ options (include/nibble/); a test compares
them. All take `progress` (True, False, a function of nibble.Progress, or tqdm) and `cancel` (an object with is_set()).

A stopped job raises Cancelled, Ctrl-C KeyboardInterrupt; finished work stays on disk and `resume=True` continues it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from . import _core
from . import reports as r
from ._progress import Callbacks, ProgressLike
from ._types import Path, Paths
from .errors import UsageError

__all__ = [
    "calibrate", "convert", "evaluate", "import_gguf", "inspect", "quantize_checkpoint", "recipes", "reinforce", "search",
    "train", "verify",
]


# The options of nibble.serve and nibble.LLM.
serve_defaults: dict[str, Any] = json.loads(_core.serve_defaults)
Judge: TypeAlias = "Callable[[list[dict[str, Any]]], Sequence[float | None | Mapping[str, Any]]]"


def _plain(value: Any) -> Any:
    """Paths as text, sequences as lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def as_json(job: str, options: Mapping[str, Any]) -> str:
    def refuse(value: Any) -> Any:
        name = next(k for k, v in options.items() if v is value or (isinstance(v, list) and any(i is value for i in v)))
        raise UsageError(f"{job}: {name} has a value of a wrong type: {value!r}")

    return json.dumps(options, default=refuse)


def _many(value: Any) -> list[str]:
    """One path or word, or several, as a list."""
    return [_plain(value)] if isinstance(value, (str, os.PathLike)) else [_plain(v) for v in value]


def _run(job: str, options: Mapping[str, Any], progress: ProgressLike = None, cancel: Any = None,
         on_event: Callable[[str], object] | None = None, judge: Callable[[Any], Any] | None = None) -> dict[str, Any]:
    plain = {k: _plain(v) for k, v in options.items()}
    with Callbacks(progress, cancel, on_event, judge) as callbacks:
        return json.loads(_core.jobs.run(job, as_json(job, plain), callbacks))


def _numbers(result: dict[str, Any], *names: str) -> dict[str, Any]:
    """Numbers that are not finite arrive as text."""
    for name in names:
        if result[name] is not None:
            result[name] = float(result[name])
    return result


def quantize_checkpoint(source: Path, out: Path, recipe: Path, *, format: str = "", kv: str = "", ignore: Sequence[str] = (),
                        weights_only: bool = False, input_scales: Path = "", calib_file: Path = "", calib_range: str = "max",
                        calib_tokens: int = 32768, calib_sequence: int = 2048, calib_gradients: int = 8192,
                        calib_all_experts: bool = False, embeddings: str = "none", arithmetic: str = "reciprocal",
                        compat: str = "modelopt-0.47", max_shard_size: str = "5GB", kernels: str = "", device: str = "cpu",
                        threads: int = 0, partial: bool = False, requantize: bool = False, dry_run: bool = False, strict: bool = False,
                        resume: bool = False, progress: ProgressLike = None, cancel: Any = None) -> r.QuantizeReport:
    """Quantizes a checkpoint (a Hugging Face folder or .gguf file) to `out` and verifies what was written.

    The files are those of `nibble quantize`. recipe: a name of recipes() or a recipe file. An empty text is an option that
    is not given.
    """
    options = dict(source=source, out=out, recipe=recipe, format=format, kv=kv, ignore=_many(ignore), weights_only=weights_only,
                   input_scales=input_scales, calib_file=calib_file, calib_range=calib_range, calib_tokens=calib_tokens,
                   calib_sequence=calib_sequence, calib_gradients=calib_gradients, calib_all_experts=calib_all_experts,
                   embeddings=embeddings, arithmetic=arithmetic, compat=compat, max_shard_size=max_shard_size, kernels=kernels,
                   device=device, threads=threads, partial=partial, requantize=requantize, dry_run=dry_run, strict=strict, resume=resume)
    return r.QuantizeReport(**_numbers(_run("quantize", options, progress, cancel), "sqnr_db"))


def calibrate(source: Path, recipe: Path, calib_file: Path, *, out: Path = "", calib_range: str = "max",
              calib_tokens: int = 32768, calib_sequence: int = 2048, calib_all_experts: bool = False, kv: str = "",
              ignore: Sequence[str] = (), kernels: str = "", device: str = "cpu", threads: int = 0,
              progress: ProgressLike = None, cancel: Any = None) -> r.Calibration:
    """Runs a text through the model and returns the scales of activations that the recipe stores.

    out: a .json file for them, as quantize_checkpoint(input_scales=...) reads it.
    """
    options = dict(source=source, recipe=recipe, calib_file=calib_file, out=out, calib_range=calib_range,
                   calib_tokens=calib_tokens, calib_sequence=calib_sequence, calib_all_experts=calib_all_experts, kv=kv,
                   ignore=_many(ignore), kernels=kernels, device=device, threads=threads)
    return r.Calibration(**_run("calibrate", options, progress, cancel))


def convert(source: Path, out: Path, format: str = "", *, drop: Sequence[str] = (), partial: bool = False,
            max_shard_size: str = "5GB", threads: int = 0, progress: ProgressLike = None, cancel: Any = None) -> r.Conversion:
    """Writes a checkpoint in another format: modelopt, compressed-tensors, gguf, or bf16 to decode it."""
    options = dict(source=source, out=out, format=format, drop=_many(drop), partial=partial, max_shard_size=max_shard_size, threads=threads)
    return r.Conversion(**_run("convert", options, progress, cancel))


def import_gguf(file: Path, out: Path, *, pre: str = "", max_shard_size: str = "5GB", threads: int = 0,
                progress: ProgressLike = None, cancel: Any = None) -> r.GgufImport:
    """Writes a GGUF file as a Hugging Face folder in BF16, with tokenizer and chat template."""
    options = dict(file=file, out=out, pre=pre, max_shard_size=max_shard_size, threads=threads)
    return r.GgufImport(**_run("import_gguf", options, progress, cancel))


def verify(paths: Paths, *, against: Path = "", threads: int = 0, partial: bool = False, progress: ProgressLike = None,
           cancel: Any = None) -> r.Verification:
    """Reads every byte of checkpoints and checks it; against their source, measures what was lost."""
    if not _many(paths):
        raise UsageError("verify: give at least one path")
    result = _run("verify", dict(paths=_many(paths), against=against, threads=threads, partial=partial), progress,
                  cancel)
    result["checkpoints"] = [r.VerifiedCheckpoint(**_numbers(c, "sqnr_db")) for c in result["checkpoints"]]
    return r.Verification(**result)


def inspect(path: Path, *, summary: bool = False, configs: bool = True) -> r.Inspection:
    """Lists the tensors of a checkpoint, their formats and bits. rows(): one dictionary a tensor."""
    return r.Inspection(**_run("inspect", dict(path=path, summary=summary, configs=configs), False))


def evaluate(models: Paths, *, against: Path = "", reference_cache: Path = "", text: Path = "", context: int = 512,
             stride: int = 0, chunks: int = 0, lambada: Path = "", choices: Paths = (), gsm8k: Path = "", humaneval: Path = "",
             limit: int = 0, shots: int = 5, out: Path = "", compute: str = "bf16", kv: str = "", ssm_state: str = "f32",
             kernels: str = "", sums: str = "lanes", device: str = "cpu", threads: int = 0, weights_only: bool = False,
             tensor_parallel_size: int = 1, progress: ProgressLike = None, cancel: Any = None) -> r.Evaluation:
    """Measures checkpoints on tasks, and how far they are from a reference (`against`). text: a file."""
    options = dict(models=_many(models), against=against, reference_cache=reference_cache, text=text, context=context,
                   stride=stride, chunks=chunks, lambada=lambada, choices=_many(choices), gsm8k=gsm8k, humaneval=humaneval,
                   limit=limit, shots=shots, out=out, compute=compute, kv=kv, ssm_state=ssm_state, kernels=kernels, sums=sums,
                   device=device, threads=threads, weights_only=weights_only, tensor_parallel_size=tensor_parallel_size)
    result = _run("evaluate", options, progress, cancel)
    result["measured"] = [r.Measured(**_numbers(m, "value", "standard_error")) for m in result["measured"]]
    return r.Evaluation(**result)


def search(source: Path, out: Path, *, bits: float = 4.8, formats: Sequence[str] = ("nvfp4", "fp8"), keep: Sequence[str] = (),
           cost_model: str = "weights", score: str = "fisher", scores: Path = "", calib_file: Path = "",
           calib_range: str = "max", calib_tokens: int = 4096, calib_sequence: int = 512, calib_gradients: int = 8192,
           calib_all_experts: bool = False, sweep_low: float = 4.5, sweep_high: float = 8, sweep_step: float = 0.25,
           measure: Path = "", measure_tokens: int = 4096, algorithm: str = "max", device: str = "cpu", threads: int = 0,
           progress: ProgressLike = None, cancel: Any = None) -> r.SearchReport:
    """Finds which linears deserve more bits and writes a mixed-precision recipe (`out`, ending in .yaml)."""
    options = dict(source=source, out=out, bits=float(bits), formats=_many(formats), keep=_many(keep), cost_model=cost_model,
                   score=score, scores=scores, calib_file=calib_file, calib_range=calib_range, calib_tokens=calib_tokens,
                   calib_sequence=calib_sequence, calib_gradients=calib_gradients, calib_all_experts=calib_all_experts,
                   sweep_low=float(sweep_low), sweep_high=float(sweep_high), sweep_step=float(sweep_step), measure=measure,
                   measure_tokens=measure_tokens, algorithm=algorithm, device=device, threads=threads)
    return r.SearchReport(**_numbers(_run("search", options, progress, cancel), "score", "kl"))


def _configured(config: Any) -> dict[str, Any]:
    """A run's configuration: a YAML file, or a dictionary, which JSON makes a YAML text."""
    if isinstance(config, Mapping):
        return {"text": json.dumps(dict(config), default=os.fspath)}
    return {"config": config}


def _steps(log: list[dict[str, Any]], on_step: Callable[[dict[str, Any]], object] | None) -> Callable[[str], object]:
    def hear(text: str) -> object:
        step = json.loads(text)
        log.append(step)
        return on_step(step) if on_step is not None else None

    return hear


def train(config: Mapping[str, Any] | Path, *, set: Sequence[str] = (), device: str = "cpu", kernels: str = "",
          threads: int = 0, profile: Path = "", on_step: Callable[[dict[str, Any]], object] | None = None,
          progress: ProgressLike = None, cancel: Any = None) -> r.TrainRun:
    """Trains as `nibble train` does. config: a YAML file or a dictionary (docs/training.md has the keys).

    on_step gets the line of the run's log for each step; an answer that is true stops after saving. The line may come a few
    steps after its step.
    """
    log: list[dict[str, Any]] = []
    options = dict(**_configured(config), set=_many(set), device=device, kernels=kernels, threads=threads, profile=profile)
    return r.TrainRun(**_run("train", options, progress, cancel, _steps(log, on_step)), log=log)


def reinforce(config: Mapping[str, Any] | Path, *, set: Sequence[str] = (), resume: bool = False, device: str = "cpu",
              kernels: str = "", threads: int = 0, gpu_memory: float = 1, judge: Judge | None = None,
              on_step: Callable[[dict[str, Any]], object] | None = None, progress: ProgressLike = None,
              cancel: Any = None) -> r.RlRun:
    """Improves a model by reinforcement learning as `nibble rl` does (docs/guides/reinforce.md). on_step: as train().

    judge: a function from a list of answers ({"prompt", "expected", "text", "turn", "state"}) to a list of rewards, called in
    the thread of the caller. A reward is a number; None, which leaves the answer out; or {"reward": 0.5, "done": False,
    "observation": "what the model reads before its next turn", "state": any JSON}, for tasks of several turns. An exception
    stops the run after the last whole step. The run's config holds the name of the function as env.function.
    """
    log: list[dict[str, Any]] = []
    words = _many(set)
    if judge is not None:
        name = getattr(judge, "__qualname__", type(judge).__qualname__)
        words.insert(0, f"env.function={getattr(judge, '__module__', type(judge).__module__)}.{name}")
    options = dict(**_configured(config), set=words, resume=resume, device=device, kernels=kernels, threads=threads,
                   gpu_memory=float(gpu_memory))
    return r.RlRun(**_run("reinforce", options, progress, cancel, _steps(log, on_step), _judgements(judge) if judge else None),
                   log=log)


def _judgements(judge: Judge) -> Callable[[Any], Any]:
    def call(asked: list[tuple[str, str, str, int, str]]) -> list[tuple[float, bool, str, str, str]]:
        answers = [{"prompt": p, "expected": e, "text": text, "turn": turn, "state": json.loads(state)}
                   for p, e, text, turn, state in asked]
        rewards = list(judge(answers))
        if len(rewards) != len(asked):
            raise UsageError(f"judge: gave {len(rewards)} rewards to {len(asked)} answers")
        return [_judgement(reward) for reward in rewards]

    return call


def _judgement(reward: Any) -> tuple[float, bool, str, str, str]:
    if reward is None:
        return 0.0, True, "", "null", "the judge gave no reward"
    if not isinstance(reward, Mapping):
        return _number(reward), True, "", "null", ""
    unknown = [key for key in reward if key not in ("reward", "done", "observation", "state")]
    if unknown or "reward" not in reward:
        raise UsageError(f"judge: a reward has the keys {sorted(reward)}; it has 'reward', and may have 'done', 'observation' and 'state'")
    return (_number(reward["reward"]), bool(reward.get("done", True)), str(reward.get("observation", "")),
            json.dumps(reward.get("state")), "")


def _number(reward: Any) -> float:
    try:
        return float(reward)
    except (TypeError, ValueError):
        raise UsageError(f"judge: a reward is {reward!r}, not a number, None or a dictionary") from None


def recipes() -> r.Recipes:
    """The built-in recipes: purpose, formats, bits per weight, needs."""
    return r.Recipes(**_run("recipes", {}, False))
