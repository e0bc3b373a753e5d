// Thread blocks over time: single executions, or sums in bins of time if there are too many.

const opened = new Set(); // the representatives of the groups that are shown with all ranks

// "1-7, 9": ascending numbers, at most `most` ranges of them.
function ranges(numbers, most = 6) {
  const found = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = found[found.length - 1];
    if (last && last[1] === n - 1) last[1] = n;
    else found.push([n, n]);
  }
  const words = found.slice(0, most).map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`));
  return words.join(", ") + (found.length > most ? ", ..." : "");
}

// What the figures of thread blocks show, in order: rows, and heads of ranks with several blocks.
function blockEntries(blocks) {
  const rows = new Map();
  blocks.rank.forEach((rank, row) => {
    if (!rows.has(rank)) rows.set(rank, []);
    rows.get(rank).push(row);
  });
  // The simulation beside may lack the chosen rank.
  const wanted = byId("rank").value;
  const choice = wanted === "all" || rows.has(Number(wanted)) ? wanted : "alike";
  const alike = new Map(blocks.alike.map((group) => [group[0], group]));
  let ranks = choice === "all" ? [...rows.keys()] : [Number(choice)];
  if (choice === "alike") {
    ranks = blocks.alike.flatMap((group) => (opened.has(group[0]) ? group : [group[0]]));
  }
  return ranks.filter((rank) => rows.has(rank)).flatMap((rank) => {
    const own = rows.get(rank);
    const group = choice === "alike" && alike.has(rank) ? alike.get(rank) : [rank];
    const more = group.length - 1;
    const others = more ? `, and ${more} alike: ${ranges(group.slice(1))}` : "";
    if (own.length > 1) {
      const entries = own.map((row) => ({ row, label: blocks.name[row] }));
      return [{ head: `rank ${rank}${others}`, group }, ...entries];
    }
    const name = blocks.name[own[0]] ? ` . ${blocks.name[own[0]]}` : "";
    return [{ row: own[0], label: `rank ${rank}${name}${more ? ` (and ${more} alike)` : ""}`,
      more: others }];
  });
}

const blockLabel = (blocks, row) =>
  `rank ${blocks.rank[row]}${blocks.name[row] ? ` block ${blocks.name[row]}` : ""}`;

// Parts of a source that timelines and idle times share.
function entryParts(simulation, entries, draw, tip) {
  const b = simulation.blocks;
  const expandable = b.detail !== "alike";
  return {
    labels: entries.map((e) => e.label || ""),
    heads: entries.map((e) => e.head),
    draw: (c, index, ...more) => draw(c, entries[index].row, ...more),
    tip: (index, time) => {
      const e = entries[index];
      if (!e.head) return tip(e.row, time);
      if (e.group.length < 2) return null;
      return [e.head, expandable ? "Click to show or hide all of them." : "Their times differ by "
        + "at most 1 % of the whole time; the trace has them."];
    },
    press: (index) => {
      const [first, ...others] = entries[index].group;
      if (!expandable || !others.length) return;
      if (!opened.delete(first)) opened.add(first);
      drawBlocks();
    },
  };
}

function timelineSource(simulation) {
  const t = simulation.timeline;
  if (!t) return { labels: [], draw: () => 0, tip: () => null };
  const make = t.kind === "bins" ? binSource : executionSource;
  const { draw, tip } = make(simulation);
  return entryParts(simulation, blockEntries(simulation.blocks), draw, tip);
}

function executionSource(simulation) {
  const t = simulation.timeline;
  const lists = simulation.blocks.rank.map(() => []);
  t.row.forEach((row, n) => lists[row].push(n));
  lists.forEach((list) => list.sort((a, b) => t.turn[a] - t.turn[b] || t.end[a] - t.end[b]));
  const mode = byId("colour").value;
  const causes = [0, 1, 2, 3, 4].map(causeColour);
  const ops = t.ops.map((name) => OPERATIONS[name] || "#888888");
  const colour = { op: (n) => ops[t.op[t.instruction[n]]], cause: (n) => causes[t.cause[n]],
    tile: (n) => tileColour(t.tile[n]) }[mode];
  const critical = style("--critical");

  function draw(c, row, y, height, x) {
    let drawn = 0;
    for (const n of lists[row]) {
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

  function tip(row, time) {
    const near = (simulation.time / 1e5);
    const n = lists[row].find((n) => t.turn[n] - near <= time && time <= t.end[n] + near);
    if (n === undefined) return null;
    const after = t.after_instruction[n];
    const lines = [
      t.labels[t.instruction[n]],
      `tile ${t.tile[n]}: runs ${timeText(t.end[n] - t.start[n])}, `
        + `${t.start[n].toFixed(2)} to ${t.end[n].toFixed(2)} us`,
    ];
    if (t.start[n] > t.turn[n]) {
      lines.push(`${timeText(t.start[n] - t.turn[n])} of waiting, decoding and posts before`);
    }
    lines.push(`last waited for ${t.causes[t.cause[n]]}`
      + (after >= 0 ? `: ${t.labels[after]}, tile ${t.after_tile[n]}` : ""));
    if (t.critical[n]) lines.push("on the critical path");
    return lines;
  }

  return { draw, tip };
}

function binSource(simulation) {
  const t = simulation.timeline;
  const width = simulation.time / t.bins;
  const causes = [0, 1, 2, 3, 4].map(causeColour);
  const move = style("--move");

  function draw(c, row, y, height, x) {
    let drawn = 0;
    for (let bin = 0; bin < t.bins; bin++) {
      const [a, b] = [x(bin * width), x((bin + 1) * width)];
      const at = row * t.bins + bin;
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

  function tip(row, time) {
    const bin = Math.floor(time / width);
    if (bin < 0 || bin >= t.bins) return null;
    const at = row * t.bins + bin;
    return [blockLabel(simulation.blocks, row), `${(bin * width).toFixed(1)} to ${((bin + 1) * width).toFixed(1)} us`,
      `moving data ${t.moving[at]} %, waiting ${t.waiting[at]} %`
        + (t.waiting[at] ? `, mostly for ${t.causes[t.cause[at]]}` : "")];
  }

  return { draw, tip };
}

function timelineLegend(...simulations) {
  const entries = new Map();
  const mode = byId("colour").value;
  for (const t of simulations.map((s) => s && s.timeline).filter(Boolean)) {
    const bins = t.kind === "bins";
    if (bins) entries.set("moving data", style("--move"));
    else if (mode === "op") t.ops.forEach((op) => entries.set(op, OPERATIONS[op] || "#888888"));
    else if (mode === "tile") entries.set("a colour for each tile", tileColour(0));
    const word = !bins && mode === "cause" ? "waited for " : "waiting for ";
    const used = new Set(t.cause);
    t.causes.forEach((name, cause) => {
      if (used.has(cause) && (cause > 1 || (!bins && mode === "cause"))) {
        entries.set(word + name, causeColour(cause));
      }
    });
    if (!bins) entries.set("critical path", style("--critical"));
  }
  legend(byId("timeline-legend"), [...entries]);
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
      + (blocks.detail === "ranks" ? `, each row the average of a rank's thread blocks (`
        + `${simulation.plan.blocks.toLocaleString("en")} in all)` : "") + ". ";
  }
  const groups = blocks.alike.length;
  const ranks = blocks.alike.reduce((sum, group) => sum + group.length, 0);
  if (t && groups < ranks) {
    text += `${ranks} ranks in ${groups} ${groups === 1 ? "group" : "groups"} of ranks that are `
      + "alike: they do the same work with other peers, and their times differ by at most 1 % of "
      + `the whole time. A group has the rows of one rank. ${blocks.detail === "alike"
        ? "The rows of the others are left out of this page." : ""}`;
  }
  byId("timeline-note").textContent = text;
  byId("timeline").hidden = byId("timeline-hint").hidden = !t;
}
