#!/usr/bin/env python3
"""Converts a checkout of json-schema-org/JSON-Schema-Test-Suite (MIT licence) to tests/data/grammar/suite.jsonl.

    json_schema_suite.py SUITE > tests/data/grammar/suite.jsonl

One line per schema: {"where", "schema", "valid": [documents], "invalid": [documents]}, documents as JSON texts.
"""
import json
import pathlib
import sys

files = """additionalProperties allOf anchor anyOf boolean_schema const default defs dependentRequired dependentSchemas
enum exclusiveMaximum exclusiveMinimum infinite-loop-detection items maxItems maxLength maxProperties maximum minItems
minLength minProperties minimum multipleOf not oneOf pattern patternProperties prefixItems properties propertyNames ref
required type uniqueItems unevaluatedProperties optional/ecmascript-regex optional/format/date optional/format/time
optional/format/date-time optional/format/duration optional/format/email optional/format/ipv4 optional/format/ipv6
optional/format/uuid optional/format/uri optional/format/hostname optional/format/json-pointer""".split()

for name in files:
    path = pathlib.Path(sys.argv[1]) / "tests/draft2020-12" / (name + ".json")
    for case in json.loads(path.read_text(encoding="utf-8")):
        line = {"where": f"{name}: {case['description']}", "schema": case["schema"], "valid": [], "invalid": []}
        for test in case["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            if any(0xD800 <= ord(c) < 0xE000 for c in text):
                continue
            line["valid" if test["valid"] else "invalid"].append(text)
        print(json.dumps(line, ensure_ascii=False))
