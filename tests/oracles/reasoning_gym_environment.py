#!/usr/bin/env python3
"""Provides tasks of reasoning-gym (PyPI) for `nibble rl` (docs/topics/rl.md): writes rows, and judges answers as an
environment.

    pip install reasoning-gym
    reasoning_gym_environment.py --write 2000 --task leg_counting --task chain_sum --seed 1 >train.jsonl
    reasoning_gym_environment.py --write 100 --task leg_counting --task chain_sum --seed 2 >validation.jsonl

    data: {train: train.jsonl, validation: validation.jsonl}
    env: {command: [python3, tests/oracles/reasoning_gym_environment.py], processes: 2}

    reasoning_gym_environment.py --plain FOLDER --write 4000 --task family_relationships    # for tools/rl-study --rows

--plain writes train.jsonl and validation.jsonl (a tenth as many, different questions). Its answers are the entries' own
texts, for rewards that compare texts and for machines without the package. Otherwise the answer of a row is the whole
entry of reasoning-gym, and the scoring function of the entry's task judges the text in the last <answer>...</answer>,
or the whole text.
"""

import argparse
import json
import pathlib
import re
import sys


def write_rows(tasks, rows, seed, out):
    import reasoning_gym

    sets = [reasoning_gym.create_dataset(task, size=-(-rows // len(tasks)), seed=seed) for task in tasks]
    for i in range(rows):
        entry = sets[i % len(sets)][i // len(sets)]
        out.write(json.dumps({"input": entry["question"], "output": json.dumps(entry, default=str)}) + "\n")


def write_plain(tasks, rows, seed, folder):
    """Writes two files without common questions."""
    import reasoning_gym

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found, most = {}, 10 * rows  # some of the package's entries are equal
    sets = [reasoning_gym.create_dataset(task, size=most, seed=seed) for task in tasks]
    wanted = rows + rows // 10
    for i in range(most * len(sets)):
        entry = sets[i % len(sets)][i // len(sets)]
        found.setdefault(entry["question"], str(entry["answer"]))
        if len(found) == wanted:
            break
    else:
        sys.exit(f"{', '.join(tasks)}: only {len(found)} questions of {wanted} in {most * len(sets)} entries")
    lines = [json.dumps({"input": q, "output": a}) + "\n" for q, a in found.items()]
    (folder / "validation.jsonl").write_text("".join(lines[: rows // 10]))
    (folder / "train.jsonl").write_text("".join(lines[rows // 10 :]))


def answer_in(text):
    tagged = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (tagged[-1] if tagged else text).strip()


def judge(request, scores):
    """Returns a reward from 0 to 1. A text that the task's function cannot score gets 0."""
    import reasoning_gym

    entry = json.loads(request["expected"])
    task = entry["metadata"]["source_dataset"]
    if task not in scores:
        scores[task] = reasoning_gym.get_score_answer_fn(task)
    try:
        reward = float(scores[task](answer=answer_in(request["text"]), entry=entry))
    except Exception as error:  # from the package, for unexpected text
        print(f"{task}: {error!r}", file=sys.stderr)
        reward = 0.0
    return {"reward": min(1.0, max(0.0, reward)), "done": True}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=int, metavar="N", help="rows to standard output, instead of judging")
    parser.add_argument("--plain", metavar="FOLDER", help="with --write: files of questions and plain answers")
    parser.add_argument("--task", action="append", metavar="NAME", help="of reasoning-gym; several take turns")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.write is not None:
        if not options.task:
            parser.error("--write needs --task")
        if options.plain:
            return write_plain(options.task, options.write, options.seed, options.plain)
        return write_rows(options.task, options.write, options.seed, sys.stdout)
    scores = {}
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"id": request["id"], **judge(request, scores)}), flush=True)


if __name__ == "__main__":
    main()
