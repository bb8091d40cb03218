// Charts as SVG. Colours are CSS classes (s0 ... s7, band, bar, grid, axis), so light and dark mode share one drawing.
// Every series also has its own marker, so colour is never the only cue.

const STYLES = 8;
const at = (value) => short(value, 1);
const styleOf = (style) => "s" + (style % STYLES);

// Returns about `most` multiples of 1, 2 or 5 times a power of ten (at least `smallest`) in [low, high].
function ticks(low, high, most, smallest = 0) {
  if (!known(low) || !known(high) || !(high > low)) return [];
  const rough = (high - low) / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(rough)), factor = rough / power;
  const step = Math.max(smallest, power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10));
  const decimals = Math.min(12, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9))), marks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) marks.push([k * step, short(k * step, decimals)]);
  return marks;
}

// The drawing area inside the margins, and the mapping from values to pixels.
function frame(c, [x0, x1], [y0, y1], labels) {
  if (!(x1 > x0)) x1 = x0 + 1;
  if (!(y1 > y0)) y1 = y0 + 1;
  const f = { left: labels ? 58 : 34, top: 10, right: c.width - 12, bottom: c.height - (labels ? 46 : 24), x0, x1 };
  f.x = (v) => f.left + ((v - x0) / (x1 - x0)) * (f.right - f.left);
  f.y = (v) => f.bottom - ((v - y0) / (y1 - y0)) * (f.bottom - f.top);
  return f;
}

const label = (css, x, y, anchor, text) => drawing("text", { class: css, x: at(x), y: at(y), "text-anchor": anchor }, text);
const path = (css, d, more) => drawing("path", { class: css, d, ...more });
const tip = (text) => ({ "data-tip": text, "aria-label": text });

const axes = (f, c, xTicks, yTicks) => [
  yTicks.map(([v, text]) => [path("grid", `M${at(f.left)} ${at(f.y(v))}H${at(f.right)}`), label("tick", f.left - 7, f.y(v) + 4, "end", text)]),
  path("axis", `M${at(f.left)} ${at(f.bottom)}H${at(f.right)}`),
  xTicks.map(([v, text]) => [path("axis", `M${at(f.x(v))} ${at(f.bottom)}v4`), label("tick", f.x(v), f.bottom + 17, "middle", text)]),
  c.xLabel && label("label", (f.left + f.right) / 2, f.bottom + 38, "middle", c.xLabel),
  c.yLabel && drawing("text", { class: "label", transform: `translate(14 ${at((f.top + f.bottom) / 2)}) rotate(-90)`, "text-anchor": "middle" }, c.yLabel),
];
const canvas = (c, ...content) =>
  drawing("svg", { viewBox: `0 0 ${c.width} ${c.height}`, role: "img", "aria-label": c.title }, ...content);

// One of eight shapes of about equal weight around (x, y). The last three are drawn as strokes.
function marker(style, x, y, r) {
  const to = (dx, dy) => `${at(x + dx * r)} ${at(y + dy * r)}`, one = at(r), two = at(2 * r);
  return [
    () => `M${to(-1, 0)}a${one} ${one} 0 1 0 ${two} 0a${one} ${one} 0 1 0-${two} 0z`,
    () => `M${to(-0.9, -0.9)}h${at(1.8 * r)}v${at(1.8 * r)}h-${at(1.8 * r)}z`,
    () => `M${to(0, -1.2)}L${to(1.15, 0.9)}L${to(-1.15, 0.9)}z`,
    () => `M${to(0, -1.3)}L${to(1.3, 0)}L${to(0, 1.3)}L${to(-1.3, 0)}z`,
    () => `M${to(0, 1.2)}L${to(1.15, -0.9)}L${to(-1.15, -0.9)}z`,
    () => `M${to(-1.2, 0)}L${to(1.2, 0)}M${to(0, -1.2)}L${to(0, 1.2)}`,
    () => `M${to(-1, -1)}L${to(1, 1)}M${to(-1, 1)}L${to(1, -1)}`,
    () => `M${to(-1.1, -0.5)}h${at(2.2 * r)}M${to(-1.1, 0.5)}h${at(2.2 * r)}`,
  ][style % STYLES]();
}
const markerClass = (style) => (style % STYLES >= 5 ? "mo" : "m");
const icon = (style) =>
  drawing("svg", { class: "icon", viewBox: "0 0 14 14", "aria-hidden": "true" }, path(`${markerClass(style)} ${styleOf(style)}`, marker(style, 7, 7, 4)));
// series: objects with name and style.
const legend = (series) => part("legend", series.map((s) => span("", icon(s.style), s.name)));

const drawable = (p) => known(p.mid) && known(p.low ?? p.mid) && known(p.high ?? p.mid);

// Runs of points without a gap.
function runsOf(points) {
  const runs = [[]];
  for (const p of points) drawable(p) ? runs[runs.length - 1].push(p) : runs.push([]);
  return runs.filter((run) => run.length);
}
const polyline = (f, s) => runsOf(s.points).map((run) => "M" + run.map((p) => `${at(f.x(p.x))} ${at(f.y(p.mid))}`).join("L")).join("");
// The outline of low ... high. A single point is widened.
const band = (f, s) => runsOf(s.points).map((run) => {
  const wide = run.length === 1 ? 0.3 : 0, edge = (p, dx, y) => `${at(f.x(p.x + dx))} ${at(f.y(y))}`;
  const there = run.flatMap((p) => (wide ? [edge(p, -wide, p.high), edge(p, wide, p.high)] : [edge(p, 0, p.high)]));
  const back = [...run].reverse().flatMap((p) => (wide ? [edge(p, wide, p.low), edge(p, -wide, p.low)] : [edge(p, 0, p.low)]));
  return "M" + [...there, ...back].join("L") + "Z";
}).join("");

// Lines through the points {x, mid, low, high, tip} of each series over bands from low to high. `context` is drawn thin
// and grey in the background.
function lineChart(options) {
  const c = { width: 1040, height: 360, context: [], ...options }, labels = Boolean(c.xLabel || c.yLabel);
  const yTicks = ticks(c.y[0], c.y[1], Math.max(Math.trunc(c.height / 48), 3));
  const f = frame(c, c.x, c.y, labels);
  // A digit is about 7 px wide; the axis label is left of the digits.
  if (c.yLabel) for (const [, text] of yTicks) f.left = Math.max(f.left, 30 + 7 * text.length);
  const xTicks = c.xTicks || ticks(Math.ceil(c.x[0]), c.x[1], Math.max(Math.trunc(c.width / 70), 3), 1);
  const r = Math.min(labels ? 3.6 : 2.4, Math.max(1.4, ((f.right - f.left) / Math.max(1, f.x1 - f.x0)) * 0.3));
  return canvas(c, axes(f, c, xTicks, yTicks),
    c.context.map((s) => path("context", polyline(f, s))),
    c.series.filter((s) => s.points.some((p) => p.high > p.low)).map((s) => path("band " + styleOf(s.style), band(f, s))),
    c.series.map((s) => drawing("g", { class: styleOf(s.style) }, path("line", polyline(f, s)),
      s.points.filter(drawable).map((p) => path(markerClass(s.style), marker(s.style, f.x(p.x), f.y(p.mid), r), tip(p.tip))))));
}

// bars: {from, to, value, tip, style}. percent: values are fractions of 1.
function barChart(options) {
  const c = { width: 1040, height: 260, x: [0, 1], percent: true, style: 0, xTicks: [], ...options };
  const high = c.high || Math.max(0, ...c.bars.map((b) => b.value * 1.06).filter(known)) || 1;
  const f = frame(c, c.x, [0, high], true);
  const yTicks = c.percent ? ticks(0, high * 100, 5).map(([v, text]) => [v / 100, text + "%"]) : ticks(0, high, 5);
  return canvas(c, axes(f, c, c.xTicks, yTicks), drawing("g", { class: styleOf(c.style) }, c.bars.map((b) => {
    const from = f.x(b.from), to = f.x(b.to), gap = Math.min(1.5, (to - from) * 0.12);
    // A value too small to see still gets a hairline: "rare" must not look like "never".
    const height = b.value > 0 ? Math.max(f.bottom - f.y(Math.min(b.value, high)), 0.7) : 0;
    return drawing("rect", { class: b.style === undefined ? "bar" : "bar " + styleOf(b.style), x: short(from + gap), y: at(f.bottom - height),
      width: short(to - from - 2 * gap), height: at(height), ...tip(b.tip) });
  })));
}

// One row of cells {value, tip} of equal width; larger values are darker (logarithmic). Ticks are at indices of cells.
function heatStrip(options) {
  const c = { width: 1040, height: 96, style: 0, ...options }, f = frame(c, [0, Math.max(1, c.cells.length)], [0, 1], true);
  const largest = Math.max(0, ...c.cells.map((one) => one.value));
  return canvas(c, axes(f, c, c.xTicks, []), drawing("g", { class: styleOf(c.style) }, c.cells.map((one, i) => drawing("rect", {
    class: "heat", x: short(f.x(i)), y: at(f.top), width: short(f.x(1) - f.x(0)), height: at(f.bottom - f.top),
    "fill-opacity": short(one.value > 0 ? 0.08 + (0.92 * Math.log1p(one.value)) / Math.log1p(largest) : 0, 3), ...tip(one.tip) }))));
}

const chart = (svg) => part("chart", svg);

// A chart over steps. curves: {name, style, points}, points as in the data of runs: [step, value], or [first step, last
// step, mean, lowest, highest] of several steps. Returns nothing if no curve has a value.
function stepChart(title, yLabel, curves, { low, high, ...size } = {}) {
  let least = Infinity, most = -Infinity, last = 1;
  const series = curves.filter((curve) => curve.points.length).map((curve) => ({ name: curve.name, style: curve.style, points: curve.points.map((p) => {
    const single = p.length === 2, mid = single ? p[1] : p[2], from = single ? mid : p[3], to = single ? mid : p[4];
    last = Math.max(last, single ? p[0] : p[1]);
    if (known(from)) least = Math.min(least, from);
    if (known(to)) most = Math.max(most, to);
    return { x: p[0], mid, low: from, high: to, tip: single ? `${curve.name}, step ${p[0]}: ${significant(mid)}`
      : `${curve.name}, steps ${p[0]} to ${p[1]}: ${significant(mid)} (${significant(from)} to ${significant(to)})` };
  }) }));
  if (!(least <= most)) return null;
  const margin = most > least ? 0.04 * (most - least) : most !== 0 ? Math.abs(most) * 0.1 : 1;
  return lineChart({ title, xLabel: "step", yLabel, x: [0, last], series, ...size,
    y: [low ?? (least >= 0 && least < margin ? 0 : least - margin), high ?? most + margin] });
}
