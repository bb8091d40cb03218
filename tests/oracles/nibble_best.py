"""Implements nibble_best in numpy and FP64, from the description in quant/nibble_best.h. It writes
tests/data/nibble_best.safetensors for tests/quant/nibble_best_test.cpp. Run it again only when the algorithm
changes.

    python tests/oracles/nibble_best.py tests/data/nibble_best.safetensors
"""
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def e2m1(x):
    """Returns the codes of the nearest E2M1 values; ties go to the even code."""
    a = np.abs(x)
    below = np.clip(np.searchsorted(GRID, a, side="right") - 1, 0, 6)
    low, high = a - GRID[below], GRID[below + 1] - a
    code = np.where(a >= 6, 7, below + np.where((high < low) | ((high == low) & (below % 2 == 1)), 1, 0))
    return code, np.copysign(GRID[code], x)


def feedback(gram, damping, block):
    diagonal = np.diag(gram).copy()
    mean = diagonal.mean()
    diagonal[diagonal == 0] = mean
    diagonal += damping * mean
    n = len(diagonal)
    blocks = sorted(range(0, n, block), key=lambda b: -diagonal[b:b + block].sum())
    order = [i for b in blocks for i in sorted(range(b, min(b + block, n)), key=lambda i: -diagonal[i])]
    h = gram[np.ix_(order, order)].copy()
    h[np.arange(n), np.arange(n)] = diagonal[order]
    return np.array(order), np.linalg.cholesky(np.linalg.inv(h)).T  # h^-1 = U^T U


def solve(weight, h, g, s2, damping=0.03, row_damping=0.3):
    n, k = weight.shape
    columns, u = feedback(h, damping, 16)
    rows, ug = (np.arange(n), np.eye(n)) if g is None else feedback(g, row_damping, 1)
    w = weight[np.ix_(rows, columns)].astype(np.float64)
    q = np.zeros_like(w)
    scales, codes = np.zeros((n, k // 16), np.uint8), np.zeros((n, k), np.uint8)
    for r in range(n):
        x = w[r].copy()
        for b in range(0, k, 16):
            s = np.abs(x[b:b + 16]).max() / (6 * s2)
            floor = int(np.searchsorted(E4M3, s, side="right")) - 1
            first = min(max(floor - 5, 1), 127 - 16)
            best = None
            for code in range(first, first + 16):
                d, y, cost, e, c = E4M3[code] * s2, x[b:b + 16].copy(), 0.0, np.zeros(16), np.zeros(16, int)
                values = np.zeros(16)
                for i in range(16):
                    c[i], multiple = e2m1(y[i] / d)
                    values[i] = multiple * d
                    e[i] = (y[i] - values[i]) / u[b + i, b + i]
                    cost += e[i] ** 2
                    y[i + 1:] -= e[i] * u[b + i, b + i + 1:b + 16]
                if best is None or cost < best[0]:
                    best = cost, code, values, e, c | ((values < 0) * 8)
            _, code, values, e, c = best
            q[r, b:b + 16] = values
            x[b + 16:] -= e @ u[b:b + 16, b + 16:]
            scales[rows[r], columns[b] // 16] = code
            codes[rows[r], columns[b:b + 16]] = c
        w[r + 1:] -= np.outer(ug[r, r + 1:] / ug[r, r], w[r] - q[r])
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales


def main(path):
    random = np.random.default_rng(1)
    n, k = 40, 96
    bf16 = lambda x: x.astype(ml_dtypes.bfloat16)
    weight = bf16(random.normal(0, 0.05, (n, k)))
    x = bf16(random.normal(size=(128, 8)) @ random.normal(size=(8, k)) + 0.5 * random.normal(size=(128, k)))
    x[:, 5] = 0  # an input that is always zero
    gradient = bf16(random.normal(size=(64, 6)) @ random.normal(size=(6, n)) + 0.3 * random.normal(size=(64, n)))
    gram = lambda a: a.astype(np.float64).T @ a.astype(np.float64)
    s2 = np.float32(np.abs(weight.astype(np.float32)).max()) / np.float32(2688)
    out = {"weight": weight.view(np.uint16), "x": x.view(np.uint16), "gradient": gradient.view(np.uint16)}
    for name, g in (("columns", None), ("rows", gram(gradient))):
        out[f"{name}.codes"], out[f"{name}.scales"] = solve(weight.astype(np.float64), gram(x), g, float(s2))
    save_file({name: np.ascontiguousarray(value) for name, value in out.items()}, path)


if __name__ == "__main__":
    main(sys.argv[1])
