// Another study, laid over this one: a report.html or a results file that the reader opens. Its rows are named
// "other: NAME".
const otherPrefix = "other: ";
let other = null; // {title, rows, curves, timelines}

const otherTimeline = (name) => other?.timelines[name.slice(otherPrefix.length)];
const rowNamed = (name) => rows.find((row) => row.name === name) ??
  other?.rows.find((row) => row.name === name.slice(otherPrefix.length) && name.startsWith(otherPrefix));
const hasTimeline = (name) => Boolean(data.timelines[name] ?? otherTimeline(name));
const titleOf = (name) => {
  const own = rows.find((row) => row.name === name);
  return own ? title(own) : name.replaceAll("+", " + ");
};

// The data of a page or of a results file; an Error that says what is wrong with it.
function readStudy(text, fileName) {
  const page = /<script type="application\/json" id="data">([\s\S]*?)<\/script>/.exec(text);
  let parsed;
  try {
    parsed = JSON.parse(page ? page[1] : text);
  } catch {
    throw new Error(`${fileName} is neither a page nor a results file of ebb`);
  }
  const found = parsed?.study ?? parsed;
  if (!Array.isArray(found?.rows)) throw new Error(`${fileName} has no rows of a study`);
  const known = found.rows.filter((row) => row && typeof row.name === "string" && Number.isFinite(row.planned_peak_bytes));
  if (!known.length) throw new Error(`${fileName} has no row with a planned peak`);
  const settings = found.settings ?? {};
  return {
    title: [settings.workload, settings.batch ? `batch ${settings.batch}` : null, found.facts?.device, found.facts?.date].filter(Boolean).join(", ") || fileName,
    rows: known, curves: (found.curves ?? []).filter((curve) => Array.isArray(curve.points)), timelines: parsed?.timelines ?? {},
  };
}

function setOther(read) {
  for (const name of [...stacks.keys()]) if (name.startsWith(otherPrefix)) stacks.delete(name);
  other = read;
}

// The control: a button that opens a file, what is laid over, and a way back.
function otherControl(onChange) {
  const said = html("span", { class: "other-title", role: "status" });
  const input = html("input", { type: "file", id: "other-file", accept: ".html,.json", class: "visually-hidden", tabindex: -1, "aria-label": "Another study" });
  const choose = html("button", { type: "button", class: "quiet", id: "other-open", onclick: () => input.click() }, "Lay another study over this one…");
  const remove = html("button", { type: "button", class: "quiet", id: "other-remove", hidden: true }, "Remove it");
  const show = (text, wrong) => {
    said.textContent = text;
    said.classList.toggle("wrong", wrong);
    remove.hidden = !other;
  };
  input.addEventListener("change", async () => {
    const file = input.files[0];
    if (!file) return;
    try {
      setOther(readStudy(await file.text(), file.name));
      show(`Over it: ${other.title}`, false);
    } catch (error) {
      setOther(null);
      show(error.message, true);
    }
    input.value = "";
    onChange();
  });
  remove.addEventListener("click", () => {
    setOther(null);
    show("", false);
    onChange();
  });
  return html("div", { class: "other toolbar" }, choose, input, remove, said);
}
