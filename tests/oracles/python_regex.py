"""Compares patterns of Python's module re with tests/text/python_regex_test.cpp.

    python_regex.py            compares tests/data/python_regex.json with this Python
    python_regex.py --write    writes it again

A row has the pattern; "answers": a digit for each text of "texts", or "E" if Python refuses the pattern; "refused":
words of nibble's message if Python accepts the pattern but PCRE2 cannot run it.
"""
import json
import pathlib
import re
import sys
import warnings

DATA = pathlib.Path(__file__).parent.parent / "data" / "python_regex.json"
TEXTS = ["model.layers.0.self_attn.q_proj", "model.layers.11.mlp.experts.3.gate_proj", "lm_head", "Model.LM_HEAD", "model.layers.1.mlp.gate",
         "model.visual.blocks.0.attn.qkv", "", "a\nb", "a\n", "aZ", "ab12ab", "a{,b", "]a-", "\x08b", "a\u2003b", "x\u00e9_1"]
PATTERNS = r"""
.*self_attn.*|^model\.layers\.\d+\.|(?i)model\.lm_head|(?i)LM_HEAD\Z|lm_head\Z|lm_head\z|lm_head$|.*(?<!mlp\.)gate$|.*(?<=mlp\.)gate$
.*\.(q|k|v)_proj$|model\.layers\.(?:[0-9]|1[01])\.mlp.*|^(?!.*experts).*proj$|model\.layers\.(?!0\b)\d+|.*mlp\.(?:gate|experts\.\d+\.gate_proj)\Z
(?P<root>model)\.(?P<part>layers|visual)|(?P<x>a)(?P=x)?|(?P<l>\w)b12(?P=l)b|(\w)b12\1b|(?P<n>a)?(?(n)Z|x)|(a)?(?(1)Z|b)|(?(1)a|b)|(?:a|ab)12
(?i:AZ)|(?-i:a)Z|(?i)(?-i:a)z|a(?i)z|(?i)(?s)A.B|(?x) a Z # end|(?x:a Z)|(?s)a.b|(?m)^b|(?m)a$|a$\nb|a$|(?u)a|(?a)\w+\Z|(?a:\w+)\Z|(?s-i:a)|(?L)a|(?au)a|(?i-i:a)|(?-:a)|(?i
a{,b|a{,2}b|a{2,}|a{2}{3}|a{,}|a{1,2}?Z|a{1}+Z|x*+|a++b|(?>a|ab)1|a**|*a|^*a|\b*a|(?=a)*aZ|(?:a{0,3}){2,}Z|a{3,2}|(?:(?:a)|b)*?Z|a|b||(?:)
[]a]-?|[^]a]+|[a-]|[a-\d]|[z-a]|[\w-]+\Z|[\W]+|[^\W\d]+\Z|[\S\s]+\Z|[^\S]|[^\Sb]|[\D\W]+|[\b]b|[[:alpha:]]+|[a&&b]|[a--b]|[|[]|[^]|[\]\-]+|[\x61-\x63]+|[\q]|[\8]|[\141]
\x41|\x4|\u0061Z|\u006|\141Z|\07|\400|[\400]|\8|(a)\2|(a\1)|a\vb|a\sb|a\Sb|\q|\h|\Q|\R|\X|\K|\G|\p{L}|\ |\-a?|\.|\A\w|\Amodel\b|\Bodel|m\Bodel|.*\B_|\Z|a#b|(?#c)aZ|a(?#c)*Z|(?#c
(?<=a)Z|(?<=a*)b|(?<=a|bc)Z|(?<!^)a|(?<=(a)\1)b|a(?<=\w)Z|(|)|(?P<1>a)|(?P<a>x)(?P<a>y)|(?P<a)|(?P>a)|(?P=nobody)|(?R)|(?|a|b)|(?<x>a)|(?'x'a)|(*FAIL)|(?&x)|a(?|a\
(a)(?(2)b|c)|(?(0)a)|(?(1)a|b|c)|(?:a|b)+(?!1)|(?!)|(?=lm_)lm_head|.{3}\.|.{5}\.layers|xé_1|x\u00e9|\w+\Z
"""
# Patterns that Python accepts and PCRE2 cannot express -> words of nibble's message.
REFUSED = {r"\N{DASH}": "\\N{...}", "(?ai)a": "flags a and i", "a{70000}": "repeats above", r"\ud800": "surrogate d800", r"(?<=(?<=a)+b)Z": "lookbehind"}


def patterns():
    """Returns PATTERNS, split at bars, after the patterns that contain bars."""
    whole = [r"a|b|", "", r"(?:)", "(", ")", "(?|a|b)", "(", "[", "[]", "[^]", "(?i", "(?#c", "(?P<a)", "a(?", "a\\", "(?<=a|bc)Z", "(?>a|ab)1", r"(?P<n>a)?(?(n)Z|x)",
             "(a)?(?(1)Z|b)", "(?(1)a|b)", "(?:a|ab)12", r".*\.(q|k|v)_proj$", r"model\.layers\.(?:[0-9]|1[01])\.mlp.*", "(?:(?:a)|b)*?Z", r"(?P<root>model)\.(?P<part>layers|visual)",
             r".*mlp\.(?:gate|experts\.\d+\.gate_proj)\Z", "(a)(?(2)b|c)", "(?(1)a|b|c)", "(?:a|b)+(?!1)"]
    cut = [p for line in PATTERNS.strip().splitlines() for p in line.split("|")]
    return list(dict.fromkeys(whole + cut))


def row(pattern):
    try:
        compiled = re.compile(pattern)
    except re.error:
        return {"pattern": pattern, "answers": "E"}
    return {"pattern": pattern, "answers": "".join("1" if compiled.match(text) else "0" for text in TEXTS)}


def main():
    warnings.simplefilter("ignore")
    rows = [row(p) for p in patterns()] + [row(p) | {"refused": text} for p, text in REFUSED.items()]
    if "--write" in sys.argv:
        lines = ",\n".join("  " + json.dumps(r) for r in rows)
        DATA.write_text(f'{{"texts": {json.dumps(TEXTS)},\n "rows": [\n{lines}\n]}}\n')
    stored = json.loads(DATA.read_text())
    # Later versions of Python accept more patterns, such as \z since 3.14.
    changed = [(a, b) for a, b in zip(stored["rows"], rows) if a != b and a["pattern"] not in (r"lm_head\z",)]
    assert stored["texts"] == TEXTS and len(stored["rows"]) == len(rows) and not changed, changed[:5]
    print(f"{len(rows)} patterns x {len(TEXTS)} texts: the table holds Python's answers")


if __name__ == "__main__":
    main()
