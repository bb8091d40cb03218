// `nibble eval`: data.report is eval.json; data.kinds[task] has the kind of each metric by name: "perplexity",
// "share" or "plain"; data.reference: the index of the reference, or -1.
views.evaluation = ({ report, kinds, reference }) => {
  const subjects = report.checkpoints.map((s, style) => ({ ...s, style, label: `${style + 1} ${s.name}` }));
  if (!subjects.length) return [element("p", {}, "No checkpoints.")];
  const isReference = (s) => s.style === reference, compared = reference >= 0;
  // All subjects ran the tasks of the first one.
  const tasks = subjects[0].tasks, metrics = tasks.flatMap((task, t) => Object.keys(task.metrics).map((name, m) => ({ t, m, name, task: task.task, kind: kinds[t][name] })));
  const of = (s, { t, name }) => s.tasks[t].metrics[name];
  const plain = (v) => (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6) ? scientific(v) : places(v, Math.abs(v) < 1 ? 5 : Math.abs(v) < 100 ? 3 : 2));
  const text = ({ kind }, { value, standard_error: error }) => {
    if (!known(value)) return "–";
    if (kind === "share") return places(100 * value, 2) + (error > 0 ? ` ± ${places(100 * error, 2)} %` : " %");
    return plain(value) + (error > 0 ? ` ± ${plain(error)}` : "");
  };
  const relative = (metric) => metric?.ratio ?? metric?.recovery;
  const relativeText = ({ kind }, value) =>
    kind === "perplexity" ? `${fixed(value, 4)} times the reference's` : `${fixed(100 * value, 1)} % of the reference`;
  const legendOf = (list) => legend(list.map((s) => ({ name: s.label, style: s.style })));
  const scalars = (object) => Object.entries(object).filter(([, v]) => v === null || typeof v !== "object").map(([k, v]) => `${k} ${words(v)}`);

  const checkpoints = subjects.map((s) => row([left(icon(s.style), s.label), number(bytes(s.stored_bytes), s.stored_bytes), number(fixed(s.bits_per_element, 2), s.bits_per_element),
    cell(Object.entries(s.settings).map(([k, v]) => `${k} ${words(v)}`).join(", "), "wrap"), number(duration(s.seconds), s.seconds), nameCell(s.path)]));
  const scores = metrics.map((metric) => row([left(metric.m ? "" : metric.task), left(metric.name), ...subjects.map((s) => {
    const mine = of(s, metric), ratio = relative(mine);
    // The reference is not compared with itself.
    return mine ? number([text(metric, mine), known(ratio) && [element("br"), span("soft", relativeText(metric, ratio))]], mine.value) : "";
  })]));
  const charts = metrics.map((metric) => {
    const bars = subjects.map((s) => [s, isReference(s) ? 1 : relative(of(s, metric))]).filter(([, v]) => known(v)), name = metric.task === metric.name ? metric.task : `${metric.task}, ${metric.name}`;
    if (!compared || bars.length < 2) return null;
    return element("figure", {}, element("figcaption", {}, name), barChart({ title: "Score divided by the reference's: " + name, width: 400, height: 200,
      x: [0, subjects.length], high: Math.max(1, ...bars.map(([, v]) => v)) * 1.06, xTicks: bars.map(([s]) => [s.style + 0.5, String(s.style + 1)]),
      bars: bars.map(([s, v]) => ({ from: s.style + 0.15, to: s.style + 0.85, value: v, style: s.style, tip: `${s.name}: ${relativeText(metric, v)}` })) }));
  }).filter(Boolean);
  // KL divergence by share of tokens shows the median and the tail.
  const quantiles = subjects.flatMap((s) => s.tasks.filter((t) => t.details.kl_quantiles).map((t) => ({ name: s.name, style: s.style, points: t.details.kl_quantiles.map(([q, kl]) => ({
    x: 100 * q, mid: kl > 0 ? Math.log10(kl) : NaN, tip: `${s.name}\n${significant(100 * q)} % of tokens below ${significant(kl, 3)} nats` })) })));
  const logs = quantiles.flatMap((s) => s.points.map((p) => p.mid)).filter(known);

  return [
    header("evaluation", `${subjects.length} checkpoint${subjects.length === 1 ? "" : "s"}`,
      [...tasks.map((t) => t.task), compared && span("badge good", `reference ${report.reference}`)]),
    section("Checkpoints", table("sortable", ["<name", "size", "bits per weight", "<settings", "time", "<path"], checkpoints)),
    section("Scores", note("± one standard error. ", compared && "Below a score: the score divided by the reference's. A perplexity is worse above 1, another score is worse below 100 %."),
      table("", ["<task", "<metric", ...subjects.map((s) => s.name)], scores)),
    charts.length ? section("Scores divided by the reference's", legendOf(subjects), part("panels large", charts)) : null,
    logs.length ? section("Divergence from the reference", legendOf(subjects.filter((s) => !isReference(s))), chart(lineChart({
      title: "Kullback-Leibler divergence from the reference, by share of tokens", xLabel: "per cent of tokens below", yLabel: "log10 of KL, nats",
      x: [0, 100], y: [Math.floor(Math.min(...logs)), Math.ceil(Math.max(...logs))], series: quantiles }))) : null,
    section("How it was measured", entries(tasks.map((t) => [t.task, [`${t.items} items`, ...scalars(t.details)].join(", ")]))),
  ];
};
