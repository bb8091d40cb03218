"""Pictures of results for notebooks. Plain HTML with inline styles; nothing is loaded."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tensors import QuantTensor

_CELL = "width:14px;height:14px;border:1px solid #fff;padding:0"
_MOST_ROWS, _MOST_COLUMNS = 32, 32


def _bytes_of(array: Any) -> memoryview:
    """The first bytes of a contiguous array of one-byte elements."""
    view = array
    if hasattr(view, "view") and type(view).__module__.startswith("torch"):
        import torch

        view = view.view(torch.uint8).numpy()
    return memoryview(view).cast("B")


def quant_tensor_html(q: "QuantTensor[Any]") -> str:
    """The facts of a quantized tensor and a map of its first block scales: dark is large."""
    rows = [("format", q.format), ("shape", " × ".join(map(str, q.shape))), ("bits per number", f"{q.bits:.3f}"),
            ("tensor scale", f"{q.tensor_scale:.6g}")]
    table = "".join(f"<tr><td>{escape(a)}</td><td>{escape(str(b))}</td></tr>" for a, b in rows)
    out = f"<table>{table}</table>"
    if q.block_scales is None or not q.shape or 0 in q.shape:
        return out
    data = _bytes_of(q.block_scales)
    across = q.shape[-1] // q._native.block
    tall = min(len(data) // across, _MOST_ROWS)
    wide = min(across, _MOST_COLUMNS)
    low, high = min(data), max(data)
    lines = []
    for r in range(tall):
        cells = []
        for c in range(wide):
            byte = data[r * across + c]
            light = 95 - 70 * (byte - low) / max(high - low, 1)
            cells.append(f'<td title="row {r}, block {c}: 0x{byte:02X}" style="{_CELL};background:hsl(210,60%,{light:.0f}%)"></td>')
        lines.append("<tr>" + "".join(cells) + "</tr>")
    caption = f"block scales of the first {tall} rows and {wide} blocks of {q._native.block}; bytes 0x{low:02X} to 0x{high:02X}"
    return f'{out}<table style="border-collapse:collapse"><caption>{caption}</caption>{"".join(lines)}</table>'


def text_html(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
