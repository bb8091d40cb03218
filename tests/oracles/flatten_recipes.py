#!/usr/bin/env python3
"""Flattens the imports of every PTQ recipe and preset below a folder of Model Optimizer recipes, independently of
nibble:

    flatten_recipes.py TREE OUT

OUT/<path>.json then has {"quant_cfg": [...], "algorithm": ...}. tests/quant/published_recipes_test.cpp compares
nibble's loader with these files (NIBBLE_PUBLISHED_RECIPES=TREE, NIBBLE_FLAT_RECIPES=OUT).
"""
import json
import pathlib
import sys

import yaml


def load(tree, path):
    name = next(tree / (path + s) for s in ("", ".yaml", ".yml") if (tree / (path + s)).is_file())
    documents = list(yaml.safe_load_all(name.read_text()))
    body = documents[-1]
    imports = documents[0].get("imports", {}) if isinstance(documents[0], dict) else {}
    if isinstance(body, dict):
        body.pop("imports", None)
    return expand(body, {alias: load(tree, target) for alias, target in (imports or {}).items()})


def expand(node, scope):
    if isinstance(node, dict):
        names = node.get("$import", [])
        merged = {}
        for name in [names] if isinstance(names, str) else names:
            merged |= scope[name]
        return merged | {k: expand(v, scope) for k, v in node.items() if k != "$import"}
    if isinstance(node, list):
        out = []
        for item in node:
            if isinstance(item, dict) and list(item) == ["$import"]:
                names = item["$import"]
                for name in [names] if isinstance(names, str) else names:
                    out += scope[name] if isinstance(scope[name], list) else [scope[name]]
            else:
                out.append(expand(item, scope))
        return out
    return node


def main():
    tree, out = map(pathlib.Path, sys.argv[1:])
    for file in sorted(tree.rglob("*.yaml")):
        path = file.relative_to(tree)
        if not ("ptq" in path.parts and ("presets" in path.parts or path.parts[0] != "configs")):
            continue
        flat = load(tree, str(path))
        flat = flat.get("quantize", flat) if isinstance(flat, dict) else None
        if not flat or "quant_cfg" not in flat:
            continue
        target = out / path.with_suffix(".json")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(flat, indent=1))


main()
