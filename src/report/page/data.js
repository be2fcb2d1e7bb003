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

// "accumulate+blocks" → "accumulate + blocks"
const title = (row) => row.name.replaceAll("+", " + ");

// How a row is drawn among others: what it is made of says which mark it gets.
function kindOf(row) {
  if (row.name === "baseline") return "baseline";
  if (row.name === "defaults" || row.name === "all") return row.name;
  return row.techniques.length > 1 ? "pair" : "single";
}
