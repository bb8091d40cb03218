"""Draws charts and pages of studies: inline SVG in the style of nibble/page (its style sheet), without scripts or
external requests.
"""
import html, math, pathlib, re

CSS = pathlib.Path(__file__).resolve().parent.parent / 'nibble/page/assets/page.css'
COLOURS = 8  # in the style sheet; there are more shapes, so that the ninth series differs from the first
escape = html.escape

def number(value, digits=4):
    """Returns a short form for people; tiny and huge numbers have an exponent."""
    return '–' if value is None or math.isnan(value) else f'{value:.{digits}g}'

def ticks(low, high, count):
    """Multiples of 1, 2 or 5 times a power of ten inside [low, high]."""
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(f for f in (1, 2, 5, 10) if rough <= f * power * (1 + 1e-9)) * power
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]

class Frame:
    """The axes of a drawing, and the mapping from values to pixels."""
    def __init__(self, title, x, y, x_label, y_label, width=1040, height=330, left=64):
        self.left, self.top, self.right, self.bottom = left, 10, width - 20, height - 46
        (self.x0, self.x1), (self.y0, self.y1) = x, y
        self.out = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">']
        self.label((self.left + self.right) / 2, self.bottom + 38, x_label)
        if y_label:
            self.out.append(f'<text class="label" transform="translate(14 {(self.top + self.bottom) / 2:.1f}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')

    def x(self, value): return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.right - self.left)
    def y(self, value): return self.bottom - (value - self.y0) / (self.y1 - self.y0) * (self.bottom - self.top)
    def label(self, x, y, text, css='label', anchor='middle'):
        self.out.append(f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def x_axis(self, marks):
        self.out.append(f'<path class="axis" d="M{self.left} {self.bottom}H{self.right}"/>')
        for value, text in marks:
            self.out.append(f'<path class="axis" d="M{self.x(value):.1f} {self.bottom}v4"/>')
            self.label(self.x(value), self.bottom + 17, text, 'tick')

    def y_axis(self, marks):
        for value, text in marks:
            self.out.append(f'<path class="grid" d="M{self.left} {self.y(value):.1f}H{self.right}"/>')
            self.label(self.left - 7, self.y(value) + 4, text, 'tick', 'end')

    def end(self): return ''.join([*self.out, '</svg>'])

def marker(series, x, y, r=4):
    """Returns a different shape for each series, so that series can be distinguished without colour."""
    ring = f'M{-r} 0a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z'
    square = f'M{-r} {-r}h{2 * r}v{2 * r}h{-2 * r}z'
    triangle = f'M0 {-1.2 * r}L{1.15 * r} {r}L{-1.15 * r} {r}z'
    filled = [ring, square, triangle, f'M0 {-1.3 * r}L{1.3 * r} 0L0 {1.3 * r}L{-1.3 * r} 0z', f'M0 {1.2 * r}L{1.15 * r} {-r}L{-1.15 * r} {-r}z']
    drawn = [f'M{-1.2 * r} 0H{1.2 * r}M0 {-1.2 * r}V{1.2 * r}', f'M{-r} {-r}L{r} {r}M{-r} {r}L{r} {-r}', f'M{-r} {-r / 2}h{2 * r}M{-r} {r / 2}h{2 * r}', ring, square, triangle]
    n = series % (len(filled) + len(drawn))
    return f'<path class="{"m" if n < len(filled) else "mo"}" transform="translate({x:.1f} {y:.1f})" d="{[*filled, *drawn][n]}"'

def legend(names):
    icons = (f'<span><svg class="icon s{i % COLOURS}" viewBox="0 0 14 14" aria-hidden="true">{marker(i, 7, 7)}/></svg>{escape(name)}</span>' for i, name in enumerate(names))
    return f'<div class="legend">{"".join(icons)}</div>'

def line_chart(title, x_label, y_label, series):
    """series: name -> [(x, mean, deviation)]; a band shows one deviation up and down."""
    points = [p for s in series.values() for p in s]
    if not points: return ''
    low, high = min(p[1] - p[2] for p in points), max(p[1] + p[2] for p in points)
    pad = 0.05 * (high - low) or 0.01
    x0, x1 = min(p[0] for p in points), max(p[0] for p in points)
    f = Frame(title, (x0, x1 if x1 > x0 else x0 + 1), (low - pad, high + pad), x_label, y_label, height=330 + 14 * max(0, len(series) - 4))
    f.y_axis((v, number(v)) for v in ticks(f.y0, f.y1, 6))
    f.x_axis((v, number(v, 6)) for v in ticks(f.x0, f.x1, 12))
    for i, (name, s) in enumerate(series.items()):
        edge = [(x, m + d) for x, m, d in s] + [(x, m - d) for x, m, d in reversed(s)]
        path = lambda ps: 'M' + 'L'.join(f'{f.x(x):.1f} {f.y(y):.1f}' for x, y in ps)
        f.out.append(f'<g class="s{i % COLOURS}"><path class="band" style="opacity:{min(0.1, 0.5 / len(series)):.2g}" d="{path(edge)}z"/><path class="line" style="opacity:.9" d="{path([p[:2] for p in s])}"/>')
        for x, m, d in s if len(s) <= 60 else []:
            f.out.append(f'{marker(i, f.x(x), f.y(m), 3)}><title>{escape(name)}, {number(x, 6)}: {number(m)} ± {number(d, 2)}</title></path>')
        f.out.append('</g>')
    return f'<figure><h3>{escape(title)}</h3>{legend(series)}<div class="chart">{f.end()}</div></figure>'

def dots(title, label, groups):
    """groups: name -> [(row, mean, low, high)]: one point per row, on an axis that includes 0."""
    values = [v for rows in groups.values() for r in rows for v in r[1:]]
    if not values: return ''
    low, high = min(0, *values), max(0, *values)
    pad = 0.03 * (high - low) or 0.01
    marks = ticks(low - pad, high + pad, 10)
    return dot_rows(title, label, groups, (low - pad, high + pad), [(v, number(v)) for v in marks], marks, lambda v: v)

def dot_rows(title, label, groups, span, marks, grid, place):
    """place: maps a value to a position within span. Groups with rows of the same name share its band."""
    bands = {}
    for i, rows in enumerate(groups.values()):
        for row in rows: bands.setdefault(row[0], []).append((i, row))
    tall = lambda points: 10 + 16 * len(points)
    room = 14 + sum(map(tall, bands.values()))
    f = Frame(title, span, (room, 0), label, '', height=56 + room, left=250)
    at = lambda v: f.x(place(v))
    f.x_axis(marks)
    for e in grid: f.out.append(f'<path class="{"axis" if e == place(0) else "grid"}" d="M{f.x(e):.1f} {f.top}V{f.bottom}"/>')
    top = 7
    for name, points in bands.items():
        if top > 7: f.out.append(f'<path class="grid" d="M{f.left} {f.y(top):.1f}H{f.right}"/>')
        f.label(f.left - 8, f.y(top + tall(points) / 2) + 4, name, 'tick', 'end')
        for n, (i, (_, mean, least, most)) in enumerate(points):
            y = f.y(top + 13 + 16 * n)
            f.out.append(f'<g class="s{i % COLOURS}"><path class="line" style="stroke-width:3" d="M{at(least):.1f} {y:.1f}H{at(most):.1f}"/>'
                         f'{marker(i, at(mean), y, 5)}><title>{escape(name)}: {number(mean)} ({number(least)} to {number(most)})</title></path></g>')
        top += tall(points)
    return f'<figure><h3>{escape(title)}</h3>{legend(groups)}<div class="chart">{f.end()}</div></figure>'

def log_dots(title, label, groups):
    """Like dots(), on a logarithmic axis with a place for 0 at its left end."""
    positive = [v for rows in groups.values() for r in rows for v in r[1:] if v > 0]
    low, high = (math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))) if positive else (-1, 0)
    zero, first = low - 1, low - (low == high)
    powers = range(first, high + 1)
    return dot_rows(title, label, groups, (zero - 0.3, high + 0.2), [(zero, '0'), *((e, f'1e{e}') for e in powers)], [zero, *powers],
                    lambda v: max(math.log10(v), first) if v > 0 else zero)

def stacked_bars(title, label, parts, rows):
    """rows: name -> one value for each of parts."""
    most = max((sum(v) for v in rows.values()), default=0) or 1
    f = Frame(title, (0, most * 1.02), (len(rows) - 0.4, -0.6), label, '', height=70 + 26 * len(rows), left=250)
    f.x_axis((v, number(v)) for v in ticks(0, f.x1, 10))
    for n, (name, values) in enumerate(rows.items()):
        f.label(f.left - 8, f.y(n) + 4, name, 'tick', 'end')
        begin = 0
        for i, value in enumerate(values):
            f.out.append(f'<g class="s{i % COLOURS}"><rect class="bar" x="{f.x(begin):.1f}" y="{f.y(n) - 8:.1f}" width="{f.x(begin + value) - f.x(begin):.1f}" height="16">'
                         f'<title>{escape(name)}, {escape(parts[i])}: {number(value)}</title></rect></g>')
            begin += value
    return f'<figure><h3>{escape(title)}</h3>{legend(parts)}<div class="chart">{f.end()}</div></figure>'

def standalone(chart, names):
    """Returns a chart of this file as a standalone file: colours for light and dark, its title and a legend above it.
    names: of its series.
    """
    css = CSS.read_text()
    colours = lambda block: ''.join(f'--{k}:{v};' for k, v in re.findall(r'--(s\d|soft|faint|grid): (#\w+)', block))
    light, dark = css.split('@media (prefers-color-scheme: dark)')[0], css.split('@media (prefers-color-scheme: dark)')[1].split('@media print')[0]
    title, drawing = html.unescape(re.search(r'<h3>(.*?)</h3>', chart)[1]), chart[chart.index('<div class="chart"><svg') + 19:chart.rindex('</svg>')]
    width, height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', drawing).groups())
    drawing = re.sub(r'<title>.*?</title>', '', drawing[drawing.index('>') + 1:])
    rows, x = [[]], 12
    for i, name in enumerate(names):
        if x + 7 * len(name) + 34 > width: rows.append([]); x = 12
        rows[-1].append(f'<g class="s{i % COLOURS}">{marker(i, x + 6, 0)}/></g><text class="label" x="{x + 17}" y="4">{escape(name)}</text>')
        x += 7 * len(name) + 34
    top = 30 + 20 * len(rows)
    legend = ''.join(f'<g transform="translate(0 {38 + 20 * i})">{"".join(row)}</g>' for i, row in enumerate(rows))
    style = (f'svg{{{colours(light)}font-family:system-ui,sans-serif}}@media(prefers-color-scheme:dark){{svg{{{colours(dark)}}}}}' + ''.join(f'.s{i}{{color:var(--s{i})}}' for i in range(COLOURS))
             + '.grid{stroke:var(--grid);fill:none}.axis{stroke:var(--faint);fill:none}.tick{fill:var(--soft);font-size:12px}.label{fill:var(--soft);font-size:12.5px}.title{fill:var(--soft);font-size:15px;font-weight:600}'
             '.line{stroke:currentColor;stroke-width:1.6;fill:none;stroke-linejoin:round}.m,.bar{fill:currentColor}.mo{stroke:currentColor;stroke-width:1.7;fill:none}.band{fill:currentColor;stroke:none}')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + top}" width="{width}" role="img" aria-label="{escape(title)}"><style>{style}</style>'
            f'<text class="title" x="12" y="18">{escape(title)}</text>{legend}<g transform="translate(0 {top})">{drawing}</g></svg>\n')

def table(heads, rows):
    head = ''.join(f'<th{" class=l" if not i else ""}>{escape(h)}</th>' for i, h in enumerate(heads))
    body = ''.join('<tr>' + ''.join(f'<td{" class=l" if not i else ""}>{escape(c)}</td>' for i, c in enumerate(r)) + '</tr>' for r in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

def markdown(heads, rows):
    return '\n'.join('| ' + ' | '.join(r) + ' |' for r in [heads, ['---'] * len(heads), *rows])

def section(title, *content):
    return f'<section><h2>{escape(title)}</h2>{"".join(content)}</section>'

def page(title, kicker, meta, *sections):
    spans = ''.join(f'<span>{escape(m)}</span>' for m in meta)
    return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n<style>\n{CSS.read_text()}</style>\n</head>\n<body>\n<main>\n'
            f'<header><div class="kicker">{escape(kicker)}</div>\n<h1>{escape(title)}</h1>\n<div class="meta">{spans}</div></header>\n' + '\n'.join(sections) + '\n</main>\n</body>\n</html>\n')
