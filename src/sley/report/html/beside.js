// Two simulations beside each other: their figures in a table, their pictures on one time axis.

// The simulation that is shown beside the chosen one, or null.
function besideOf() {
  const value = byId("beside").value;
  return value === "none" ? null : DATA.simulations[Number(value)];
}

// All others to choose from; of two plans, the other one at the same size is chosen.
function offerBeside(index) {
  const all = DATA.simulations;
  const names = new Set(all.map((s) => s.name));
  const other = all.findIndex((s) =>
    s.name !== all[index].name && s.size_bytes === all[index].size_bytes);
  byId("beside").replaceChildren(element("option", { value: "none" }, "none"),
    ...all.flatMap((s, n) =>
      (n === index ? [] : [element("option", { value: n }, `${s.name}, ${s.size}`)])));
  byId("beside").value = names.size === 2 && other >= 0 ? `${other}` : "none";
}

const besideTitle = (s) => `${s.name}, ${s.size}: ${timeText(s.time)}`;

// Rows of the table: a name, a value of each simulation, and whether the values are numbers whose
// change says something.
function besideRows(a, b) {
  const number = (name, of, text) =>
    [name, text(of(a)), text(of(b)), of(a) ? of(b) / of(a) - 1 : null];
  const word = (name, of) => [name, of(a), of(b), null];
  const share = (part) => percent(part);
  const parts = (s) => new Map(s.limit.parts);
  const classes = (s) => new Map(s.classes.map((c) =>
    [c.ends, `${share(c.median)} / ${share(c.most)}`]));
  const ends = [...new Set([...classes(a).keys(), ...classes(b).keys()])];
  return [
    number("time", (s) => s.time, timeText),
    number("algorithm bandwidth", (s) => s.algbw, (v) => `${v.toFixed(2)} GB/s`),
    number("of the bound", (s) => s.reached, share),
    word("limited by", (s) => s.limit.detail),
    ...a.limit.parts.map(([name]) => number(`time of ${name}`, (s) => parts(s).get(name), timeText)),
    number("idle to own exit", (s) => s.blocks.average[0], share),
    number("idle to the end", (s) => s.blocks.average[1], share),
    ...ends.map((one) => word(`use of ${one}, median / most`, (s) =>
      classes(s).get(one) || "no such links")),
    number("thread blocks", (s) => s.plan.blocks, (v) => v.toLocaleString("en")),
    word("topology", (s) => s.plan.topology),
    word("run as", (s) => `${s.plan.protocol}, ${s.plan.order} order, slots: ${s.plan.slots}, `
      + `tiles: ${s.plan.tiles}, ${s.plan.code}`),
  ].filter(([, x, y]) => x !== y || x !== timeText(0));
}

function drawBeside(a) {
  const b = besideOf();
  byId("compared").hidden = byId("timeline-beside").hidden = byId("links-beside").hidden = !b;
  for (const id of ["timeline-name", "timeline-beside-name", "links-name", "links-beside-name"]) {
    byId(id).hidden = !b;
  }
  byId("beside-table").dataset.marks = 0;
  if (!b) return;
  const change = (part) => (part === null ? "" : Math.abs(part) < 5e-4 ? "-"
    : `${part > 0 ? "+" : ""}${percent(part)}`);
  table("beside-table", [[""], [`${a.name}, ${a.size}`, "number"], [`${b.name}, ${b.size}`, "number"],
    ["change", "number"]],
  besideRows(a, b).map(([name, x, y, part]) =>
    row([[name], [x, "number"], [y, "number"], [change(part), "number"]])));
  for (const figure of ["timeline", "links"]) {
    byId(`${figure}-name`).textContent = besideTitle(a);
    byId(`${figure}-beside-name`).textContent = besideTitle(b);
  }
  byId("timeline-beside").hidden = byId("timeline-beside-name").hidden = !b.timeline;
  if (b.timeline) timelineBeside.show(timelineSource(b));
  linksBeside.show(linkSource(b));
}
