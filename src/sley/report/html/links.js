// Links: load over time, and utilisation.

function linkSource(simulation) {
  const l = simulation.links;
  const scale = heatScale();

  function draw(c, row, y, height, x) {
    let drawn = 0;
    for (let bin = 0; bin < l.bins; bin++) {
      const load = l.load[row * l.bins + bin];
      const [a, b] = [x(bin * l.bin), x(Math.min((bin + 1) * l.bin, simulation.time))];
      if (b < 0 || a > c.canvas.width || b <= a) continue;
      c.fillStyle = scale[Math.min(load, 100)];
      c.fillRect(a, y, b - a + 0.4, height);
      drawn += load > 0;
    }
    return drawn;
  }

  function tip(row, time) {
    const bin = Math.floor(time / l.bin);
    if (bin < 0 || bin >= l.bins) return null;
    const load = l.load[row * l.bins + bin];
    return [l.label[row],
      `${load} % of ${l.rate[row]} GB/s from ${(bin * l.bin).toFixed(1)} to `
        + `${((bin + 1) * l.bin).toFixed(1)} us`,
      `${l.moved[row]} from launch to end, ${percent(l.utilisation[row])} of capacity`];
  }

  return { labels: l.label, right: l.utilisation.map((u) => percent(u)), draw, tip };
}

function linkNote(simulation) {
  const l = simulation.links;
  const single = l.label.length - l.classes;
  const shown = single < l.used ? `; ${single} of them are shown, the busiest of each class` : "";
  byId("links-note").textContent = `${l.used} of ${l.links} links carry data${shown}. From launch `
    + `to end they use ${percent(l.average)} of their capacity on average, ${percent(l.most)} at `
    + "most. Classes of links come first, then the busiest links; the numbers at the right are for "
    + "the whole run.";
}

function drawClasses(simulation) {
  table("classes", [["links"], ["number", "number"], ["carry data", "number"],
    ["GB/s each", "number"], ["median use", "number"], ["average", "number"], ["most", "number"],
    ["busiest"]],
  simulation.classes.map((c) => row([[c.ends], [c.links, "number"], [c.used, "number"],
    [+c.GBps.toPrecision(6), "number"], [percent(c.median), "number"],
    [percent(c.average), "number"], [percent(c.most), "number"], [c.busiest]])));
}

function heatTip(h, n) {
  return [`${h.labels[h.src[n]]} -> ${h.labels[h.dst[n]]}`,
    h.count[n] > 1 ? `${h.count[n]} links, ${percent(h.average[n])} of capacity on average, `
      + `${percent(h.most[n])} at most` : `${percent(h.average[n])} of capacity`];
}

function heatMark(h, n, mark) {
  mark.addEventListener("pointermove", (event) => showTip(event, heatTip(h, n)));
  mark.addEventListener("pointerleave", (event) => showTip(event, null));
  return mark;
}

function drawHeat(simulation) {
  const h = simulation.heat;
  byId("heat").replaceChildren(h.lattice ? latticePicture(h) : heatPicture(h));
  byId("heat").dataset.marks = h.src.length;
  const together = { vertex: "", kind: " Vertices of the same kind share a row.",
    node: " Vertices of the same node and kind share a row." }[h.level];
  byId("heat-note").textContent = h.lattice
    ? "Share of the capacity used from launch to end. Of the two lines between GPUs each is the link "
      + "to the GPU in whose direction it is on the right."
    : "Share of the capacity used from launch to end, from each row's vertex to each column's."
      + together;
  heatLegend(byId("heat-legend"));
}

const INCH = 92;

// A mesh or torus: a line for each direction of a link, a curve for a link around the edge.
function latticePicture(h) {
  const { places, around } = h.lattice;
  const points = places.map(([x, y]) => [x * INCH + 10, y * INCH + 30]);
  const width = Math.max(...points.map(([x]) => x)) + 40;
  const height = Math.max(...points.map(([, y]) => y)) + 30;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  picture.style.maxWidth = `${width}px`;
  h.src.forEach((src, n) => {
    const [[x0, y0], [x1, y1]] = [points[src], points[h.dst[n]]];
    const length = Math.hypot(x1 - x0, y1 - y0);
    const right = [(y0 - y1) / length, (x1 - x0) / length];
    const [ax, ay, bx, by] = [x0 + 3 * right[0], y0 + 3 * right[1], x1 + 3 * right[0],
      y1 + 3 * right[1]];
    // Curves of both directions are on the same side: above, or at the left.
    const side = right[0] + right[1] > 0 ? -1 : 1;
    const bend = around[n] ? side * 50 : 0;
    const [cx, cy] = [(ax + bx) / 2 + bend * right[0], (ay + by) / 2 + bend * right[1]];
    picture.append(heatMark(h, n, svg("path", { d: `M${ax},${ay}Q${cx},${cy} ${bx},${by}`,
      fill: "none", stroke: heatColour(h.average[n]), "stroke-width": 4 })));
  });
  points.forEach(([x, y], rank) => {
    picture.append(svg("circle", { cx: x, cy: y, r: 13, fill: style("--paper"),
      stroke: style("--soft") }),
    svg("text", { x, y: y + 4, "text-anchor": "middle" }, `${rank}`));
  });
  return picture;
}

function heatPicture(h) {
  const sources = [...new Set(h.src)].sort((a, b) => a - b);
  const targets = [...new Set(h.dst)].sort((a, b) => a - b);
  const longer = Math.max(sources.length, targets.length);
  const cell = Math.max(Math.min(Math.floor(430 / longer), 30), 4);
  const named = cell >= 9;
  const every = named ? 1 : Math.ceil(11 / cell);
  const longest = Math.max(...h.labels.map((label) => label.length), 4);
  const [left, top] = [longest * 6.2 + 10, longest * 6.2 + 10];
  const width = left + targets.length * cell + 4;
  const height = top + sources.length * cell + 4;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  picture.style.maxWidth = `${width}px`;
  const size = named ? Math.min(cell + 1, 11) : 9;
  sources.forEach((v, n) => {
    if (n % every) return;
    const text = svg("text", { x: left - 5, y: top + (n + 0.5) * cell + size * 0.35,
      "text-anchor": "end", style: `font-size:${size}px` }, h.labels[v]);
    picture.append(text);
  });
  targets.forEach((v, n) => {
    if (n % every) return;
    const x = left + (n + 0.5) * cell + size * 0.35;
    picture.append(svg("text", { x, y: top - 5, transform: `rotate(-90 ${x} ${top - 5})`,
      style: `font-size:${size}px` }, h.labels[v]));
  });
  picture.append(svg("rect", { x: left, y: top, width: targets.length * cell,
    height: sources.length * cell, fill: "none", stroke: style("--line") }));
  const column = new Map(targets.map((v, n) => [v, n]));
  const line = new Map(sources.map((v, n) => [v, n]));
  h.src.forEach((src, n) => {
    const mark = svg("rect", { x: left + column.get(h.dst[n]) * cell, y: top + line.get(src) * cell,
      width: cell - 0.5, height: cell - 0.5, fill: heatColour(h.average[n]),
      stroke: style("--line"), "stroke-width": 0.5 });
    picture.append(heatMark(h, n, mark));
  });
  return picture;
}
