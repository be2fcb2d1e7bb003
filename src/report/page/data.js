// The data the page shows, as the program wrote it:
//
//   {kind: "ablation" | "profile" | "frontier",
//    study: {facts, settings, rows: [{name, techniques, planned_peak_bytes, step_ms, …}],
//            curves: [{row, points: [{planned_peak_bytes, step_ms, …}]}]},
//    timelines: {row's name: what report::timeline_json gives}}
const data = JSON.parse(document.getElementById("data").textContent);
const study = data.study;
const rows = study.rows.filter((row) => row.planned_peak_bytes !== undefined);
const failed = study.rows.filter((row) => row.error && row.planned_peak_bytes === undefined);
const baseline = rows.find((row) => row.name === "baseline");

// "accumulate+blocks" → "accumulate + blocks"; plans of a frontier have their budget in the page's unit.
const title = (row) => (data.kind === "frontier" && row.budget_bytes
  ? `budget ${bytesLike(Math.max(...rows.map((each) => each.budget_bytes ?? 0)))(row.budget_bytes)}` : row.name.replaceAll("+", " + "));

// Steps whose time counts in a row: an ablation leaves out the first two of each run.
function timedSteps(row) {
  const runs = row.step_ms?.runs.length ?? 0;
  return data.kind === "ablation" ? runs * Math.max(1, (study.settings.steps ?? 1) - 2) : runs;
}
const enoughSteps = 6; // below that, times are shown but no claim is made of them
const roughTimes = rows.some((row) => row.step_ms && timedSteps(row) < enoughSteps);

// Equal losses mean something from the third step on: the first loss has seen no update, the second one, the third also
// what the optimizer carried over.
function sameLosses(row) {
  const losses = row.losses ?? [];
  return row.same_losses_as_baseline && row.name !== "baseline" && losses.length >= 3 && losses.some((loss) => loss !== losses[0]);
}

// How a row is drawn among others: what it is made of says which mark it gets.
function kindOf(row) {
  if (row.name === "baseline") return "baseline";
  if (row.name === "defaults" || row.name === "all") return row.name;
  return row.techniques.length > 1 ? "pair" : "single";
}
