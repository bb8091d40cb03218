"""Results of jobs. They are dataclasses; `print` shows the program's text, notebooks a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ._html import text_html

__all__ = [
    "Calibration", "Conversion", "Evaluation", "GgufImport", "Inspection", "Measured", "QuantizeReport", "Recipes", "RlRun",
    "SearchReport", "TrainRun", "VerifiedCheckpoint", "Verification",
]


@dataclass(repr=False)
class Report:
    """`text` is what the program prints, `json` what it prints with --json."""

    text: str = ""
    json: str = field(default="", repr=False)

    def to_dict(self) -> Any:
        """The program's JSON as Python values; of reports without one, the fields."""
        return json.loads(self.json) if self.json else asdict(self)

    def rows(self) -> list[dict[str, Any]]:
        """Flat dictionaries, one a line of the report's main table."""
        return [{k: v for k, v in asdict(self).items() if k not in ("text", "json")}]

    def to_pandas(self) -> Any:
        """rows() as a pandas.DataFrame."""
        import pandas

        return pandas.DataFrame(self.rows())

    def __repr__(self) -> str:
        return self.text or "\n".join(f"{k}: {v}" for k, v in self.rows()[0].items())

    def _repr_html_(self) -> str:
        return text_html(repr(self))


@dataclass(repr=False)
class QuantizeReport(Report):
    outcome: str = "written"  # "written"; "planned" of a dry run; "made_before" with resume; "by_another_rank"
    tensors: int = 0
    quantized_tensors: int = 0
    stored_bytes: int = 0
    bits_per_quantized_weight: float = 0.0
    sqnr_db: float = 0.0
    warnings: list[str] = field(default_factory=list)


@dataclass(repr=False)
class Calibration(Report):
    origin: str = ""
    scales: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        return [{"tensor": k, "scale": v} for k, v in self.scales.items()]


@dataclass(repr=False)
class Conversion(Report):
    tensors: int = 0
    quantized: int = 0
    decoded: int = 0
    bytes: int = 0
    lines: list[str] = field(default_factory=list)


@dataclass(repr=False)
class GgufImport(Report):
    tensors: int = 0
    weight_bytes: int = 0
    tokenizer: bool = False


@dataclass
class VerifiedCheckpoint:
    path: str
    error: str
    findings: list[str]
    stored_bytes: int
    bits_per_weight: float
    sqnr_db: float
    passed: bool


@dataclass(repr=False)
class Verification(Report):
    checkpoints: list[VerifiedCheckpoint] = field(default_factory=list)
    passed: bool = False

    def rows(self) -> list[dict[str, Any]]:
        return [{**asdict(c), "findings": len(c.findings)} for c in self.checkpoints]


@dataclass
class Measured:
    model: str
    task: str
    metric: str
    value: float
    standard_error: float


@dataclass(repr=False)
class Evaluation(Report):
    measured: list[Measured] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        return [asdict(m) for m in self.measured]

    def value(self, metric: str, model: str | None = None) -> float:
        """The value of a metric; of the first model that has it."""
        for m in self.measured:
            if m.metric == metric and (model is None or m.model == model):
                return m.value
        raise KeyError(f"no metric '{metric}'; there are {sorted({m.metric for m in self.measured})}")


@dataclass(repr=False)
class SearchReport(Report):
    bits: float = 0.0
    score: float = 0.0
    kl: float | None = None
    page: str = ""


@dataclass(repr=False)
class Inspection(Report):
    def rows(self) -> list[dict[str, Any]]:
        return list(self.to_dict()["tensors"])


@dataclass(repr=False)
class Recipes(Report):
    def rows(self) -> list[dict[str, Any]]:
        data = self.to_dict()
        return list(data if isinstance(data, list) else data["recipes"])


@dataclass(repr=False)
class TrainRun(Report):
    steps: int = 0
    skipped: int = 0
    made_earlier: bool = False
    outputs: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)  # the steps of this call

    def rows(self) -> list[dict[str, Any]]:
        return list(self.log)

    def __repr__(self) -> str:
        return "\n".join([f"{self.steps} steps", *self.lines])


@dataclass(repr=False)
class RlRun(TrainRun):
    pass
