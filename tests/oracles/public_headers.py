#!/usr/bin/env python3
"""Checks that the public headers (include/nibble) are documented.

Every file, struct, class, enumeration and function has a comment. A function that returns a Result or a Status names its
errors. A function with array parameters states their shapes in brackets, as "[rows, cols]".

Usage: public_headers.py [FOLDER]   Prints file:line: problem.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TYPE = re.compile(r"(?:template\s*<.*>\s*)?(struct|class|enum(?: class)?)\s+(\w+)[^;()]*\{")
# A declaration of a function: a type, a name, parameters, and no '=' or 'return' before the parameters.
FUNCTION = re.compile(
    r"(?P<type>(?:static |virtual |inline |constexpr |explicit |friend )*[\w:<>,&*\s]*?)\b(?P<name>~?\w+)\((?P<parameters>[^()]*"
    r"(?:\([^()]*\)[^()]*)*)\)\s*(?:const)?\s*(?:noexcept)?\s*(?:override)?\s*(?:=\s*\w+)?\s*(?:;|\{)"
)
ARRAY = re.compile(r"std::span<|std::vector<(?:float|double|u?int\d*_t)>|(?:float|double|std::byte)\s*\*")
ERRORS = re.compile(r"\b[Ee]rrors?\b|\bfails?\b")
SHAPE = re.compile(r"\[[\w .,+*/()-]+\]")
SPECIAL = re.compile(r"~|\boperator\b|=\s*(delete|default)")


def statement(lines: list[str], at: int) -> str:
    """Returns the declaration that begins at line `at`, up to ';' or '{' outside of parentheses."""
    text, depth = "", 0
    for line in lines[at:]:
        code = re.sub(r"//.*", "", re.sub(r'"(?:\\.|[^"\\])*"', '""', line))
        for c in code:
            text += c
            depth += (c == "(") - (c == ")")
            if c in ";{" and depth == 0:
                return text
        text += " "
    return text


def block_comment(lines: list[str], at: int) -> str:
    """Returns the comment above line `at`. One comment may describe several declarations without an empty line between."""
    while at > 0 and lines[at - 1].strip() and not lines[at - 1].strip().startswith(("//", "{", "}", "public:", "#")):
        if lines[at - 1].rstrip().endswith("{"):
            break
        at -= 1
    comment: list[str] = []
    while at > 0 and lines[at - 1].strip().startswith("//"):
        at -= 1
        comment.insert(0, lines[at].strip()[2:].strip())
    return " ".join(comment)


def trailing_comment(lines: list[str], at: int) -> str:
    found = re.search(r"//(.*)", lines[at])
    return found.group(1).strip() if found else ""


def problems(text: str) -> list[tuple[int, str]]:
    lines = text.split("\n")
    out: list[tuple[int, str]] = []
    if not lines[0].startswith("//"):
        out.append((1, "the file has no comment"))
    scopes: list[str] = []  # kind of each open brace: "namespace", "public", "private", "body"
    for i, line in enumerate(lines):
        code = re.sub(r"//.*", "", re.sub(r'"(?:\\.|[^"\\])*"', '""', line)).strip()
        visible = all(s in ("namespace", "public") for s in scopes)
        kind = "body"
        if code.startswith("namespace"):
            kind = "namespace"
        elif code.startswith(("public:", "private:", "protected:")) and scopes:
            scopes[-1] = "public" if code.startswith("public:") else "private"
        elif visible and code and not code.startswith(("#", "}", "friend", "using", "return")):
            whole = statement(lines, i)
            kind_of = TYPE.match(whole.strip())
            function = FUNCTION.match(whole.strip())
            own = trailing_comment(lines, i)
            comment = block_comment(lines, i) or own
            if kind_of:
                kind = "body" if kind_of.group(1).startswith("enum") else "private" if kind_of.group(1) == "class" else "public"
                if not comment:
                    out.append((i + 1, f"{kind_of.group(1)} {kind_of.group(2)} has no comment"))
            elif function and function.group("type").strip() and not SPECIAL.search(whole):
                name = function.group("name")
                member = "public" in scopes
                comment = own if member and own else comment
                if not comment:
                    out.append((i + 1, f"{name}() has no comment"))
                elif re.match(r"(static )?(Result<|Status\b)", function.group("type").strip()) and not ERRORS.search(comment):
                    out.append((i + 1, f"{name}() does not name its errors"))
                elif ARRAY.search(function.group("parameters")) and not SHAPE.search(comment):
                    out.append((i + 1, f"{name}() does not state the shapes of its arrays"))
        for c in code:
            if c == "{":
                scopes.append(kind)
                kind = "body"
            elif c == "}" and scopes:
                scopes.pop()
    return out


def self_test() -> None:
    head = "// Names of things.\nnamespace nibble {\n"
    bad = {
        "struct A {\n    int x = 0;\n};\n": "struct A has no comment",
        "// Sums values.\nResult<int> sum(int a);\n": "sum() does not name its errors",
        "// Sums values. Error: overflow.\nResult<int> sum(std::span<const float> values,\n                int a);\n": "sum() does not "
        "state the shapes of its arrays",
        "int sum(int a);\n": "sum() has no comment",
        "// A server.\nclass A {\npublic:\n    int port() const;\n\nprivate:\n    int x() const;\n};\n": "port() has no comment",
        "// Sums.\nint sum(int a);\n\nint mean(int a);\n": "mean() has no comment",
    }
    good = [
        "// Holds a number.\nstruct A {\n    int x = 0;\n    bool passed() const { return x > 0; }  // whether x is positive\n};\n",
        "// Reads [n] values. Errors of both: overflow.\nResult<int> sum(std::span<const float> values);\nStatus check(int a);\n",
        "// A server.\nclass A {\npublic:\n    ~A();\n    A(const A&) = delete;\n    int port() const;  // of the socket\n\nprivate:\n    int x;\n};\n",
        "// Hooks.\nstruct A {\n    std::function<void(int)> on_text;\n    std::vector<std::string> names = {\"a\", \"b\"};\n};\n",
    ]
    for text, want in bad.items():
        found = [p for _, p in problems(head + text + "}\n")]
        assert found == [want], (text, found)
    for text in good:
        found = problems(head + text + "}\n")
        assert not found, (text, found)
    assert problems("int x;\n") == [(1, "the file has no comment")]


def main() -> int:
    self_test()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "include" / "nibble"
    paths = sorted(folder.rglob("*.h"))
    assert paths, f"{folder} has no headers"
    count = 0
    for path in paths:
        for line, problem in problems(path.read_text()):
            count += 1
            print(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {problem}")
    if count:
        print(f"{count} declarations of public headers lack documentation", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
