#!/usr/bin/env python3
"""Renders every chat template that trl ships with `nibble template` and with transformers and compares the prompts.

    test_chat_templates.py PROGRAM

trl's folder `chat_templates` holds templates as their models publish them (Llama 3, Qwen 2.5 to 3.8, Gemma 1 to 4, GLM, GPT-OSS,
DeepSeek, Phi, LFM2, Nemotron 3, Cohere ...) and variants for training. Each renders plain conversations, tools, parallel calls,
results of tools, reasoning, lists of content parts, and the variables that templates read. Both sides must give the same text or both
refuse the conversation. Texts of the current date are removed, because the two sides read the clock at different times.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

try:
    import trl
    from transformers.utils.chat_template_utils import _compile_jinja_template
except ImportError as missing:
    print(f"test_chat_templates: {missing}")
    sys.exit(77)

USER = {"role": "user", "content": "Hi, what's up? <b>ü</b>"}
SYSTEM = {"role": "system", "content": "You are terse."}
ANSWER = {"role": "assistant", "content": "Fine.\n"}


def tool(name, **parameters):
    return {"type": "function", "function": {
        "name": name, "description": f'Does {name} "q" <b>',
        "parameters": {"type": "object", "properties": parameters, "required": list(parameters)[:1]}}}


TOOLS = [tool("get_weather", city={"type": "string", "description": "City, e.g. Zürich"}, days={"type": "integer", "default": 3},
              unit={"type": "string", "enum": ["C", "F"]}),
         tool("search", query={"type": "string"},
              filters={"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}},
              deep={"type": ["boolean", "null"]})]


def call(name, arguments, number=1):
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


ONE_CALL = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"city": "Zürich", "days": 2})]}
HARD_CALL = {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"city": 'a"b\n</arg_value>', "unit": "C"})]}
TWO_CALLS = {"role": "assistant", "content": "Let me look.", "reasoning_content": "Think\n\nhard",
             "tool_calls": [call("get_weather", {"city": "Bern", "days": 1}),
                            call("search", {"query": "x", "filters": {"tags": ["a", "b"]}, "deep": None}, 2)]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": '{"t": 3.5}'}
SECOND_RESULT = {"role": "tool", "tool_call_id": "call_2", "name": "search", "content": "nothing"}
LONG = [SYSTEM, USER, TWO_CALLS, RESULT, SECOND_RESULT, ANSWER, USER]

CONVERSATIONS = [
    {"messages": [USER]},
    {"messages": [SYSTEM, USER]},
    {"messages": [USER, ANSWER, USER]},
    {"messages": [SYSTEM, USER, ANSWER, USER, ANSWER]},
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [USER], "tools": TOOLS},
    {"messages": [SYSTEM, USER], "tools": TOOLS},
    {"messages": [USER, ONE_CALL, RESULT], "tools": TOOLS},
    {"messages": [USER, HARD_CALL, RESULT], "tools": TOOLS},
    {"messages": LONG[:5], "tools": TOOLS},
    {"messages": LONG, "tools": TOOLS},
    {"messages": [USER, {**ANSWER, "reasoning_content": "because"}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "<think>\nx\n</think>\n\nok"}, USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}]}]},
    {"messages": [{"role": "developer", "content": "dev"}, USER], "tools": TOOLS},
]
for variables in ({"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True}, {"reasoning_effort": "low"},
                  {"preserve_thinking": True}, {"clear_thinking": False}):
    CONVERSATIONS += [{"messages": LONG, "tools": TOOLS, "kwargs": variables}, {"messages": [USER], "kwargs": variables}]
DATES = re.compile(r"(Current date: |Today Date: |Today is |Current Date: )[^\n]*")


def expected(template, conversation):
    """Returns transformers' prompt; None: the template refuses the conversation."""
    try:
        return template.render(messages=conversation["messages"], tools=conversation.get("tools"), documents=None,
                               add_generation_prompt=conversation["add_generation_prompt"], **conversation.get("kwargs", {}))
    except Exception:  # templates raise errors of many kinds
        return None


def main():
    program = sys.argv[1]
    folder = os.path.join(os.path.dirname(trl.__file__), "chat_templates")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".jinja"))
    conversations = [{"add_generation_prompt": True, **one} for one in CONVERSATIONS]
    failures = refused = 0
    with tempfile.TemporaryDirectory() as work:
        rows = os.path.join(work, "conversations.jsonl")
        with open(rows, "w") as out:
            out.writelines(json.dumps(one) + "\n" for one in conversations)
        for name in names:
            path = os.path.join(folder, name)
            result = subprocess.run([program, "template", path, "--jsonl", rows], capture_output=True, text=True)
            lines = [json.loads(line) for line in result.stdout.splitlines()]
            if len(lines) != len(conversations):
                print(f"{name}: {len(lines)} of {len(conversations)} results: {result.stderr.strip()}")
                failures += 1
                continue
            with open(path) as source:
                template = _compile_jinja_template(source.read())
            for number, (conversation, line) in enumerate(zip(conversations, lines)):
                want, got = expected(template, conversation), line.get("rendered")
                refused += want is None
                if (want is None) != (got is None) or (want is not None and DATES.sub("", want) != DATES.sub("", got)):
                    print(f"{name}, conversation {number}:\n  transformers {want!r}\n  nibble       {line!r}")
                    failures += 1
    print(f"test_chat_templates: {len(names)} templates, {len(conversations)} conversations each, {refused} refused by both, {failures} differ")
    return 1 if failures or not names else 0


if __name__ == "__main__":
    sys.exit(main())
