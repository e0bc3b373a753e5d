// Thread blocks over time: single executions, or sums in bins of time if there are too many.

// The rows of the chosen rank, or all rows.
function chosenRows(blocks) {
  const rank = byId("rank").value;
  const rows = blocks.rank.map((_, row) => row);
  return rank === "all" ? rows : rows.filter((row) => blocks.rank[row] === Number(rank));
}

function timelineSource(simulation) {
  const rows = chosenRows(simulation.blocks);
  const labels = rows.map((row) => simulation.blocks.label[row]);
  const t = simulation.timeline;
  if (!t) return { labels: [], draw: () => 0, tip: () => null };
  return t.kind === "bins" ? binSource(simulation, rows, labels)
    : executionSource(simulation, rows, labels);
}

function executionSource(simulation, rows, labels) {
  const t = simulation.timeline;
  const lists = simulation.blocks.label.map(() => []);
  t.row.forEach((row, n) => lists[row].push(n));
  lists.forEach((list) => list.sort((a, b) => t.turn[a] - t.turn[b] || t.end[a] - t.end[b]));
  const mode = byId("colour").value;
  const causes = [0, 1, 2, 3, 4].map(causeColour);
  const ops = t.ops.map((name) => OPERATIONS[name] || "#888888");
  const colour = { op: (n) => ops[t.op[t.instruction[n]]], cause: (n) => causes[t.cause[n]],
    tile: (n) => tileColour(t.tile[n]) }[mode];
  const critical = style("--critical");

  function draw(c, index, y, height, x) {
    let drawn = 0;
    for (const n of lists[rows[index]]) {
      const [turn, start, end] = [x(t.turn[n]), x(t.start[n]), x(t.end[n])];
      if (end < 0 || turn > c.canvas.width) continue;
      if (start > turn) {
        c.fillStyle = causes[t.cause[n]];
        c.fillRect(turn, y + height * 0.4, start - turn, Math.max(height * 0.2, 1.5));
      }
      const width = Math.max(end - start, 0.6);
      c.fillStyle = colour(n);
      c.fillRect(start, y, width > 3 ? width - 0.6 : width, height);
      if (t.critical[n]) {
        c.fillStyle = critical;
        c.fillRect(start, y + height - 2, width > 3 ? width - 0.6 : width, 2);
      }
      if (width > 30 && height >= 11) {
        c.fillStyle = "#ffffff";
        c.textAlign = "center";
        c.fillText(`${t.tile[n]}`, start + width / 2, y + height / 2);
      }
      drawn++;
    }
    return drawn;
  }

  function tip(index, time) {
    const near = (simulation.time / 1e5);
    const n = lists[rows[index]].find((n) => t.turn[n] - near <= time && time <= t.end[n] + near);
    if (n === undefined) return null;
    const after = t.after[n];
    const lines = [
      t.labels[t.instruction[n]],
      `tile ${t.tile[n]}: runs ${timeText(t.end[n] - t.start[n])}, `
        + `${t.start[n].toFixed(2)} to ${t.end[n].toFixed(2)} us`,
    ];
    if (t.start[n] > t.turn[n]) {
      lines.push(`${timeText(t.start[n] - t.turn[n])} of waiting, decoding and posts before`);
    }
    lines.push(`last waited for ${t.causes[t.cause[n]]}`
      + (after >= 0 ? `: ${t.labels[t.instruction[after]]}, tile ${t.tile[after]}` : ""));
    if (t.critical[n]) lines.push("on the critical path");
    return lines;
  }

  return { labels, draw, tip };
}

function binSource(simulation, rows, labels) {
  const t = simulation.timeline;
  const width = simulation.time / t.bins;
  const causes = [0, 1, 2, 3, 4].map(causeColour);
  const move = style("--move");

  function draw(c, index, y, height, x) {
    let drawn = 0;
    for (let bin = 0; bin < t.bins; bin++) {
      const [a, b] = [x(bin * width), x((bin + 1) * width)];
      const at = rows[index] * t.bins + bin;
      if (b < 0 || a > c.canvas.width) continue;
      const moving = Math.min(t.moving[at] / 100, 1) * height;
      const waiting = Math.min(t.waiting[at] / 100, 1) * height;
      c.fillStyle = move;
      c.fillRect(a, y + height - moving, b - a + 0.3, moving);
      c.fillStyle = causes[t.cause[at]];
      c.fillRect(a, Math.max(y + height - moving - waiting, y), b - a + 0.3,
        Math.min(waiting, height - moving));
      drawn += moving + waiting > 0;
    }
    return drawn;
  }

  function tip(index, time) {
    const bin = Math.floor(time / width);
    if (bin < 0 || bin >= t.bins) return null;
    const at = rows[index] * t.bins + bin;
    return [labels[index], `${(bin * width).toFixed(1)} to ${((bin + 1) * width).toFixed(1)} us`,
      `moving data ${t.moving[at]} %, waiting ${t.waiting[at]} %`
        + (t.waiting[at] ? `, mostly for ${t.causes[t.cause[at]]}` : "")];
  }

  return { labels, draw, tip };
}

function timelineLegend(simulation) {
  const t = simulation.timeline;
  const entries = [];
  if (t) {
    const mode = byId("colour").value;
    const bins = t.kind === "bins";
    if (bins) entries.push(["moving data", style("--move")]);
    else if (mode === "op") t.ops.forEach((op) => entries.push([op, OPERATIONS[op] || "#888888"]));
    else if (mode === "tile") entries.push(["a colour for each tile", tileColour(0)]);
    const word = !bins && mode === "cause" ? "waited for " : "waiting for ";
    const used = new Set(t.cause);
    t.causes.forEach((name, cause) => {
      if (used.has(cause) && (cause > 1 || (!bins && mode === "cause"))) {
        entries.push([word + name, causeColour(cause)]);
      }
    });
    if (!bins) entries.push(["critical path", style("--critical")]);
  }
  legend(byId("timeline-legend"), entries);
}

function timelineNote(simulation) {
  const t = simulation.timeline;
  const blocks = simulation.blocks;
  let text = "";
  if (!t) {
    text = "This simulation has no executions. Simulate with executions=True to see them here.";
  } else if (t.kind === "bins") {
    text = `${t.executions.toLocaleString("en")} executions are too many to draw one by one: each `
      + `column is a sum over ${timeText(simulation.time / t.bins)}`
      + (blocks.summed ? `, each row the average of a rank's thread blocks (`
        + `${simulation.plan.blocks.toLocaleString("en")} in all)` : "")
      + ". The trace contains all of them.";
  }
  byId("timeline-note").textContent = text;
  byId("timeline").hidden = byId("timeline-hint").hidden = !t;
}
