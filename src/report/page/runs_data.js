// The data of the page of training runs, as the program wrote it:
//
//   {kind: "runs", title, runs: [{name, over, command, date, version, planned_peak_bytes, measured_peak_bytes, budget_bytes,
//      peak_by_category, accuracy_by_class, by_frequency, figures: [[value, label]], curves: {tag: {each, steps, values, seconds}}}],
//    table: [[name, [text of each run]]], ranks: [{rank, …}]}
//
// A curve's values are means of `each` steps that end at `steps`; null where nothing was finite. `seconds` is the time of
// all steps until then.
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;
const rows = runs.map((run) => ({ planned_peak_bytes: Math.max(run.planned_peak_bytes ?? 0, run.budget_bytes ?? 0), measured_peak_bytes: run.measured_peak_bytes ?? 0 }));
const colourOf = (run) => `run-${run % 8}`;
