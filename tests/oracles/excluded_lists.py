"""Tests lists of excluded modules: verify finds what loaders would reject, and convert writes complete lists.

    excluded_lists.py NIBBLE

A random Llama whose MLPs alone are quantized gets lists in many spellings in both dialects. For each list, `nibble
verify` passes exactly when loader_rules.py does, and after `nibble convert` both pass.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import loader_rules
import made_up_model
from loader_rules_test import CONFIG

ATTENTION = [f"model.layers.0.self_attn.{p}_proj" for p in "qkvo"]
LISTS = {  # spelling -> entries, and whether loaders find everything
    "modelopt": [
        (["lm_head", "model.embed_tokens", "model.layers.0.self_attn*"], True),
        (["lm_head", "model.embed_tokens", *ATTENTION], True),
        (["lm_head", "model.embed_tokens", "*self_attn*"], True),
        (["lm_head", "model.embed_tokens", "model.layers.0.self_attn.qkv_proj", "model.layers.0.self_attn.o_proj"], True),
        (["lm_head", "model.embed_tokens", "model.layers.?.self_attn.[qkvo]_proj"], True),
        (["lm_head", "model.embed_tokens"], False),
        ([], False),
        (["model.embed_tokens", "model.layers.0.self_attn*"], False),
        (["lm_head", "model.embed_tokens", *ATTENTION[:3]], False),
        (["lm_head", "model.embed_tokens", "model.layers.1.self_attn*"], False),
        (["lm_head", "model.embed_tokens", "re:.*self_attn.*"], False),
    ],
    "compressed-tensors": [
        (["lm_head", *ATTENTION], True),
        (["lm_head", "re:.*self_attn.*"], True),
        (["re:(?i)LM_HEAD", r"re:model\.layers\.\d+\.(?P<block>self_attn)\..*\Z"], True),
        (["lm_head", r"re:.*(?<!mlp)\.[qkvo]_proj$"], True),
        (["lm_head"], False),
        (["re:.*self_attn.*"], False),
        (["lm_head", "re:self_attn"], False),
        (["lm_head", "model.layers.0.self_attn*"], False),
    ],
}


def main():
    nibble = sys.argv[1]
    run = lambda *a: subprocess.run([nibble, *map(str, a)], capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        source = scratch / "source"
        made_up_model.write_model(source, CONFIG)
        for dialect, lists in LISTS.items():
            made = scratch / dialect
            done = run("quantize", source, "-o", made, "--recipe", "nvfp4_mlp_only", "--weights-only", "--format", dialect, "--quiet")
            assert done.returncode == 0, done.stderr
            for entries, complete in lists:
                case = scratch / "case"
                shutil.copytree(made, case)
                for file, path in (("config.json", ("quantization_config", "ignore")), ("hf_quant_config.json", ("quantization", "exclude_modules"))):
                    if (case / file).exists():
                        document = json.loads((case / file).read_text())
                        document[path[0]][path[1]] = entries
                        (case / file).write_text(json.dumps(document))
                for extra in case.glob("nibble*"):
                    extra.unlink()
                found, problems = run("verify", case), loader_rules.check(case, source)[0]
                assert bool(problems) != complete, (dialect, entries, problems)
                assert (found.returncode == 0) == complete, (dialect, entries, found.stdout, found.stderr)
                assert complete or "list of excluded modules does not name it" in found.stdout, found.stdout
                for target in LISTS:
                    out = scratch / "out"
                    done = run("convert", case, "-o", out, "--format", target, "--quiet")
                    assert done.returncode == 0, (entries, done.stderr)
                    assert run("verify", out).returncode == 0, (dialect, target, entries, run("verify", out).stdout)
                    assert not loader_rules.check(out, source)[0], (dialect, target, entries, loader_rules.check(out, source)[0])
                    shutil.rmtree(out)
                shutil.rmtree(case)
    print(f"{sum(map(len, LISTS.values()))} lists: verify agrees with the loaders' rules, and convert writes complete ones")


if __name__ == "__main__":
    main()
