"""Tests nibble's GGUF tokenizers independently: gguf-py writes the golden vocabularies, and tokenizers reads nibble's
result.

    make DIR GOLDEN    writes DIR/qwen3.gguf, DIR/smollm2.gguf and, with sentencepiece installed, DIR/mistral-v1.gguf
    check DIR GOLDEN   DIR/NAME.json must encode and decode every text of GOLDEN/NAME/cases.jsonl equally
"""

import gzip
import json
import pathlib
import sys

import gguf
import tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def write(path, model, pre, tokens, types, merges=None, scores=None, ids=None):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    for name, value in (ids or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_byte_level(golden, path, pre, size):
    source = json.loads(gzip.decompress(golden.read_bytes()))
    tokens, types = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    for token, i in source["model"]["vocab"].items():
        tokens[i], types[i] = token, NORMAL
    for added in source["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    write(path, "gpt2", pre, tokens, types, merges=[" ".join(m) for m in source["model"]["merges"]])


def make_sentence_piece(golden, path):
    import sentencepiece

    sp = sentencepiece.SentencePieceProcessor(str(golden))
    count = sp.vocab_size()

    def kind(i):
        if sp.is_unknown(i):
            return UNKNOWN
        return CONTROL if sp.is_control(i) else BYTE if sp.is_byte(i) else UNUSED if sp.is_unused(i) else NORMAL

    write(path, "llama", "default", [sp.id_to_piece(i) for i in range(count)], [kind(i) for i in range(count)],
          scores=[sp.get_score(i) for i in range(count)], ids={"bos": 1, "eos": 2, "unknown": 0})


def make(folder, golden):
    make_byte_level(golden / "qwen3/tokenizer.json.gz", folder / "qwen3.gguf", "qwen2", 151936)
    # The golden SmolLM2 tokenizer comes from transformers' converter, which splits like GPT-2 (without single digits).
    make_byte_level(golden / "smollm2/tokenizer.json.gz", folder / "smollm2.gguf", "gpt-2", 49152)
    try:
        make_sentence_piece(golden / "mistral-v1/tokenizer.model", folder / "mistral-v1.gguf")
    except ImportError:
        print("sentencepiece is not installed: mistral-v1 is left out")


def check(folder, golden):
    bad = 0
    for path in sorted(folder.glob("*.json")):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        cases = [json.loads(line) for line in open(golden / path.stem / "cases.jsonl", encoding="utf-8")]
        # sentencepiece reads special tokens in a text as letters, tokenizers reads them as tokens
        if path.stem == "mistral-v1":
            cases = [c for c in cases if not any(s in c["text"] for s in ("<unk>", "<s>", "</s>"))]
        for case in cases:
            ids = tokenizer.encode(case["text"], add_special_tokens=False).ids
            text = tokenizer.decode(case["ids"], skip_special_tokens=False)
            if ids != case["ids"] or text != case["decoded"]:
                bad += 1
                print(f"{path.stem}: {case['text']!r}: {ids} and {text!r}, expected {case['ids']}", file=sys.stderr)
        print(f"{path.stem}: {len(cases)} texts")
        assert len(cases) >= 200, path
    return bad == 0


if __name__ == "__main__":
    step, folder, golden = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    sys.exit(0 if (make(folder, golden) if step == "make" else check(folder, golden)) in (None, True) else 1)
