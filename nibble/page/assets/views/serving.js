// `nibble bench serve`: throughput against time per token. data.loads: the list that --json prints, with the target's
// name; data.input, data.output: tokens of a request.
views.serving = ({ loads, input, output }) => {
  const targets = [...new Set(loads.map((r) => r.name))];
  const nameOf = (r) => (r.request_rate ? significant(r.request_rate, 6) + "/s" : String(r.concurrency));
  const trio = (q) => [q.p50, q.p90, q.p99].map((ms) => places(ms, 1)).join(" / ");
  const rate = (r) => r.output_tokens_per_second;
  const series = targets.map((name, style) => ({ name, style, points: loads.filter((r) => r.name === name).map((r) => ({
    x: rate(r), low: r.tpot_ms.p50, mid: r.tpot_ms.p50, high: r.tpot_ms.p99,
    tip: `${name} at ${nameOf(r)}: ${fixed(rate(r), 1)} tokens/s, ${fixed(r.tpot_ms.p50, 2)} ms per token` })).sort((a, b) => a.x - b.x) }));
  const rows = loads.map((r) => row([nameCell(r.name), nameOf(r), number(fixed(rate(r), 1), rate(r)),
    number(fixed(r.requests_per_second, 2), r.requests_per_second), trio(r.ttft_ms), trio(r.tpot_ms), trio(r.itl_ms), trio(r.e2e_ms), number(String(r.failed), r.failed)]));
  return [
    header("bench serve", `${input} tokens in, ${output} out`),
    section("Throughput and time per token", legend(series), chart(lineChart({ title: "throughput and time per token", series,
      xLabel: "output tokens per second", yLabel: "ms per output token (median; band to p99)",
      x: [0, Math.max(...loads.map(rate)) * 1.05], y: [0, Math.max(...loads.map((r) => r.tpot_ms.p99)) * 1.05] }))),
    section("Loads", table("sortable", ["<target", "load", "tokens/s", "requests/s", "TTFT ms p50 / p90 / p99", "TPOT ms", "ITL ms", "end to end ms", "failed"], rows)),
  ];
};
