"""Compares forms of one model as tools write it: config.json in the spelling of transformers 4 and 5, and tied models
with a head in their files. Commands must give equal bytes for forms of the same model.

    checkpoint_forms.py NIBBLE
"""
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import own_packages

own_packages.need("ml_dtypes", "numpy", "safetensors")
import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS, CONFIGS = ROOT / "tests/data/golden/models", ROOT / "tests/data/configs"
# Fields that transformers 5 adds or omits and that do not affect results.
IGNORED = ["transformers_version", "mtp_layers_block_type", "use_bias", "use_conv_bias", "use_mamba_kernels", "qk_head_dim", "head_dim"]
HAS_GGUF = {"llama", "llama-rope3", "qwen2", "qwen3", "qwen3_moe", "mixtral", "nemotron_h"}


class Forms:
    def __init__(self, nibble, work):
        self.nibble, self.work, self.failures = nibble, pathlib.Path(work), []

    def run(self, *arguments, fails=False):
        done = subprocess.run([self.nibble, *map(str, arguments)], capture_output=True, text=True, cwd=self.work)
        if (done.returncode != 0) != fails:
            self.failures.append(f"nibble {' '.join(map(str, arguments))}: status {done.returncode}: {done.stderr.strip()[-300:]}")
        return done

    def json(self, *arguments):
        done = self.run(*arguments, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {"config": None, "canonical_config": {}}

    def expect(self, condition, what):
        if not condition:
            self.failures.append(what)

    def folder(self, name, model, config=None, tensors=None):
        """Copies a golden model with another config.json or with additional tensors."""
        folder = self.work / name
        shutil.copytree(MODELS / model, folder, ignore=shutil.ignore_patterns("*.json" if config else "", "expect*", "grad*"))
        if config:
            (folder / "config.json").write_text(config)
        if tensors:
            stored = read(folder / "model.safetensors")
            (folder / "model.safetensors").unlink()
            save_file(stored | tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def results(self, folder, model, gguf=True):
        """Returns hashes of the commands' results for the folder."""
        made = {}
        out = folder.parent / f"{folder.name}-out"
        out.mkdir()
        self.run("logits", folder, "--ids", MODELS / model / "expect.safetensors", "-o", out / "logits.safetensors", "--compute", "f32")
        self.run("quantize", folder, "-o", out / "w4a16", "--recipe", "w4a16_nvfp4", "--quiet")
        self.run("convert", folder, "-o", out / "bf16", "--format", "bf16", "--quiet")
        self.run("verify", out / "w4a16")
        files = [out / "logits.safetensors", *sorted(out.glob("*/*.safetensors"))]
        if gguf:
            self.run("convert", folder, "-o", out / "model.gguf", "--format", "gguf", "--quiet")
            files.append(out / "model.gguf")
        for file in files:
            made[str(file.relative_to(out))] = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "missing"
        return made


def read(path):
    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def spellings(forms):
    """Compares config.json as written by transformers 4 (or the publisher) and by transformers 5."""
    for model in sorted(p.name for p in MODELS.iterdir()):
        gguf = model in HAS_GGUF
        first = forms.results(forms.folder(f"{model}-published", model), model, gguf)
        text = (CONFIGS / f"golden-{model}.v5.json").read_text()
        folder = forms.folder(f"{model}-v5", model, text)
        forms.expect(forms.results(folder, model, gguf) == first, f"{model}: the config of transformers 5 gives other results")
        written = json.loads((folder.parent / f"{folder.name}-out/bf16/config.json").read_text())
        forms.expect(written == json.loads(text), f"{model}: the written config.json is not the one that was read")
        shown = forms.json("inspect", folder)
        forms.expect(shown["config"] == json.loads(text), f"{model}: inspect shows another config")
        before = forms.json("inspect", MODELS / model).get("canonical_config", {})
        after = shown.get("canonical_config", {})
        for key in IGNORED:
            before.pop(key, None), after.pop(key, None)
        differs = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        forms.expect(not differs, f"{model}: inspect gives {sorted(differs)} other values")


def random_starts(forms):
    """Training from random weights accepts a config.json of either version."""
    for path in sorted(CONFIGS.glob("*.v5.json")):
        family = path.name.split(".")[0]
        if family.startswith("golden-"):
            continue
        made = set()
        for version in (4, 5):
            start = forms.work / f"start-{family}-{version}"
            start.mkdir()
            shutil.copy(CONFIGS / f"{family}.v{version}.json", start / "config.json")
            out = f"random-{family}-{version}"
            (forms.work / "random.yaml").write_text(
                f"model: {start}\nrandom_start: true\noutput: {out}\nsteps: 1\nbatch: 1\nsequence: 8\ndata: {{synthetic: true}}\n")
            forms.run("train", "random.yaml", "--threads", 2)
            weights = forms.work / out / "model/model.safetensors"
            made.add(hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else f"none of version {version}")
        forms.expect(len(made) == 1, f"{family}: training from random weights differs: {made}")


def heads(forms):
    """tie_word_embeddings is true but there is an lm_head.weight: a copy, a copy in F32, or another matrix."""
    model = "qwen2"
    tied = forms.results(forms.folder("tied", model), model)
    embedding = read(MODELS / model / "model.safetensors")["model.embed_tokens.weight"]
    other = np.roll(embedding, 1, axis=0)
    for name, head in {"copy": embedding, "wide-copy": embedding.astype(np.float32)}.items():
        folder = forms.folder(name, model, tensors={"lm_head.weight": head})
        forms.expect(forms.results(folder, model) == tied, f"{name}: other results than without the copy")
        forms.expect("is a copy of" in forms.run("inspect", folder).stderr, f"{name}: not reported")
    config = json.loads((MODELS / model / "config.json").read_text())
    config["tie_word_embeddings"] = False
    free = forms.results(forms.folder("free", model, json.dumps(config), {"lm_head.weight": other}), model)
    folder = forms.folder("different", model, tensors={"lm_head.weight": other})
    forms.expect(forms.results(folder, model) == free, "different: other results than with tie_word_embeddings: false")
    forms.expect(free["logits.safetensors"] != tied["logits.safetensors"], "different: the head has no effect")
    for command in (["inspect", folder], ["logits", folder, "--ids", MODELS / model / "expect.safetensors", "-o", "again.safetensors"]):
        lines = [line for line in forms.run(*command).stderr.splitlines() if "differs from" in line]
        forms.expect(len(lines) == 1, f"{command[0]}: {len(lines)} lines report the head")
    for written in ("w4a16", "bf16"):
        made = json.loads((forms.work / f"different-out/{written}/config.json").read_text())
        forms.expect(made["tie_word_embeddings"] is False, f"different: {written} is written as tied")
    # Its GGUF file has a separate head, and so does a folder converted from that file.
    forms.run("convert", forms.work / "different-out/model.gguf", "-o", "from-gguf", "--format", "bf16", "--quiet")
    back = read(forms.work / "from-gguf/model.safetensors")
    forms.expect(np.array_equal(back["lm_head.weight"], other), "different: the head is lost in GGUF")
    (forms.work / "train.yaml").write_text(f"model: {folder}\noutput: trained\nsteps: 1\nbatch: 1\nsequence: 8\ndata: {{synthetic: true}}\n")
    forms.run("train", "train.yaml", "--threads", 2)
    made = json.loads((forms.work / "trained/model/config.json").read_text())
    forms.expect(made["tie_word_embeddings"] is False, "different: training writes a tied model")
    forms.expect("lm_head.weight" in read(forms.work / "trained/model/model.safetensors"), "different: training loses the head")


# Configurations and tensors of model types that the engine does not run, as transformers 5 saves them: tags for
# infinity, convolutions of one, two and three dimensions, stacks of experts with unknown names, integer tables,
# infinite bounds of clipped activations.
ODD_CONFIGS = {
    "falcon_h1": {"time_step_limit": [0.0, {"__float__": "Infinity"}], "num_hidden_layers": 1},
    "gemma4": {"text_config": {"model_type": "gemma4_text", "rope_parameters": {"full_attention": {"rope_type": "proportional"}}}},
    "deepseek_v4": {"layer_types": ["compressed_sparse_attention"], "id2label": {"0": "NaN"}, "dtype": "bfloat16"},
    "gpt_neox": {},
}
ODD_TENSORS = {
    "model.audio_tower.layers.0.post.input_max": (ml_dtypes.bfloat16, [], np.inf),
    "model.audio_tower.layers.0.post.input_min": (ml_dtypes.bfloat16, [], -np.inf),
    "model.layers.0.layer_scalar": (ml_dtypes.bfloat16, [1], 0.5),
    "model.layers.0.mamba.conv1d.weight": (ml_dtypes.bfloat16, [24, 1, 4], 0.25),
    "model.visual.patch_embed.proj.weight": (ml_dtypes.bfloat16, [8, 3, 2, 2, 2], 0.25),
    "model.layers.0.mlp.tid2eid": (np.int64, [16, 2], 3),
    "model.layers.0.mlp.mask": (np.bool_, [3], True),
    "model.layers.0.mamba.A_log": (np.float32, [8], 1.5),
    "model.layers.0.table": (np.float64, [2, 2], 0.1),
    "model.layers.0.block_sparse_moe.input_linear.weight": (ml_dtypes.bfloat16, [2, 32, 16], 0.1),
    "model.layers.0.self_attn.sinks": (np.float16, [4], 0.1),
    "embed_out.weight": (ml_dtypes.bfloat16, [16, 32], 0.1),
    "model.embed_tokens.weight": (ml_dtypes.bfloat16, [16, 32], 0.1),
    "gpt_neox.layers.0.attention.query_key_value.weight": (ml_dtypes.bfloat16, [96, 32], 0.2),
}


def other_types(forms):
    """inspect, verify and convert accept models with unusual tensors and configurations, and change no byte of them."""
    for model_type, config in ODD_CONFIGS.items():
        folder = forms.work / f"odd-{model_type}"
        folder.mkdir()
        text = json.dumps({"model_type": model_type, **config})
        (folder / "config.json").write_text(text)
        tensors = {name: np.full(shape, value, dtype) for name, (dtype, shape, value) in ODD_TENSORS.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        shown = forms.json("inspect", folder)
        forms.expect(shown["config"] == json.loads(text), f"{model_type}: inspect shows another config")
        forms.run("verify", folder, "--partial")
        out = forms.work / f"odd-{model_type}-bf16"
        forms.run("convert", folder, "-o", out, "--format", "bf16", "--partial", "--quiet")
        made = read(out / "model.safetensors") if out.exists() else {}
        changed = [k for k, v in tensors.items() if k not in made or made[k].dtype != v.dtype or made[k].tobytes() != v.tobytes()]
        forms.expect(not changed and len(made) == len(tensors), f"{model_type}: convert changes {changed}")
        forms.expect(out.exists() and json.loads((out / "config.json").read_text()) == json.loads(text), f"{model_type}: the config changes")


def other_layouts(forms):
    """A folder in another program's layout gives one line that names the next step."""
    folder = forms.work / "mistral"
    folder.mkdir()
    (folder / "params.json").write_text('{"dim": 64, "vision_encoder": {}}')
    shutil.copy(MODELS / "llama/model.safetensors", folder / "consolidated.safetensors")
    for command in (["inspect"], ["verify"], ["convert", "-o", "x", "--format", "bf16"], ["quantize", "-o", "x", "--recipe", "nvfp4"]):
        lines = forms.run(command[0], folder, *command[1:], fails=True).stderr.strip().splitlines()
        forms.expect(len(lines) == 1 and "params.json" in lines[0] and "Hugging Face" in lines[0], f"{command[0]}: {lines}")


def main():
    with tempfile.TemporaryDirectory() as work:
        forms = Forms(str(pathlib.Path(sys.argv[1]).resolve()), work)
        spellings(forms)
        random_starts(forms)
        heads(forms)
        other_types(forms)
        other_layouts(forms)
    print("\n".join(forms.failures) or "every form gives the same model")
    return 1 if forms.failures else 0


if __name__ == "__main__":
    sys.exit(main())
