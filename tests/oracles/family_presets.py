"""Quantizes the tiny model of every family in tests/data/golden/families.tar.gz with presets, with calibration where a
preset needs it, and verifies each output and computes its logits. A preset that a family cannot take is refused in one
line that starts like one of REFUSALS.

    family_presets.py NIBBLE [--presets A,B,...] [FAMILY...]
"""

import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Why a preset is refused: a width of the tiny model, a feature without a backward pass, nothing to quantize, norms that
# AWQ cannot fold into, a stack with one scale, two input scales in one matrix of an engine.
REFUSALS = ("inputs do not divide into blocks of", "a backward pass", "quantizes nothing of this model", "a stack of experts has one scale",
            "the backward pass of sparse attention supports texts of at most", "has no stacks of experts",
            # 128 x 128 tiles over parts of 16 rows; one stack of a layer left out, which lists of modules cannot express
            "is not a multiple of 128", "is quantized, but a list of excluded modules names it")


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True)


def presets(nibble):
    return re.findall(r"^(\w+) +(?:nvfp4|fp8|mxfp|int4)", run(nibble, "recipes").stdout, re.M)


def last_line(done):
    lines = [line for line in done.stderr.splitlines() if line.startswith("nibble: ")]
    return lines[-1] if lines else done.stderr[-200:] or done.stdout[-200:]


def check(nibble, folder, preset, out):
    """Returns what is wrong; None: nothing."""
    command = [nibble, "quantize", folder, "-o", out, "--recipe", preset, "--quiet"]
    if "int4" in preset:
        command += ["--format", "compressed-tensors"]
    options = ["--calib", folder / "expect.safetensors", "--calib-tokens", "64", "--calib-seq", "16"]
    for _ in range(3):
        done = run(*command, *options)
        ignored = re.findall(r"--ignore '([^']*)'", done.stderr)
        if "this recipe stores nothing that depends on activations" in done.stderr:
            options = options[6:]
        elif done.returncode and ignored:  # the message names what to leave out
            options += [word for name in ignored for word in ("--ignore", name)]
        else:
            break
    if done.returncode:
        line = last_line(done)
        return None if done.returncode in (1, 2) and any(r in line for r in REFUSALS) else f"quantize ends with {done.returncode}: {line}"
    verified = run(nibble, "verify", out)
    if verified.returncode:
        return f"verify: {verified.stdout[-300:]}{last_line(verified)}"
    logits = run(nibble, "logits", out, "--ids", folder / "expect.safetensors", "-o", out.parent / (out.name + ".logits"))
    line = last_line(logits)
    return f"logits: {line}" if logits.returncode and not any(r in line for r in REFUSALS) else None


def main():
    nibble, words = sys.argv[1], sys.argv[2:]
    chosen = words[words.index("--presets") + 1].split(",") if "--presets" in words else presets(nibble)
    wanted = [w for i, w in enumerate(words) if w != "--presets" and (i == 0 or words[i - 1] != "--presets")]
    jobs, failures = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        with tarfile.open(ROOT / "tests/data/golden/families.tar.gz") as archive:
            archive.extractall(scratch)
        for folder in sorted(p.parent for p in scratch.glob("*/config.json")):
            if wanted and folder.name not in wanted:
                continue
            for preset in chosen:
                wrong = check(nibble, folder, preset, scratch / f"{folder.name}.{preset}")
                jobs += 1
                if wrong:
                    failures.append(f"{folder.name} {preset}: {wrong}")
                    print(failures[-1], flush=True)
    print(f"{jobs} jobs, {len(failures)} failures")
    return 1 if failures or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
