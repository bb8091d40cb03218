"""Steps of train() and reinforce() in other tools, as on_step functions:

    nibble.train(config, on_step=nibble.loggers.TensorBoard("runs/1"))
    nibble.train(config, on_step=nibble.loggers.several(nibble.loggers.WandB(project="qat"), print))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["TensorBoard", "WandB", "several"]

Step = Mapping[str, Any]


def _numbers(step: Step, prefix: str = "") -> dict[str, float]:
    """The numbers of a step's line, nested names joined by a slash."""
    out: dict[str, float] = {}
    for name, value in step.items():
        if isinstance(value, Mapping):
            out.update(_numbers(value, f"{prefix}{name}/"))
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and name != "step":
            out[prefix + name] = float(value)
    return out


class TensorBoard:
    """Writes scalars to a folder of TensorBoard. Needs torch and tensorboard."""

    def __init__(self, folder: Any, prefix: str = "") -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))
        self._prefix = prefix

    def __call__(self, step: Step) -> None:
        for name, value in _numbers(step, self._prefix).items():
            self._writer.add_scalar(name, value, int(step["step"]))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Logs to a run of Weights & Biases. options: of wandb.init(); or run: one that exists."""

    def __init__(self, run: Any = None, prefix: str = "", **options: Any) -> None:
        if run is None:
            import wandb

            run = wandb.init(**options)
        self.run, self._prefix = run, prefix

    def __call__(self, step: Step) -> None:
        self.run.log(_numbers(step, self._prefix), step=int(step["step"]))

    def close(self) -> None:
        self.run.finish()


def several(*functions: Callable[[Step], object]) -> Callable[[Step], bool]:
    """Calls all functions for each step. The run stops if one of them requests it."""

    def call(step: Step) -> bool:
        return any([bool(f(step)) for f in functions])

    return call
