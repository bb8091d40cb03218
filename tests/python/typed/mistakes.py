"""Calls that mypy and pyright refuse. Each line with the comment "refused" must have an error, no other line one."""

import nibble

nibble.quantize_checkpoint("model", "out")  # refused
nibble.quantize_checkpoint("model", "out", "nvfp4", calib_tokens="many")  # refused
nibble.SamplingParams(max_token=8)  # refused
nibble.quantize_checkpoint("model", "out", "nvfp4").no_member  # refused
nibble.evaluate(3)  # refused
nibble.SamplingParams(max_tokens=8)
