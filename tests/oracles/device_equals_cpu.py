"""Compares every file of `nibble quantize --device DEVICE` with --device cpu: NIBBLE MODEL WORK [DEVICE]. Bytes must
be equal, except for the command and times in nibble.json and the report. tools/gpu calls this.
"""
import concurrent.futures
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

MSE = """imports: {off: configs/ptq/units/base_disable_all, w: configs/numerics/%s, keep: configs/ptq/units/default_disabled_quantizers}
metadata: {recipe_type: ptq, description: a multiplier search}
quantize:
  algorithm: {method: mse, fp8_scale_sweep: false, start_multiplier: %s, stop_multiplier: %s, step_size: 0.05}
  quant_cfg:
    - $import: off
    - {quantizer_name: '*weight_quantizer', cfg: {$import: w}}
%s    - $import: keep
"""
INPUTS = "    - {quantizer_name: '*input_quantizer', cfg: {$import: w}}\n"
SEARCHES = {"mse nvfp4": ("nvfp4", 0.5, 1.0, ""), "mse nvfp4 static": ("nvfp4_static", 0.5, 1.5, ""), "mse fp8": ("fp8", 1.0, 1.5, INPUTS)}
PRESETS = ["w4a16_nvfp4", "nvfp4_four_over_six", "nvfp4_w4a4_weight_mse_fp8_sweep", "nvfp4_mlp_weight_only", "fp8", "fp8_per_channel_per_token",
           "fp8_2d_blockwise_weight_only", "mxfp4", "mxfp8"]


def contents(folder):
    """Returns a digest of each file, for JSON without command and times."""
    found = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        if file.name == "nibble-report.html":
            continue  # generated from the JSON
        data = file.read_bytes()
        if file.name in ("nibble.json", "nibble-report.json"):
            value = json.loads(data)
            value.pop("timing", None), value.pop("command", None), value.pop("command_line", None)
            data = json.dumps(value, sort_keys=True).encode()
        found[str(file.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def input_scales(model):
    """Returns one input scale per linear of a Llama, because calibration is not tested here."""
    layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    names = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    return {f"model.layers.{n}.{name}.input_scale": 0.01 for n in range(layers) for name in names}


def quantize(nibble, model, out, recipe, arithmetic, device):
    subprocess.run([nibble, "quantize", str(model), "-o", str(out), "--recipe", str(recipe), "--input-scales", str(out.parent / "scales.json"), "--quiet",
                    "--arithmetic", arithmetic, "--device", device], check=True)
    digests = contents(out)
    shutil.rmtree(out)
    return digests


def main():
    nibble, model, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    device = sys.argv[4] if len(sys.argv) > 4 else "cuda"
    (work / "scales.json").write_text(json.dumps(input_scales(model)))
    recipes = {name: name for name in PRESETS}
    for name, values in SEARCHES.items():
        recipes[name] = work / (name.replace(" ", "_") + ".yaml")
        recipes[name].write_text(MSE % values)

    def compare(name, arithmetic):
        results = [quantize(nibble, model, work / f"{name}-{arithmetic}-{d}".replace(":", "").replace(" ", "-"), recipes[name], arithmetic, d)
                   for d in ("cpu", device)]
        differ = [file for file in results[0] if results[0][file] != results[1].get(file)]
        return name, arithmetic, len(results[0]), differ if len(results[0]) == len(results[1]) else ["number of files"]

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(compare, name, a) for name in recipes for a in ("reciprocal", "true")]
        for job in jobs:
            name, arithmetic, files, differ = job.result()
            failed += bool(differ)
            print(f"{name:34} {arithmetic:11} {files} files {'EQUAL' if not differ else 'DIFFER: ' + ', '.join(differ)}")
    print("every file equals the CPU's" if not failed else f"{failed} RUNS DIFFER")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
