// A run of `nibble train`, or several that are compared. data.runs: {name, group, steps, tokens, seconds, skipped, loss,
// validation, warnings, curves, quality, quality_step}; data.last_steps: the steps that "loss" is the mean of.
views.training = ({ runs, last_steps }) => {
  const styled = runs.map((run, style) => ({ ...run, style }));
  const rows = styled.map((run) => {
    const rate = run.seconds > 0 ? run.tokens / run.seconds : 0;
    return row([left(icon(run.style), run.name), number(count(run.steps), run.steps), number(count(run.tokens), run.tokens), number(fixed(run.loss, 4), run.loss),
      known(run.validation) ? number(fixed(run.validation, 4), run.validation) : "–", number(count(rate), rate), number(duration(run.seconds), run.seconds), number(count(run.skipped), run.skipped)]);
  });
  const charted = ([title, unit, key]) => {
    const svg = stepChart(title, unit, styled.map((run) => ({ name: run.name, style: run.style, points: run.curves[key] || [] })));
    return svg && section(title, chart(svg));
  };
  const warnings = runs.flatMap((run) => run.warnings.map((text) => `${run.name}: ${text}`));
  return [
    header("training", runs.length === 1 ? runs[0].name : `${runs.length} runs`), legend(styled),
    section("Runs", note(`Loss: the mean of the last ${last_steps} steps.`),
      table("sortable", ["<run", "steps", "tokens", "loss", "validation loss", "tokens/s", "time in steps", "skipped"], rows)),
    gapsOf(runs), warnings.length ? section("Warnings", list(warnings)) : null,
    [["Loss", "nats per token", "loss"], ["Validation loss", "nats per token", "validation"], ["Gradient norm", "before clipping", "gradient_norm"],
      ["Learning rate", "", "learning_rate"], ["Throughput", "tokens/s", "tokens_per_second"]].map(charted),
    runs.length === 1 ? qualityOf(runs[0]) : null,
  ];
};

// Compares groups of runs, which differ only in their seed, with the first group: by the validation loss if all runs
// have one, else by the loss of the last steps.
function gapsOf(runs) {
  const validated = runs.every((run) => known(run.validation)), groups = new Map();
  for (const run of runs) groups.set(run.group, [...(groups.get(run.group) || []), validated ? run.validation : run.loss ?? NaN]);
  if (groups.size < 2) return null;
  // The standard deviation over seeds; 0 for a single seed.
  const deviation = (losses) => (losses.length > 1 ? Math.sqrt(sum(losses.map((v) => (v - mean(losses)) ** 2)) / (losses.length - 1)) : 0);
  const [name, base] = groups.entries().next().value;
  const rows = [...groups].map(([group, losses]) => {
    const gap = mean(losses) - mean(base), spread = (value) => (losses.length > 1 ? ` ± ${fixed(value, 4)}` : "");
    return row([left(group), number(count(losses.length), losses.length), number(fixed(mean(losses), 4) + spread(deviation(losses)), mean(losses)),
      group === name ? "–" : number((gap < 0 ? "" : "+") + fixed(gap, 4) + spread(Math.hypot(deviation(losses), deviation(base))), gap)]);
  });
  return section("Loss gaps", note(`${validated ? "Validation loss" : "Loss of the last steps"} in nats, against ${name}; ± the standard deviation of seeds.`),
    table("sortable", ["<runs", "seeds", "loss", "gap"], rows));
}

function qualityOf(run) {
  if (!run.quality.length) return null;
  const operands = ["inputs", "weights", "gradients"], parts = ["error", "gain", "zeroed", "saturated"];
  const rows = run.quality.map((unit) => row([number(unit.layer < 0 ? "–" : String(unit.layer), unit.layer), nameCell(unit.unit), ...operands.flatMap((operand) => {
    const q = unit[operand];
    if (!q) return parts.map(() => "–");
    return [number(fixed(100 * Math.sqrt(q.error), 2) + "%", q.error), number(fixed(q.gain, 4), q.gain),
      number(significant(100 * q.zeroed, 3) + "%", q.zeroed), number(significant(100 * q.saturated, 3) + "%", q.saturated)];
  })]));
  return section("Quantization error", note(`Step ${run.quality_step}, first row of the batch. Error: |q - x| / |x|; gain: <x, q> / <x, x>; zeroed: blocks whose scale is 0; saturated: elements beyond the largest code.`),
    table("sortable", ["layer", "<unit", ...operands.flatMap((operand) => parts.map((what) => `${operand} ${what}`))], rows));
}
