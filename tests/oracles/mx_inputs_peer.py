"""Writes tests/data/mx_inputs.json: blocks of BF16 inputs and their values under compressed-tensors' MXFP4 and MXFP8
presets (the code that transformers runs). Needs torch and compressed-tensors: .cache/peers/bin/python
tests/oracles/mx_inputs_peer.py
"""
import json
import os

import torch
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp


def bits(x):
    return [v & 0xFFFF for v in x.view(torch.int16).flatten().tolist()]


def main():
    torch.manual_seed(3)
    rows = [torch.randn(8, 32, dtype=torch.bfloat16) * s for s in (1, 1e-3, 1e3, 1e-20)]
    # All maxima of one octave, with every quarter of an E2M1 step below: ties, saturation, both sides of 1.75.
    ramp = torch.arange(32, dtype=torch.float32) / 16
    for mantissa in range(0, 128, 3):
        largest = (1 + mantissa / 128) * 4
        row = (ramp * largest / 2).to(torch.bfloat16)
        row[31] = largest
        row[::2] *= -1
        rows.append(row[None])
    rows.append(torch.tensor([[0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6] * 4], dtype=torch.bfloat16))
    rows.append(torch.zeros(1, 32, dtype=torch.bfloat16))
    x = torch.cat(rows)
    out = {"inputs": bits(x)}
    for name in ("MXFP4", "MXFP8"):
        args = PRESET_SCHEMES[name]["input_activations"]
        scale, zero = compute_dynamic_scales_and_zp(value=x, args=args, module=None)
        out[name] = bits(fake_quantize(x=x, scale=scale, zero_point=zero, args=args).to(torch.bfloat16))
    path = os.path.join(os.path.dirname(__file__), "../data/mx_inputs.json")
    json.dump(out, open(path, "w"), separators=(",", ":"))
    print(f"{x.shape[0]} blocks")


if __name__ == "__main__":
    main()
