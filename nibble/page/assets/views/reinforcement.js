// A run of `nibble rl`. data: name; about (what the log's first line states); steps; fields: for each number of the
// log's lines {curve, sum, first, last} (means over `headline_steps`); newest and validation: lines of the log;
// warnings; failure; samples: samples.json, or null.
views.reinforcement = (run) => {
  const field = (key) => run.fields[key] || { curve: [], sum: 0 };
  const total = (key) => field(key).sum, show = (value, decimals = 3) => short(value ?? NaN, decimals);
  const half = (title, unit, lines, limits) => {
    const curves = [];
    // Leaves out curves that equal another one, and those marked "never 0" that are always 0.
    for (const [key, name, zeros] of lines) {
      const points = field(key).curve, same = (other) => JSON.stringify(other.points.map((p) => p.slice(1))) === JSON.stringify(points.map((p) => p.slice(1)));
      if (points.length && !(zeros === "never 0" && points.every((p) => p.slice(p.length === 2 ? 1 : 3).every((v) => v === 0))) && !curves.some(same))
        curves.push({ name, style: curves.length, points });
    }
    const svg = stepChart(title, unit, curves, { width: 440, height: 250, ...limits });
    return svg && element("figure", {}, element("h3", {}, title), lines.length > 1 && legend(curves), svg);
  };
  const pair = (title, figures, ...before) =>
    before.length || figures.some(Boolean) ? section(title, ...before, figures.some(Boolean) && part("pair", figures)) : null;
  const n = Math.min(run.headline_steps, run.steps), compared = total("compared_tokens"), old = total("off_policy_tokens"), v = run.validation;
  const failures = total("failures");
  const warnings = [...run.warnings, failures > 0 && `${count(failures)} answers could not be judged; the last reason: ${run.failure}`].filter(Boolean);

  return [
    header("reinforcement learning", run.name, [run.about.model, run.about.precision && words(run.about.precision), run.about.parameters > 0 && large(run.about.parameters) + " parameters",
      `${show(run.newest.prompts, 0)} prompts with ${show(run.newest.answers, 0)} answers a step`]),
    part("cards",
      card("Reward", show(field("reward").last), `mean of the last ${n} of ${count(run.steps)} steps; the first ${n}: ${show(field("reward").first)}`),
      v && card("Validation reward", show(v.validation_reward), `after step ${show(v.step, 0)}; ${show(v.validation_prompts, 0)} prompts` +
        (v.validation_answers > 1 ? `; avg@${v.validation_answers} ${show(v.avg_at_k)}, pass@${v.validation_answers} ${show(v.pass_at_k)}, cons@${v.validation_answers} ${show(v.cons_at_k)}` : "")),
      compared > 0 ? card("Tokens that differ", count(total("mismatch_tokens")),
        `of ${count(compared)} compared between engine and trainer, in any bit` + (old > 0 ? `; ${count(old)} of older weights` : ""))
        : card("Tokens that differ", "?", "no token was compared"),
      card("A step", duration(field("seconds").last), `${show(field("mean_gen_tokens_per_sample").last, 1)} tokens per answer; ` +
        `${count(field("generated_tokens").last / Math.max(1e-9, field("generate_seconds").last))} tokens/s generated`)),
    warnings.length ? section("Warnings", list(warnings)) : null,
    pair("Reward", [
      half("Reward", "mean per step", [["reward", "reward"], ["shaped_reward", "shaped reward"], ["accuracy", "share with reward 1"]]),
      half("Validation", "mean, share", [["validation_reward", "reward"], ["avg_at_k", "avg@k"], ["pass_at_k", "pass@k"], ["cons_at_k", "cons@k"]])]),
    run.samples && samplesOf(run.samples),
    pair("Answers", [
      half("Tokens per answer", "tokens", [["mean_gen_tokens_per_sample", "mean"], ["longest_answer", "longest"]], { low: 0 }),
      half("Share of answers", "share", [["cut_share", "cut off"], ["max_turns_reached_rate", "at the limit of turns", "never 0"]], { low: 0, high: 1 }),
      half("Entropy", "nats per token", [["approx_entropy", "entropy"]]),
      half("Prompts whose answers have equal rewards", "prompts", [["equal_groups", "prompts"]], { low: 0 })]),
    pair("Engine against trainer", [
      half("Tokens that differ in any bit", "tokens", [["mismatch_tokens", "tokens"]], { low: 0 }),
      half("token_mult_prob_error", "1: equal", [["token_mult_prob_error", "token_mult_prob_error"]]),
      half("Probability ratio of the updates", "mean, smallest, largest", [["probs_ratio", "mean"], ["probs_ratio_min", "least"], ["probs_ratio_max", "largest"]]),
      half("Tokens of older weights", "tokens", [["off_policy_tokens", "tokens", "never 0"]], { low: 0 })]),
    pair("Time", [
      half("Seconds per step", "s", [["generate_seconds", "rollout"], ["reward_seconds", "reward"], ["train_seconds", "update"]], { low: 0 }),
      half("Generated", "tokens per step", [["generated_tokens", "tokens"]], { low: 0 }),
      half("Seconds between update and rollout", "s", [["handover_seconds", "weights to rollouts"], ["recalibrate_seconds", "scales of the cache"]], { low: 0 })], ...phasesOf(total)),
    pair("Update", [
      half("Loss", "", [["loss", "loss"], ["kl_penalty", "KL term over beta", "never 0"]]),
      half("Gradient norm", "before clipping", [["gradient_norm", "gradient norm"]]),
      half("Learning rate", "", [["learning_rate", "learning rate"]])]),
  ];
};

function phasesOf(total) {
  const all = total("seconds"), phases = [["rollout", total("generate_seconds")], ["reward", total("reward_seconds")], ["update", total("train_seconds")]];
  const rest = all - sum(phases.map(([, seconds]) => seconds));
  if (rest > 0) phases.push(["validation and the rest", rest]);
  const percent = (seconds) => (all > 0 ? (100 * seconds) / all : 0);
  return [
    part("composition", phases.map(([name, seconds], i) => element("div", { class: "s" + i, style: `flex-grow: ${places(percent(seconds), 4)}`, title: name }))),
    part("legend", phases.map(([name, seconds], i) => [span("s" + i, span("swatch")), span("", `${name} ${duration(seconds)}, ${places(percent(seconds), 0)}%`)])),
  ];
}

function samplesOf({ step, samples }) {
  const example = (css, text) => span("tokens", span(css, text));
  return section(`Answers of step ${short(step ?? NaN, 0)}`, note(
    "Answers are sorted by reward, the best first. A line under a token means a low probability (below 90%, 50%, 10%). If the step had several updates, a background means that the token became ",
    example("up2", "more likely"), " or ", example("dn2", "less likely"), " by the last one. ", example("differs", "A frame"), " means that the probabilities of trainer and engine differ in a bit."),
  samples.map((s) => {
    const judged = known(s.reward);
    return element("article", { class: "sample" },
      part("meta", judged ? span("badge " + (s.reward > 0.5 ? "good" : "warn"), `reward ${short(s.reward, 3)}`) : span("badge warn", "not judged"),
        judged && s.shaped_reward !== s.reward && span("", `shaped ${short(s.shaped_reward ?? NaN, 3)}`), judged && span("", `advantage ${short(s.advantage ?? NaN)}`),
        s.cut && span("", "cut off"), s.failure && span("", s.failure)),
      element("p", { class: "asked" }, s.question), part("tokens", s.tokens.map(tokenOf)), element("p", { class: "soft asked" }, `Expected answer: ${s.expected ?? ""}`));
  }));
}

function tokenOf(token) {
  const text = (token.text ?? "").replaceAll("\n", "↵\n");
  if (!token.written) return span("read", text);
  const { generated, previous, current } = token;
  if (!known(generated)) return text;
  const change = known(current) ? current - generated : 0, size = Math.abs(change);
  // Shades of the distance of the ratio from 1, with limits at 1 %, 10 % and a factor of 2; of the probability, with
  // limits at 0.9, 0.5 and 0.1.
  const shade = size < 0.01 ? 0 : size < 0.1 ? 1 : size < 0.69 ? 2 : 3, rare = generated >= -0.105 ? 0 : generated > -0.693 ? 1 : generated > -2.303 ? 2 : 3;
  const differs = token.same === false && !token.stale;
  const css = [rare && "u" + rare, shade && (change > 0 ? "up" : "dn") + shade, differs && "differs", token.stale && "stale"].filter(Boolean).join(" ") || "t";
  return element("span", { class: css, title: `probability ${significant(Math.exp(generated))}, ratio ${significant(Math.exp(change))}` +
    (differs ? `, by the trainer ${significant(Math.exp(previous))}` : "") + (token.stale ? ", of older weights" : "") }, text);
}
