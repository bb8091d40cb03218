// `nibble quantize`: data.report is nibble-report.json without its tensors and its plan; data.summary: the tensors in groups (quant/report_html.h).
views.quantization = ({ report, summary }) => {
  const t = report.totals, timing = report.timing, warned = report.warnings.length;
  const name = summary.name;
  return [
    header("quantization report", name, [report.recipe, typeof report.settings.dialect === "string" && `${report.settings.dialect} checkpoint`,
      report.kv !== "none" && `KV cache ${report.kv}`, report.weights_only && "weights only",
      timing.verified ? element("span", { class: "badge good", title: timing.verified }, "✓ Verified") : span("badge warn", "Not verified"),
      warned > 0 && element("a", { class: "badge warn", href: "#warnings" }, `${warned} warning${warned === 1 ? "" : "s"}`)]),
    part("cards",
      card("Size of the weights", figure(`${bytes(t.source_bytes)} → ${bytes(t.stored_bytes)}`),
        `${places(t.stored_bytes ? t.source_bytes / t.stored_bytes : 0, 2)}× smaller · ${large(t.elements)} weights in ${count(t.tensors)} tensors`, true),
      card("Bits per weight", fixed(t.quantized_bits_per_element, 2), `of the ${count(t.quantized_tensors)} quantized tensors; ${fixed(t.bits_per_element, 2)} over all`),
      errorCards(t, summary), timing.seconds > 0 && timeCards(timing)),
    compositionOf(t, summary.formats), errorByLayer(summary), outputsOf(report.layer_outputs), distributionOf(summary.formats),
    raisedOf(summary.raised), worstOf(summary.worst), carriedOf(summary.carried), planOf(t, summary.plan),
    warned > 0 && Object.assign(section("Warnings", list(report.warnings)), { id: "warnings" }),
    report.gaps.length > 0 && Object.assign(section("Tensors without usable calibration data", list(report.gaps.map((g) => g.text))), { id: "gaps" }),
    runOf(report),
  ];
};

// 10 log10 of weights over error; infinite without an error.
const decibels = ({ squared_weight: weight, squared_error: error }) => (error > 0 ? 10 * Math.log10(weight / error) : Infinity);
const db = (value) => fixed(value, 2);
const formatStyles = ["nvfp4", "fp8", "mxfp4", "mxfp8", "nvfp4_bs32", "fp8_row", "fp8_block128", "int4"];
const formatClass = (f) => (f.quantized ? styleOf(formatStyles.indexOf(f.format)) : "plain");
const portion = (n, all) => `${count(n)} (${share(n, all)})`;

function errorCards(t, { sqnr, worst }) {
  if (!sqnr) return card("SQNR of all weights", t.quantized_tensors ? "∞" : "–", t.quantized_tensors ? "no weight changed" : "nothing was quantized");
  const { layer, expert, role } = worst[0], place = expert >= 0 ? `${role} ${expert}` : role;
  return [card("SQNR of all weights", `${db(t.sqnr_db)} dB`, `mean of tensors ${db(sqnr.mean)} dB, median ${db(sqnr.median)} dB`),
    card("Lowest SQNR of a tensor", `${db(sqnr.low)} dB`, layer >= 0 ? `layer ${layer}, ${place}` : place)];
}

function timeCards(timing) {
  const whole = timing.whole_seconds > 0, parts = [`${timing.threads} threads, ${timing.kernels} kernels`];
  if (whole) parts[0] = `quantizing ${duration(timing.seconds)}; ${parts[0]}`;
  if (timing.calibration_seconds > 0) parts.unshift(`calibration ${duration(timing.calibration_seconds)}`);
  return [card(whole ? "Time of the whole job" : "Time", duration(whole ? timing.whole_seconds : timing.seconds), parts.join(", ")),
    card("Throughput", `${places(timing.gigabytes_per_second, 2)} GB/s`, "of source weights"),
    card("Peak memory", bytes(timing.peak_anonymous_bytes), `${bytes(timing.peak_resident_bytes)} with the page cache`)];
}

function compositionOf(t, formats) {
  if (!formats.length) return section("What is in the export", note("No tensors."));
  const line = (f, q, sqnr) => [count(f.tensors), large(f.elements), bytes(f.source_bytes), bytes(f.stored_bytes), share(f.stored_bytes, t.stored_bytes),
    places(f.elements ? (8 * f.stored_bytes) / f.elements : 0, 3), sqnr, q && share(f.zeros, q), q && count(f.saturated), q && count(f.sign_flips)].map((c) => c || "");
  return section("What is in the export",
    part("composition", formats.map((f) => element("div", { class: formatClass(f), style: `flex:${f.stored_bytes} 1 0`, title: `${f.label}: ${bytes(f.stored_bytes)}, ${share(f.stored_bytes, t.stored_bytes)} of the export` },
      span("", f.stored_bytes >= 0.12 * t.stored_bytes && `${f.label} ${share(f.stored_bytes, t.stored_bytes)}`)))),
    table("", ["<format", "tensors", "weights", "before", "after", "share", "bits per weight", "SQNR, dB", "became zero", "saturated", "sign flips"], [
      ...formats.map((f) => row([left(span("swatch " + formatClass(f)), f.label), ...line(f, f.quantized && f.elements, f.quantized && db(decibels(f)))])),
      row([left("total"), ...line(t, "", t.quantized_tensors ? db(t.sqnr_db ?? Infinity) : "").slice(0, 7).map((c, i) => (i === 4 ? "100%" : c)), share(t.zeros, t.quantized_elements), count(t.saturated), count(t.sign_flips)], "total")]));
}

// A layer is [number, tensors, lossless, lowest, median, highest]; without the last three if all tensors are lossless.
function roleSeries(role, style) {
  const points = [];
  role.layers.forEach(([layer, tensors, , low, mid, high], i) => {
    // Layers without this role (in hybrid models) interrupt the line.
    if (i > 0 && layer !== role.layers[i - 1][0] + 1) points.push({ x: layer - 0.5, mid: NaN });
    points.push({ x: layer, low, mid, high, tip: tensors === 1 ? `${role.role}, layer ${layer}: ${db(low)} dB`
      : `${role.role}, layer ${layer}, ${tensors} tensors: median ${db(mid)} dB, from ${db(low)} to ${db(high)} dB` });
  });
  return { name: role.role, style, points };
}

const hasBands = (role) => role.tensors > role.layers.length;

function errorByLayer({ roles, sqnr_note: remark }) {
  if (!roles.length) return null;
  const layered = roles.filter((r) => r.layers.length), formats = [...new Set(layered.map((r) => r.format))];
  const rows = roles.map((r) => row([left(r.role), left(r.format), number(count(r.tensors), r.tensors), number(large(r.elements), r.elements), number(db(decibels(r)), decibels(r)),
    ...(r.sqnr ? [r.sqnr.low, r.sqnr.median, r.sqnr.high].map((d) => number(db(d), d)) : ["–", "–", "–"])]));
  return longSection("Error by layer",
    note("SQNR: energy of the weights over energy of the error. Higher is better; 6 dB less is twice the error.",
      layered.some(hasBands) && " Where a layer has several tensors of a role (experts), the line is their median and the band runs from the lowest to the highest.",
      remark && [" ", element("strong", {}, remark), "."]),
    formats.map((format) => formatChart(layered.filter((r) => r.format === format), formats.length === 1)),
    element("details", {}, element("summary", {}, "As a table"), table("sortable", ["<role", "<format", "tensors", "weights", "SQNR of all, dB", "lowest", "median", "highest"], rows)));
}

// One chart with all roles of a format if they can be distinguished, and one small chart each. Formats have separate
// charts because their SQNR differs by more than that of layers.
function formatChart(roles, alone) {
  const layers = roles.flatMap((r) => r.layers), measured = layers.filter((l) => known(l[3]));
  if (!measured.length) return null;
  const low = Math.min(...measured.map((l) => l[3])), high = Math.max(...measured.map((l) => l[5]));
  // The axis covers at least 2 dB, so that small differences do not look large.
  const pad = Math.max((high - low) * 0.06, (2 - (high - low)) / 2);
  const common = { title: "SQNR by layer", xLabel: "layer", yLabel: "SQNR, dB", series: roles.map(roleSeries), y: [low - pad, high + pad],
    x: [Math.min(...layers.map((l) => l[0])) - 0.6, Math.max(...layers.map((l) => l[0])) + 0.6], height: alone ? 360 : 270 };
  const one = roles.length === 1 || (roles.length <= STYLES && !roles.some(hasBands));
  return [element("h3", {}, roles[0].format), one && [legend(common.series), chart(lineChart(common))], roles.length > 1 && rolePanels(roles, common, roles.some(hasBands))];
}

function rolePanels(roles, common, big) {
  const most = 24, size = big ? { width: 350, height: 210 } : { width: 264, height: 138, xLabel: "", yLabel: "" };
  return [part(big ? "panels large" : "panels", roles.slice(0, most).map((r, i) => element("figure", {},
    element("figcaption", {}, element("b", {}, r.role), span("", r.sqnr ? `${fixed(r.sqnr.low, 1)}–${fixed(r.sqnr.high, 1)} dB` : "lossless")),
    lineChart({ ...common, ...size, title: `SQNR of ${r.role} by layer`, series: [common.series[i]], context: common.series })))),
  roles.length > most && note(`${roles.length - most} more roles are in the table.`)];
}

function outputsOf(outputs) {
  const used = outputs.filter((e) => e.energy > 0), n = used.length;
  if (!n) return null;
  // The energy of each layer is normalized to one, so that a large layer does not hide the others.
  const pooled = (key) => db(decibels({ squared_weight: n, squared_error: sum(used.map((e) => e[key] / e.energy)) }));
  const of = (e, key) => decibels({ squared_weight: e.energy, squared_error: e[key] });
  return longSection("What calibration did to the layers' outputs",
    note(`Energy of a layer's outputs over the energy of their error on the calibration text, as its solver weighs it: ${pooled("error_before")} dB with the nearest codes, ${pooled("error_after")} dB as solved, over ${count(n)} layers.`),
    table("sortable filterable", ["<layer", "nearest codes, dB", "as solved, dB", "gain, dB"], outputs.map((e) => {
      const before = of(e, "error_before"), after = of(e, "error_after");
      return row([nameCell(e.module), number(db(before), before), number(db(after), after), number(db(after - before), after - before)]);
    })));
}

// The values of codes: a sign, `bits` bits of exponent and then the mantissa.
function decode(code, bits, mantissa, bias) {
  const sign = code >> (bits + mantissa) ? -1 : 1, exponent = (code >> mantissa) & ((1 << bits) - 1), rest = (code & ((1 << mantissa) - 1)) / (1 << mantissa);
  return sign * (exponent ? (1 + rest) * 2 ** (exponent - bias) : rest * 2 ** (1 - bias));
}
const e2m1 = (code) => decode(code, 2, 1, 1), e4m3 = (code) => decode(code, 4, 3, 7);
const powerOfTwo = (e) => (e < 0 ? `1/${2 ** -e}` : String(2 ** e));
const signed = (value) => (Object.is(value, -0) ? "−0" : significant(value).replace("-", "−"));
const superscript = (n) => String(n).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));

function distributionOf(formats) {
  const shown = formats.filter((f) => f.quantized).map((f) => {
    const scales = f.scale_type === "e8m0" ? e8m0Scales(f) : f.scale_type === "e4m3" ? e4m3Scales(f) : null;
    const halves = (...charts) => part("pair", charts.filter(Boolean).map((svg) => part("chart half", svg)));
    return [element("h3", {}, f.label), f.code_bits === 8 ? [chart(fp8Codes(f)), scales && halves(scales)] : halves(fp4Codes(f), scales)];
  });
  return shown.length > 0 && longSection("Codes and block scales",
    note("How much of each format's range is in use. −0 counts small negative weights that became zero."), shown);
}

const styleNumber = (f) => formatStyles.indexOf(f.format);

function fp4Codes(f) {
  const all = Math.max(1, sum(f.codes));
  // By value: -6 ... -0, 0 ... 6.
  const codes = [...Array(16).keys()].map((i) => (i < 8 ? 15 - i : i - 8));
  return barChart({ title: "How often each E2M1 code occurs", xLabel: "value of the code", yLabel: "share of weights", width: 520, x: [0, 16], style: styleNumber(f),
    bars: codes.map((code, i) => ({ from: i, to: i + 1, value: f.codes[code] / all, tip: `${signed(e2m1(code))}: ${portion(f.codes[code], all)}` })),
    xTicks: codes.map((code, i) => [i + 0.5, signed(e2m1(code))]) });
}

function fp8Codes(f) {
  const all = sum(f.codes), xTicks = [];
  // By value: -448 ... -0, 0 ... 448.
  const cells = [...Array(254).keys()].map((i) => {
    const code = i < 127 ? 0xfe - i : i - 127, value = e4m3(code), size = Math.abs(value);
    if ([448, 64, 8, 1, 0.125, 0.015625].includes(size)) xTicks.push([i + 0.5, (code > 127 ? "−" : "") + (size < 1 ? powerOfTwo(Math.log2(size)) : size)]);
    if (code === 0) xTicks.push([i, "0"]);
    return { value: f.codes[code], tip: `${signed(value)}: ${portion(f.codes[code], all)}` };
  });
  return heatStrip({ title: "How often each E4M3 code occurs", xLabel: "value of the code (stronger colour: more weights, logarithmic)", cells, xTicks, style: styleNumber(f) });
}

// The range of scale bytes in [from, to) that occur.
const used = (f, from, to) => {
  const bytes = f.scales.map((n, byte) => [n, byte]).slice(from, to).filter(([n]) => n > 0).map(([, byte]) => byte);
  return bytes.length ? [bytes[0], bytes[bytes.length - 1]] : null;
};
const bytesOf = ([first, last]) => [...Array(last - first + 1).keys()].map((i) => first + i);

function e4m3Scales(f) {
  const range = used(f, 1, 127), all = Math.max(1, sum(f.scales));
  if (!range) return null;
  const low = Math.floor(Math.log2(e4m3(range[0]))), high = Math.max(Math.floor(Math.log2(e4m3(range[1]))) + 1, low + 2), xTicks = [];
  for (let e = low; e <= high; e += high - low > 10 ? 2 : 1) xTicks.push([e, powerOfTwo(e)]);
  return barChart({ title: "Distribution of block scales", xLabel: "stored block scale, E4M3 (logarithmic)", yLabel: "share of blocks", width: 520, x: [low, high], xTicks, style: styleNumber(f),
    bars: bytesOf(range).map((b) => ({ from: Math.log2(e4m3(b)), to: Math.log2(b === 126 ? 480 : e4m3(b + 1)), value: f.scales[b] / all, tip: `${significant(e4m3(b))}: ${portion(f.scales[b], all)}` })) });
}

function e8m0Scales(f) {
  const range = used(f, 0, 255), all = Math.max(1, sum(f.scales));
  if (!range) return null;
  const [first, last] = range, margin = Math.max(0.5, (11 - (last - first)) / 2);  // with few exponents, bars stay narrow
  const step = Math.max(1, Math.trunc((last - first) / 10)), name = (b) => "2" + superscript(b - 127);
  return barChart({ title: "Distribution of block scales", xLabel: "block scale, E8M0", yLabel: "share of blocks", width: 520, x: [first - margin, last + 1 + margin], style: styleNumber(f),
    xTicks: bytesOf(range).filter((b) => (b - first) % step === 0).map((b) => [b + 0.5, name(b)]),
    bars: bytesOf(range).map((b) => ({ from: b, to: b + 1, value: f.scales[b] / all, tip: `${name(b)}: ${portion(f.scales[b], all)}` })) });
}

function raisedOf({ four_over_six: four, layers }) {
  if (!layers.length) return null;
  const raised = sum(layers.map((l) => l.raised)), blocks = sum(layers.map((l) => l.blocks)), inside = layers.filter((l) => l.layer >= 0);
  const first = inside[0]?.layer, last = inside[inside.length - 1]?.layer;
  return section(four ? "Four instead of six" : "Raised block scales",
    note(`${count(raised)} of ${count(blocks)} blocks (${share(raised, blocks)}) `, four
      ? "had a smaller error with their largest weight at 4 than at 6: the search made their scale 1.5 times as large."
      : "had a smaller error with a scale above the one computed from their largest weight."),
    inside.length > 0 && chart(barChart({ title: "Share of raised blocks by layer", xLabel: "layer", yLabel: "share of blocks", height: 210, x: [first - 0.6, last + 0.6], xTicks: ticks(first, last + 0.5, 14, 1),
      bars: inside.map((l) => ({ from: l.layer - 0.42, to: l.layer + 0.42, value: l.raised / l.blocks, tip: `layer ${l.layer}: ${count(l.raised)} of ${count(l.blocks)} blocks (${share(l.raised, l.blocks)})` })) })));
}

const worstOf = (worst) => worst.length > 0 && longSection("Tensors with the largest errors",
  note(`The ${worst.length} of lowest SQNR. Became zero: weights that were not zero and now are. Saturated: weights above the largest value that their scale can represent.`),
  table("sortable", ["<tensor", "<format", "SQNR, dB", "largest error", "largest weight", "became zero", "saturated", "sign flips"], worst.map((t) => row([
    nameCell(t.name), left(t.format), number(db(decibels(t)), decibels(t)), number(significant(t.max_error), t.max_error), number(significant(t.amax), t.amax),
    number(share(t.zeros, t.elements), t.zeros / Math.max(1, t.elements)), number(count(t.saturated), t.saturated), number(count(t.sign_flips), t.sign_flips)]))));

const carriedOf = (reasons) => reasons.length > 0 && longSection("What stayed unquantized, and why",
  table("", ["<reason, and the tensors it decided (* is any number)", "<type", "tensors", "weights", "size"], reasons.flatMap((r) => [
    row([left(element("b", {}, r.reason)), "", count(r.tensors), large(r.elements), bytes(r.bytes)], "group"),
    ...r.patterns.map((p) => row([nameCell(p.pattern), left(p.dtype), count(p.tensors), large(p.elements), bytes(p.bytes)], "in"))])));

// A row is one tensor, or the experts of one layer and role with the same plan.
function planOf(t, plan) {
  if (!plan.length) return null;
  const shape = (dims) => (dims.length ? dims.join(" × ") : "scalar"), grouped = plan.length < t.tensors;
  const sqnrCell = ({ sqnr, tensors }) => {
    if (!sqnr) return "";
    if (!sqnr.length) return number("∞", Infinity);
    return number(tensors === 1 ? db(sqnr[0]) : sqnr.map(db).join(" – "), sqnr[0]);
  };
  const rows = plan.map((r) => {
    const bits = r.elements ? (8 * r.stored_bytes) / r.elements : 0;
    return row([nameCell(r.name, r.tensors > 1 && [" ", span("times", `×${r.tensors}`)]), left(`${r.dtype} ${shape(r.shape)}`), cell(r.method || "as it was", "method"), left(r.activation),
      number(places(bits, 2), bits), number(bytes(r.stored_bytes), r.stored_bytes), sqnrCell(r), cell(r.reason, "wrap")]);
  });
  return element("section", { class: "long" }, element("details", {}, element("summary", {}, element("h2", {}, "The whole plan"), " ",
    span("soft", `${count(t.tensors)} tensors` + (grouped ? ` in ${count(plan.length)} rows` : ""))),
  grouped && note("Experts of one layer that were planned alike share a row; the JSON report has every tensor."),
  table("sortable filterable plan", ["<tensor", "<source", "<method", "<inputs", "bits", "size", "SQNR, dB", "<decided by"], rows)));
}

function runOf(report) {
  const t = report.timing, pairs = (object) => Object.entries(object).map(([key, value]) => [key, words(value)]), scales = Object.entries(report.kv_scales);
  return section("This run", entries([
    ["source", report.source], ["recipe", report.recipe], t.command && ["command", element("code", {}, t.command)], ["verified", t.verified || "no"], ["KV cache", report.kv],
    ...pairs(report.settings), ...pairs(report.versions), t.whole_seconds > 0 && ["time of the whole job", duration(t.whole_seconds)],
    t.calibration_seconds > 0 && ["calibration", duration(t.calibration_seconds)], ["time of quantizing", `${duration(t.seconds)} on ${t.threads} threads, kernels ${t.kernels}`],
    ["read, written", `${bytes(t.bytes_read)}, ${bytes(t.bytes_written)}`],
    t.resumed_tensors > 0 && ["resumed", `${count(t.resumed_tensors)} tensors were already finished and intact`], ["finished", t.finished_at]]),
  scales.length > 0 && element("details", {}, element("summary", {}, `${scales.length} scales of the KV cache`),
    table("sortable", ["<name", "scale"], scales.map(([key, value]) => row([nameCell(key), number(significant(value), value)])))));
}
