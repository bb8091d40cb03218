#!/usr/bin/env python3
"""Writes tests/data/jinja_table.jsonl: small templates and their results in Jinja2, configured as in transformers.

Needs jinja2 (made with 3.1.6):  python3 tests/oracles/jinja_table.py > tests/data/jinja_table.jsonl
"""
import json

from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return CallBlock(self.call_method("same"), [], [], body).set_lineno(line)

    def same(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
environment.filters["tojson"] = tojson

VARIABLES = {
    "s": "Grüße, 世界 \U0001f600", "w": " \t a b  c\n", "n": 7, "neg": -7, "f": 2.5, "t": True, "z": None, "e": "", "l": [3, 1, 2], "el": [], "ed": {},
    "d": {"b": 1, "a": {"x": [1, 2]}, "items": "own", "C": None},
    "m": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "k": 1}, {"role": "user", "content": "\"q\" <b> it's"}],
}

EXPRESSIONS = r"""
1 + 2 * 3|7 // 2|-7 // 2|7 % 3|-7 % 3|7 % -3|7 / 2|6 / 2|2 ** 10|2 ** -1|-2 ** 2|1.0|1e16|1e15|1e-5|0.0001|123456789.125|7.5 // 2|-7.5 % 2|1_000|0x1f|0b101|0o17
1 == 1.0|true == 1|1 < 2 < 3|1 < 2 > 5|'a' < 'b'|[1,2] < [1,3]|[1] == (1,)|none == none|nope == nope|1 in [1.0]|'a' in 'cat'|'x' not in 'cat'|'b' in d|1 in 'a'
not e|e or 'x'|n and 'y'|el or ed or none|'a' if t else 'b'|'a' if z|(1 if e else 2) + 1|1 ~ none ~ true ~ 1.5 ~ nope ~ 'x'|'a' 'b'
z|t|f|[1, 'a', none, true, 1.0]|(1,)|(1, 2)|()|{'a': 1, 2: 'b', none: [1]}|"it's"|['it\'s', 'a"b', '\n\t\\', 'é']|1, 2|[nope]|'\u00e9\x41\101\q'
s[0]|s[-1]|s[2]|s[::-1]|s[1:4]|s[-3:]|s[99]|l[::-1]|l[1:]|l[:-1]|l[5]|l[5].x|l['a']|l[::2]|l[5:1:-1]|l[-99:99]|s[::0]|n[0]|z.x|z.x.y|nope.x|nope|d.b|d.items|d['items']|d.a.x[1]|d.nope|d.nope.x|d['get']('zz', 5)|d.get('b')|d.get('q')|l.0
s.upper()|s.lower()|'straße'.upper()|w.strip()|w.lstrip()|w.rstrip()|'xxaxx'.strip('x')|w.split()|'a,b,,c'.split(',')|'a,b,c'.split(',', 1)|'a b  c'.split(none, 1)|'a,b,c'.rsplit(',', 1)|' a b '.rsplit()|'a\nb\r\nc'.splitlines()|'abc'.startswith('ab')|'abc'.startswith(('x', 'a'))|'abc'.endswith('bc')|'aXbX'.replace('X', 'yy')|'aXbX'.replace('X', 'y', 1)|'ab'.replace('', '-')|s.find('世')|'abc'.find('z')|'abcabc'.count('bc')|'-'.join(['a', 'b'])|'-'.join([1])|'hello wORLD'.title()|'hELLO'.capitalize()|'12'.isdigit()|''.isdigit()|'</think>x</think>y'.split('</think>')[-1]|'a'.nope|'a'.nope()|'a'.__class__|l.append(1)|d.update({})|d.keys()|d.values()|d.items|ed.items()|{'a':1}.items()|l.index(1)|l.count(3)
'ab' * 3|[1] * 2|3 * 'x'|'a' + 1|1 + 'a'|[1] + [2]|none + 1|nope + 'a'|1 + nope|-none|-t|+t|'%s is %d' % ('a', 3)|'%5.2f|%%' % 3.14159|'%s' % 1|1 // 0|1 % 0|1 / 0|1 < 'a'|none < 1|2 + true
range(5)|list|range(2, 10, 3)|list|range(100001)|dict(a=1, b=2)|dict([['x', 1]])|namespace(a=1).a|n()|nope()|range(3)[1]
""".strip()

FILTERS = r"""
{{ range(5)|list }}
{{ range(10, 2, -3)|list }}
{{ s|length }}
{{ nope|length }}
{{ n|length }}
{{ w|trim }}|
{{ 'xax'|trim('x') }}
{{ l|join(', ') }}
{{ m|join('; ', attribute='role') }}
{{ m|map(attribute='content')|list }}
{{ m|map(attribute='k', default=0)|list }}
{{ ['a', 'b']|map('upper')|join }}
{{ m|selectattr('role', 'equalto', 'user')|list|length }}
{{ m|selectattr('k')|map(attribute='content')|first }}
{{ m|rejectattr('role', '==', 'user')|list }}
{{ l|select('odd')|list }}
{{ l|reject('gt', 1)|list }}
{{ l|select('nope')|list }}
{{ l|map('nope')|list }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ ['b', 'A', 'c']|sort }} {{ ['b', 'A']|sort(case_sensitive=true) }}
{{ m|sort(attribute='content')|map(attribute='content')|list }}
{{ {'b': 1, 'A': 2, 'c': 0}|dictsort }} {{ {'b': 1, 'A': 2}|dictsort(by='value', reverse=true) }}
{{ d|tojson }}
{{ d|tojson(indent=2) }}
{{ [[], {}, [1]]|tojson(indent=4) }}
{{ s|tojson }} {{ s|tojson(ensure_ascii=true) }}
{{ {'a': 1, 'b': [1, 2.0, none, true]}|tojson(separators=(',', ':')) }}
{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}
{{ {1: 2, none: 3, true: 4}|tojson }}
{{ '\u0001\u007f\b\f/<>&\'"'|tojson }}
{{ nope|tojson }}
{{ 1e100|tojson }} {{ 1.0|tojson }}
{{ nope|default('x') }}{{ e|default('x') }}{{ e|default('x', true) }}{{ z|d('y', boolean=true) }}
{{ d.nope.x|default('x') }}
{{ l|first }}{{ l|last }}{{ el|first }}
{{ el|first is defined }}
{{ d|items|list }}
{{ nope|items|list }}
{{ l|items }}
{{ 'aAb'|replace('a', 'x') }} {{ 'Hello'|upper|lower }} {{ 123|string + '4' }}
{{ '12'|int + 1 }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.9|int }} {{ '3.7'|int }} {{ ' 42 '|int }} {{ 'ff'|int(0, 16) }}
{{ '1.5'|float }} {{ 'x'|float }} {{ 3|float }}
{{ -5|abs }} {{ 2.5|round }} {{ 3.14159|round(2) }} {{ 2.1|round(0, 'ceil') }} {{ 7|round }}
{{ [1, 1, 2, 'a', 'A']|unique|list }} {{ l|reverse|list }} {{ 'abc'|reverse }}
{{ l|sum }} {{ l|min }} {{ l|max }} {{ m|sum(attribute='k', start=1) }}
{{ 'a\nb\n\nc'|indent }}
{{ 'a\nb'|indent(2, true) }}|
{{ '<a & "b">'|e }} {{ '<'|safe }}
{{ 'hello world'|title }} {{ 'HELLO'|capitalize }} {{ '%s-%s'|format(1, 'a') }}
{{ 'a' ~ ' b '|trim ~ 'c' }}
{{ l|list is sameas l }} {{ l is sameas l }} {{ none is sameas none }}
{{ n is odd }}{{ n is divisibleby 7 }}{{ n is number }}{{ t is number }}{{ t is boolean }}{{ t is integer }}{{ f is float }}{{ t is true }}
{{ s is string }}{{ l is sequence }}{{ s is sequence }}{{ d is mapping }}{{ l is iterable }}{{ n is iterable }}{{ nope is iterable }}{{ z is none }}{{ z is not none }}
{{ nope is defined }}{{ nope is undefined }}{{ d.b is defined }}{{ not nope is defined }}{{ 1 is in [1] }}{{ 'a' is in 'b' }}{{ range is callable }}
{{ 'a' is lower }}{{ 'A' is upper }}{{ n is eq 7 }}{{ n is gt(3) }}{{ 'join' is filter }}
{{ x|nope }}
{{ x is nope }}
{% if false %}{{ x|nope }}{% endif %}
{{ 'a' if true else x|nope }}
{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for i in el %}x{% else %}none{% endfor %}
{% for i in l if i > 1 %}{{ i }}{{ loop.length }}{% else %}e{% endfor %}
{% for k, v in d.a.items() %}{{ k }}={{ v }}{% endfor %}
{% for k in d %}{{ k }}{% endfor %}{% for c in 'aé' %}{{ c }}.{% endfor %}{% for x in nope %}y{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for a, b in [1, 2] %}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in [1, [2, [3]]] recursive %}{% if i is iterable %}({{ loop(i) }}){{ loop.depth }}{% else %}{{ i }}{% endif %}{% endfor %}
{% for i in [1,1,2] %}{{ loop.changed(i) }}{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{% if true %}{% set y = 5 %}{% endif %}{{ y }}
{% set d.x = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set t2 %}a {{ n }} b{% endset %}{{ t2|length }}{{ t2 }}
{% set t2|upper|trim %} a {% endset %}{{ t2 }}.
{% filter upper %}abc{{ s }}{% endfilter %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}
{% macro m2(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m2(1) }} {{ m2(1, c=5) }} {{ m2() }}
{% macro m2(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m2(1, 2, x=3) }}
{% macro m2(a) %}{% endmacro %}{{ m2(1, 2) }}
{% macro m2(a) %}{% endmacro %}{{ m2(b=2) }}
{% macro m2() %}{{ v }}{% endmacro %}{% set v = 'late' %}{{ m2() }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% macro m2(a) %}[{{ caller(a) }}]{% endmacro %}{% call(x) m2('q') %}{{ x }}!{% endcall %}
{% generation %}{% set q = 1 %}gen{{ q }}{% endgeneration %}{{ q }}
{% raw %}{{ x }} {% y %}{% endraw %}
{{ {'a': {'b': {}}} }}
{#- c -#} a {# b #} c
{{- ' x ' -}} y
{%- if true +%} x{%+ endif %}
{{ m[0].role }}{{ m[-1]['content'] }}{{ (m|last).content }}{{ (m|first)['role'] }}
{{ "a" if n > 5 and not e else "b" }}{{ n is defined and n }}
{{ [1,2,3][1:]|first }}{{ 'a,b'.split(',')|last }}{{ -1|abs }}{{ 'x'.upper() ~ 1 + 2 }}
{{ '\r\n' }}|{{ "a\
b" }}
{{ 'unclosed }}
{{ 1 + }}
{{ (1 }}
{% if x %}
{% nope %}
{% break %}
{{ 1 is odd is even }}
""".strip("\n")

BLOCKS = ["a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if true -%}\n  b\n  {%- endif %}\nc\n\n", "  {# c #}\n  x\n", "x {% if true %} y {% endif %}\n z",
          "{{ 1 }}\n{{ 2 }}\n", "a\r\nb\rc\r\n", "  {%+ if true %}\n x{% endif %}", "{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\n", "a {{- 1 }} b {{ 2 -}}  c",
          "{% raw -%}  x {{ y }}\n  {%- endraw %}\nz", "  {% raw %}\n x\n  {% endraw %}\nz", "\u00a0{%- if true %}x{% endif %}", "{% set x %}\n  a\n{% endset %}[{{ x }}]", "{", "{ {", "{{ '}}' }}", "a{#", ""]

templates = ["{{ " + e + " }}" for line in EXPRESSIONS.split("\n") for e in line.split("|")] + FILTERS.split("\n") + BLOCKS
for template in templates:
    row = {"template": template, "variables": VARIABLES}
    try:
        row["rendered"] = environment.from_string(template).render(**VARIABLES)
    except Exception as error:  # any exception is an error of the template
        row["error"] = f"{type(error).__name__}: {error}"
    if " at 0x" in row.get("rendered", "") or row.get("rendered", "").startswith("range("):
        continue  # addresses and printed ranges are errors in nibble on purpose
    used = {k: v for k, v in VARIABLES.items() if k in template}
    row["variables"] = used
    print(json.dumps(row, ensure_ascii=False))
