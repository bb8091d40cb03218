// `nibble search`: data is the report that is written next to the recipe.
views.search = (report) => {
  const meaning = {
    fisher: "second-order estimate of the mean KL divergence, nats", modelopt: "sum of squared products of gradient and change",
    kl: "mean KL divergence of each group alone, nats, added up", given: "as given",
  }[report.method];
  const groups = Object.entries(report.groups), bits = Object.fromEntries(report.formats.map((f) => [f.name, f.bits]));
  const all = sum(groups.map(([, g]) => g.elements));
  // The share of weights per format: "nvfp4 71.0%, fp8 29.0%".
  const shares = (point) => report.formats.map((f) => [f.name, sum(groups.filter(([name]) => point.choice[name] === f.name).map(([, g]) => g.elements))])
    .filter(([, n]) => n > 0).map(([name, n]) => `${name} ${share(n, all)}`).join(", ");
  const seriesOf = (name, style, unit, value) => ({ name, style, points: report.sweep.filter((p) => value(p) > 0).map((p) => ({
    x: p.bits, mid: Math.log10(value(p)), tip: `${fixed(p.bits, 3)} bits: ${unit} ${significant(value(p))}` })) });
  const series = [seriesOf("predicted score", 0, "score", (p) => p.score), seriesOf("measured KL", 1, "KL", (p) => p.kl)].filter((s) => s.points.length);
  let curve = null;
  if (series.length) {
    const points = series.flatMap((s) => s.points), xs = points.map((p) => p.x), ys = points.map((p) => p.mid);
    const x = [Math.min(...xs), Math.max(...xs)], y = [Math.floor(Math.min(...ys)), Math.ceil(Math.max(...ys))];
    curve = [legend(series), chart(lineChart({ title: "Predicted and measured loss against effective bits", series,
      xLabel: "effective bits per weight", yLabel: "log10 of score and KL", x: x[0] < x[1] ? x : [x[0] - 0.5, x[1] + 0.5], y }))];
  }
  const sweep = report.sweep.map((p) => row([number(fixed(p.target, 3), p.target), number(fixed(p.bits, 4), p.bits), number(significant(p.score), p.score),
    known(p.kl) ? number(fixed(p.kl, 5), p.kl) : "–", cell(shares(p), "l wrap")]));
  const rows = groups.map(([name, g]) => {
    const scores = Object.entries(g.scores), least = scores.reduce((a, b) => (bits[b[0]] < bits[a[0]] ? b : a));
    return row([nameCell(name), number(large(g.elements), g.elements), left(report.chosen.choice[name]), number(significant(least[1], 3), least[1]),
      cell(g.fixed || scores.map(([format, score]) => `${format} ${significant(score, 3)}`).join(", "), "l wrap")]);
  });
  return [
    header("search", `${fixed(report.chosen.bits, 3)} effective bits`, [report.source, `target ${fixed(report.chosen.target, 3)}`, shares(report.chosen)]),
    section("Loss against bits per weight",
      note(`Score: ${meaning}; over ${count(report.tokens)} tokens of ${report.text}.`, report.measured_on && ` KL: measured on ${count(report.measured_tokens)} tokens of ${report.measured_on}.`),
      curve, table("sortable", ["target", "bits", "score", "KL", "<weights in"], sweep)),
    section("Groups", table("sortable filterable", ["<group", "weights", "<chosen", "score at its fewest bits", "<weighed"], rows)),
    section("How it was made", entries([["command", report.command], ["time", duration(report.seconds)]])),
  ];
};
