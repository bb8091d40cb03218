"""Writes tests/data/rl/math_answers.json, the verdicts of the math-verify package on pairs of answers, for tests/rl.

    pip install math-verify==0.9.0 && python tests/oracles/math_verify_cases.py tests/data/rl/math_answers.json
"""
import json
import sys

from math_verify import parse, verify

PAIRS = r"""
1/2 | 0.5
\frac{1}{2} | 0.5
\frac12 | 1/2
\dfrac{3}{4} | 0.75
1{,}000 | 1000
1,234,567 | 1234567
12 | 13
-3 | -3.0
-3 | 3
50\% | 0.5
50\% | 50
\sqrt{8} | 2\sqrt{2}
\sqrt{2} | 1.41421356237
\sqrt[3]{27} | 3
2^{10} | 1024
2^{-1} | \frac{1}{2}
2\pi | 6.283185307179586
\pi | 3.14
x+1 | 1+x
2(x+1) | 2x+2
(x+1)^2 | x^2+2x+1
(x+1)^2 | x^2+1
\frac{x}{y} | x/y
a^2-b^2 | (a-b)(a+b)
x=5 | 5
y = 2x+1 | 2x+1
(1,2) | (1,2)
(1,2) | (2,1)
(1,2) | (1, 2.0)
\{1,2,3\} | \{3,2,1\}
\{1,2\} | \{1,3\}
\left(\frac{1}{2}, 3\right) | (0.5,3)
(3, \frac{\pi}{2}) | (3, \pi/2)
[0,1] | [0,1]
[0,1) | [0,1]
90^\circ | 90
5! | 120
\frac{\sqrt{3}}{3} | \frac{1}{\sqrt{3}}
\ln(e) | 1
\sin(0) | 0
x^2 | x^3
7 | 7.0000001
7 | 7.1
10^{6} | 1000000
3\frac{1}{2} | 3.5
\text{(A)} | A
-\frac{2}{3} | \frac{-2}{3}
\frac{-2}{3} | -2/3
0.333333 | 1/3
0.33 | 1/3
1+\sqrt{5} | \sqrt{5}+1
\frac{1+\sqrt{5}}{2} | 1.618033988749895
4x^2y | 4yx^2
6.02\times 10^{3} | 6020
""".strip().splitlines()

if __name__ == "__main__":
    rows = []
    for line in PAIRS:
        gold, answer = [s.strip() for s in line.split(" | ")]
        same = verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{answer}}}"))
        rows.append({"expected": gold, "given": answer, "same": bool(same)})
    with open(sys.argv[1], "w", encoding="utf8") as out:
        out.write(json.dumps(rows, indent=0, ensure_ascii=True) + "\n")
    print(len(rows), "pairs,", sum(r["same"] for r in rows), "same")
