"""Compares `nibble data build` with numpy and Hugging Face's tokenizers: equal ids, boundaries and masks.

    data_shards.py NIBBLE FOLDER     FOLDER: empty, for the files
"""
import gzip
import json
import pathlib
import random
import subprocess
import sys

import numpy as np
from tokenizers import Tokenizer

nibble, work = sys.argv[1], pathlib.Path(sys.argv[2])
root = pathlib.Path(__file__).resolve().parents[2]
folder = root / "tests/data/chat"
end = json.loads((folder / "tokenizer_config.json").read_text())["eos_token"]
random.seed(5)
words = (root / "docs/decisions.md").read_text().split()
texts = [" ".join(random.choices(words, k=random.randint(1, 60))) for _ in range(300)]
texts += ["\u00e9\u0301 \U0001f600 \u4e2d\u6587 123456", "  spaces\n\n\ttabs  "]


def check(name, out, expected):
    """Compares with `expected`, a list of (ids, learned) per document."""
    data = json.loads((out / "data.json").read_text())
    ids, learned = [], []
    for shard in data["train"]:
        raw = (out / (shard["name"] + ".bin")).read_bytes()
        head = np.frombuffer(raw[:1024], "<i4")
        assert head[0] == 20240520
        wide = head[1] == 2
        tokens = np.frombuffer(raw[1024:], "<u4" if wide else "<u2")
        count = int(head[4:6].view("<i8")[0]) if wide else int(head[2])
        assert count == len(tokens) == shard["tokens"]
        starts = np.fromfile(out / (shard["name"] + ".docs"), "<u8")
        mask = np.ones(count, bool)
        if shard["masked"]:
            bits = np.fromfile(out / (shard["name"] + ".mask"), np.uint8)
            mask = np.unpackbits(bits, bitorder="little")[:count].astype(bool)
        for a, b in zip(starts, [*starts[1:], count]):
            ids.append(tokens[int(a):int(b)].tolist())
            learned.append(mask[int(a):int(b)].tolist())
    assert len(ids) == len(expected), (name, len(ids), len(expected))
    for i, (want, want_learned) in enumerate(expected):
        assert ids[i] == want, (name, i, ids[i][:20], want[:20])
        assert learned[i] == want_learned, (name, i)
    print(f"{name}: {len(ids)} documents, {sum(map(len, ids))} tokens")


def build(files, out, *flags):
    subprocess.run([nibble, "data", "build", *map(str, files), "-o", str(out), "--quiet", *flags], check=True)


def as_text(tokenizer, text, end_id):
    # Control tokens stay text, for which tokenizers has no option; these texts have none.
    ids = tokenizer.encode(text).ids
    return (ids + [end_id] if end_id is not None else ids), [True] * (len(ids) + (end_id is not None))


tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
end_id = tokenizer.token_to_id(end)
lines = work / "texts.jsonl.gz"
with gzip.open(lines, "wt") as out:
    for text in texts:
        out.write(json.dumps({"text": text}) + "\n")
page = work / "page.md"
page.write_text((root / "docs/formats.md").read_text()[:3000])
build([lines, page], work / "texts", "--tokenizer", str(folder), "--shard-tokens", "5000")
check("texts", work / "texts", [as_text(tokenizer, t, end_id) for t in [*texts, page.read_text()]])

for other in ("byte_level.json", "byte_fallback.json", "unigram.json"):
    path = root / "tests/data/text" / other
    other_tokenizer = Tokenizer.from_file(str(path))
    build([lines], work / other, "--tokenizer", str(path))
    check(other, work / other,
          [as_text(other_tokenizer, t, None) for t in texts])

# Conversations with the template of tests/data/chat, written out; tokens that begin in an assistant's answer are
# learned.
chats, expected = work / "chats.jsonl", []
with open(chats, "w") as out:
    for _ in range(50):
        messages = [{"role": random.choice(["user", "assistant"]), "content": random.choice(texts[:300])}
                    for _ in range(random.randint(1, 6))]
        out.write(json.dumps({"messages": messages}) + "\n")
        text, ranges = "", []
        for m in messages:
            text += f"<s>{m['role']}\n"
            begin = len(text)
            text += m["content"] + end
            if m["role"] == "assistant":
                ranges.append((begin, len(text)))
        coded = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(coded.ids, skip_special_tokens=False) == text
        expected.append((coded.ids, [any(a <= begin < b for a, b in ranges) for begin, _ in coded.offsets]))
build([chats], work / "chats", "--tokenizer", str(folder))
check("chats", work / "chats", expected)
