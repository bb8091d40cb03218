#!/usr/bin/env python3
"""An example environment for `nibble rl` (docs/topics/rl.md): judges whole numbers, in one turn or several.

A request is a line of JSON on standard input, the reply a line on standard output. The last whole number in the text is
the answer; the correct one gets a reward of 1. With --turns N there are up to N turns:
- "<calc>12 * 3</calc>" at the end of a text requests a calculation; the model reads its result next;
- after a wrong number the model reads "higher" or "lower" and may try again; the reward is then 1 / (number of tries).
State between the turns of an answer is in `state`, not in this process, because another process may get the next turn.

    env: {command: [python3, tests/oracles/environment_example.py, --turns, "4"], processes: 2}
    grpo: {max_rollout_turns: 4}
"""

import argparse
import ast
import json
import operator
import re
import sys

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.USub: operator.neg}
LARGEST = 10**12


def calculate(text):
    """Returns the value of an expression of whole numbers with + - * and brackets, or None for anything else."""

    def value(node):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            result = node.value
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            result = OPERATORS[type(node.op)](value(node.left), value(node.right))
        elif isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
            result = OPERATORS[type(node.op)](value(node.operand))
        else:
            raise ValueError("not a calculation")
        if abs(result) > LARGEST:
            raise ValueError("too large")
        return result

    try:
        return value(ast.parse(text.strip()[:200], mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def judge(request, turns):
    text, expected = request["text"], int(request["expected"])
    last_turn = request["turn"] + 1 >= turns
    state = request["state"] or {"guesses": 0}
    asked = re.search(r"<calc>([^<]*)</calc>\s*$", text)
    if asked and not last_turn:
        result = calculate(asked.group(1))
        return {"reward": 0, "done": False, "observation": "error" if result is None else str(result), "state": state}
    numbers = re.findall(r"-?\d+", text)
    guess = int(numbers[-1][:20]) if numbers else None
    state["guesses"] += 1
    if guess == expected:
        return {"reward": 1 / state["guesses"], "done": True}
    if last_turn:
        return {"reward": 0, "done": True}
    hint = "a number, please" if guess is None else "higher" if guess < expected else "lower"
    return {"reward": 0, "done": False, "observation": hint, "state": state}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1)
    turns = parser.parse_args().turns
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"id": request["id"], **judge(request, turns)}), flush=True)


if __name__ == "__main__":
    main()
