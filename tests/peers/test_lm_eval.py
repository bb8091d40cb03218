"""Compares answers of `nibble serve --compute f32` and of transformers in FP32 to lm-evaluation-harness:
test_lm_eval.py PROGRAM

Runs the harness' models `gguf`, `local-completions` (token ids, texts, and with the server's own tokenizer) and
`local-chat-completions` against its `hf`, with a small random Llama whose byte-level tokenizer splits characters.
Log-likelihoods agree within 2e-3; greedy flags and generated texts are equal. Exit status 77: packages are missing.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from lm_eval.api.instance import Instance
    from lm_eval.api.registry import get_model
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
except ImportError as error:
    print(f"a package is missing: {error}")
    sys.exit(77)

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
TEXTS = ["Die Straße nach Köln ist für müde Füße viel zu lang.", "日本語の文章はスペースなしで書かれます。", "Привет, мир! Как дела?", "He said: naïve café, déjà vu.",
         "😀 happy 👍🏽 good 🇩🇪 flag 👩‍👩‍👧 family", "مرحبا بالعالم", "x = \"ü\\n\"; // ß"]
PAIRS = [("Die Straße nach", " Köln ist für müde Füße"), ("日本語の", "文章はスペース"), ("Привет,", " мир! Как"), ("He said:", " naïve café"), ("😀 happy", " 👍🏽 good 🇩🇪"),
         ("👩‍👩‍👧", " family"), ("مرحبا", " بالعالم"), ("plain words", " and more words"), ("für née", " año z"), ("The 😀", "👍🏽"), ("ends with a space ", "ü"),
         ("日本", "😀日"), ("x = \"", "ü\\n\"")]


def make_model(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", chat_template=TEMPLATE)
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(fast), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                      max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, tie_word_embeddings=True, initializer_range=0.2)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return fast


class Server:
    def __init__(self, program, model):
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--kv-memory", "64MB", "--compute", "f32"], stderr=subprocess.PIPE, text=True)
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if found := re.search(r"is served at (http://\S+)", line):
                self.url = found.group(1).rstrip("/")
                break
        else:
            sys.exit("the server did not start: " + "".join(lines))
        import threading
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def pairs_with_clean_borders(tokenizer):
    """Returns pairs whose continuation begins at a token boundary of the whole text: only these have the same tokens
    in every model.
    """
    out = []
    for context, continuation in PAIRS + [(a[:n], a[n:]) for a in TEXTS for n in range(1, len(a), 4) if a[n - 1] != " "]:
        whole, own = tokenizer(context + continuation)["input_ids"], tokenizer(context)["input_ids"]
        if whole[:len(own)] == own and not context.endswith(" "):
            out.append((context, continuation))
    return out


def ask(model, kind, arguments):
    return getattr(model, kind)([Instance(kind, {}, a, i) for i, a in enumerate(arguments)])


def close(name, got, want, exact_flags=True):
    worst = max(abs(g[0] - w[0]) for g, w in zip(got, want, strict=True))
    flags = sum(g[1] != w[1] for g, w in zip(got, want)) if exact_flags else 0
    print(f"{name}: {len(got)} pairs, largest difference {worst:.2e}, {flags} greedy flags differ")
    assert worst < 2e-3 and flags == 0, [(g, w) for g, w in zip(got, want) if abs(g[0] - w[0]) >= 2e-3 or g[1] != w[1]][:3]


def main(program):
    os.environ["OPENAI_API_KEY"] = "none"
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = make_model(folder)
        pairs = pairs_with_clean_borders(tokenizer)
        assert len(pairs) > 30, len(pairs)
        # the cache is for other continuations of one context
        hf = get_model("hf")(pretrained=folder, dtype="float32", device="cpu", batch_size=4, logits_cache=False)
        want = ask(hf, "loglikelihood", pairs)
        rolling = ask(hf, "loglikelihood_rolling", [(t,) for t in TEXTS])
        prompts = [(t, {"until": ["zz", "ß"], "max_gen_toks": 24, "temperature": 0, "do_sample": False}) for t in TEXTS]
        generated = ask(hf, "generate_until", prompts)
        server = Server(program, folder)
        try:
            gguf = get_model("gguf")(base_url=server.url)
            # For the flag the harness compares texts of tokens, and parts of a character have the same text, so only
            # sums are compared.
            close("gguf", ask(gguf, "loglikelihood", pairs), want, exact_flags=False)
            url = server.url + "/v1/completions"
            for name, more in {"token ids": {"tokenizer": folder, "tokenizer_backend": "huggingface"}, "batches": {"tokenizer": folder, "tokenizer_backend": "huggingface", "batch_size": 4},
                               "texts": {"tokenizer": folder, "tokenizer_backend": "huggingface", "tokenized_requests": False},
                               "remote tokenizer": {"tokenizer_backend": "remote"}, "automatic tokenizer": {}}.items():
                model = get_model("local-completions")(model=os.path.basename(folder), base_url=url, **more)
                close("local-completions, " + name, ask(model, "loglikelihood", pairs), want)
                worst = max(abs(g - w) for g, w in zip(ask(model, "loglikelihood_rolling", [(t,) for t in TEXTS]), rolling, strict=True))
                assert worst < 5e-3, worst
                texts = ask(model, "generate_until", [(p, dict(k)) for p, k in prompts])
                assert texts == generated, [(a, b) for a, b in zip(texts, generated) if a != b][:2]
            info = json.loads(__import__("urllib.request").request.urlopen(server.url + "/tokenizer_info").read())
            assert info["eos_token"] == "<|im_end|>" and info["chat_template"] == TEMPLATE, info
            chats = [(hf.apply_chat_template([{"role": "user", "content": t}]), k) for t, k in prompts]
            answers = ask(hf, "generate_until", chats)
            chat = get_model("local-chat-completions")(model=os.path.basename(folder), base_url=server.url + "/v1/chat/completions", tokenizer_backend=None)
            from lm_eval.models.api_models import JsonChatStr
            got = ask(chat, "generate_until", [(JsonChatStr(json.dumps([{"role": "user", "content": t}])), dict(k)) for t, k in prompts])
            assert got == answers, [(a, b) for a, b in zip(got, answers) if a != b][:2]
            print(f"local-chat-completions: {len(got)} answers are equal")
        finally:
            server.stop()


if __name__ == "__main__":
    main(sys.argv[1])
