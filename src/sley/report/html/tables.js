// Cards, bars of idle time, and tables.

function row(cells, tag = "td") {
  return element("tr", {}, ...cells.map(([text, kind]) =>
    element(tag, kind ? { class: kind } : {}, `${text}`)));
}

function table(id, head, rows) {
  const body = element("tbody");
  body.append(...rows);
  byId(id).replaceChildren(element("thead", {}, row(head, "th")), body);
  byId(id).dataset.marks = rows.length;
}

function card(name, value, more, part) {
  const made = element("div", { class: "card" }, element("span", {}, name),
    element("b", {}, value), element("span", {}, more));
  if (part !== undefined) {
    const bar = element("u");
    bar.style.width = `${100 * Math.min(Math.max(part, 0), 1)}%`;
    made.append(element("i", {}, bar));
  }
  return made;
}

function drawCards(s) {
  const p = s.plan;
  const [exit, end] = s.blocks.average;
  byId("cards").replaceChildren(
    card("Time", timeText(s.time), s.launch_text),
    card("Algorithm bandwidth", `${s.algbw.toFixed(2)} GB/s`, `size ${s.size}`),
    card("Bus bandwidth", `${s.busbw.toFixed(2)} GB/s`, `${p.ranks} ranks`),
    card("Of the bound", percent(s.reached),
      `${timeText(s.bound.time)}, ${s.bound.algbw.toFixed(2)} GB/s`, s.reached),
    card("Idle to own exit", percent(exit), `worst block ${percent(s.blocks.worst[0])}`, exit),
    card("Idle to the end", percent(end), `worst block ${percent(s.blocks.worst[1])}`, end),
    card("Use of links", percent(s.links.average), `busiest ${percent(s.links.most)}`,
      s.links.average),
    card("Thread blocks", p.blocks.toLocaleString("en"), `${p.blocks_per_rank} a rank at most`));
  byId("setting").textContent = `${s.name}: ${p.collective} on ${p.topology}; ${p.protocol}, `
    + `${p.order} order, ${p.slots} ${p.slots === 1 ? "slot" : "slots"}, ${p.tiles} `
    + `${p.tiles === 1 ? "tile" : "tiles"} of at most ${p.tile} of a chunk, ${p.code}. `
    + `Bound by ${s.bound.reason}.`;
  byId("cards").dataset.marks = byId("cards").children.length;
}

const FACTOR_COLOURS = ["--over", "--move", "--link", "--memory", "--slot", "--wait"];

// The limiting factor, and the critical path's time by factor.
function drawLimit(s) {
  const { detail, share, remedy, parts } = s.limit;
  byId("limit-text").replaceChildren("Limited by ", element("b", {}, detail),
    `: ${percent(share, 0)} of the time. Remedy: ${remedy}.`);
  const shown = parts.map(([word, us], n) => [word, us, style(FACTOR_COLOURS[n])])
    .filter(([, us]) => us > 0.0005 * s.time);
  byId("limit").replaceChildren(...shown.map(([word, us, colour]) => {
    const part = element("i", { title: `${word}: ${timeText(us)}, ${percent(us / s.time)}` });
    part.style.background = colour;
    part.style.flexGrow = us / s.time;
    return part;
  }));
  byId("limit").dataset.marks = shown.length;
  legend(byId("limit-legend"),
    shown.map(([word, us, colour]) => [`${word} ${percent(us / s.time)}`, colour]));
}

function drawChanges(s) {
  byId("what-if").hidden = !s.changes.length;
  table("what-if", [["what if"], ["time", "number"], ["change", "number"]],
    s.changes.map((c) => row([[c.text], [timeText(c.time), "number"], [c.change, "number"]])));
}

function idleParts() {
  return [["moving data", "moving_us", style("--move")],
    ["overhead", "overhead_us", style("--over")],
    ["waiting for other blocks", "waiting_us", style("--wait")],
    ["waiting for messages", "message_us", style("--message")],
    ["waiting for slots", "slot_us", style("--slot")]];
}

function idleSource(s) {
  const b = s.blocks;
  let entries = blockEntries(b);
  if (byId("idle-order").value === "idle") {
    entries = entries.filter((e) => !e.head)
      .map(({ row, more }) => ({ row, label: blockLabel(b, row) + (more || "") }))
      .sort((x, y) => b.to_end[y.row] - b.to_end[x.row] || x.row - y.row);
  }
  const parts = idleParts();
  const gone = style("--gone");

  function draw(c, n, y, height, x) {
    let at = s.launch;
    for (const [, name, colour] of parts) {
      c.fillStyle = colour;
      c.fillRect(x(at), y, x(at + b[name][n]) - x(at), height);
      at += b[name][n];
    }
    c.fillStyle = gone;
    c.fillRect(x(b.end_us[n]), y, x(s.time) - x(b.end_us[n]), height);
    return parts.filter(([, name]) => b[name][n] > 0).length;
  }

  function tip(n) {
    return [blockLabel(b, n),
      ...parts.filter(([, name]) => b[name][n] > 0).map(([word, name]) =>
        `${word} ${timeText(b[name][n])}`),
      `exits at ${timeText(b.end_us[n])}, ${timeText(s.time - b.end_us[n])} before the end`,
      `idle ${percent(b.to_exit[n])} to its own exit, ${percent(b.to_end[n])} to the end`];
  }

  legend(byId("idle-legend"), [...parts.map(([word, , colour]) => [word, colour]),
    ["has exited", gone]]);
  byId("idle-note").textContent = (b.detail === "ranks" ? "Each row is the average of a rank's blocks. " : "")
    + "At the right: the block's idle share of the time until its own exit / until the end of the "
    + `kernel, on average ${percent(b.average[0])} / ${percent(b.average[1])}. An exited block is `
    + "idle.";
  return { ...entryParts(s, entries, draw, tip),
    right: entries.map(({ row: n, head }) =>
      (head ? "" : `${percent(b.to_exit[n], 0)} / ${percent(b.to_end[n], 0)}`)) };
}

function drawCritical(s) {
  const c = s.critical;
  table("critical", [["#", "number"], ["from us", "number"], ["takes us", "number"],
    ["moving", "number"], ["times", "number"], ["source line"], ["operation"], ["ranks"],
    ["after"]],
  c.rows.map((r) => {
    const more = r.more_ranks ? `, ${r.more_ranks} more` : "";
    const made = row([[r.number, "number"], [r.start.toFixed(1), "number"],
      [r.takes.toFixed(1), "number"], [percent(r.takes ? r.moving / r.takes : 0, 0), "number"],
      [r.times, "number"], [r.line || "none", "code whole"], [r.ops],
      [r.ranks.join(", ") + more], [r.causes]]);
    made.title = `begins with ${r.place}`;
    return made;
  }));
  const total = Math.max(s.time - s.launch, 1e-9);
  table("lines", [["source line"], ["times", "number"], ["us", "number"], ["part", "number"]],
    c.lines.map(([line, times, us]) => row([[line, "code whole"], [times, "number"],
      [us.toFixed(1), "number"], [percent(us / total), "number"]])));
  const shown = c.rows.length < c.steps ? ` The ${c.rows.length} longest are listed.` : "";
  byId("critical-note").textContent = `${c.executions} executions determine the time; each waits `
    + `for the one before it. They form ${c.steps} steps of consecutive executions with the same `
    + `source line.${shown} While no data moves, a step consists of hops, waits and overhead.`;
}

function drawParameters(s) {
  const rows = [];
  let last = "";
  const words = { run: "Run", topology: "Topology", model: "Cost model" };
  for (const [group, name, value] of s.parameters) {
    if (group !== last) {
      const made = element("tr", { class: "group" }, element("td", { colspan: 2 }, words[group]));
      rows.push(made);
    }
    rows.push(row([[name, "code"], [value]]));
    last = group;
  }
  for (const [name, us, reason] of s.bound.parts) {
    if (name === "bandwidth") {
      rows.push(element("tr", { class: "group" }, element("td", { colspan: 2 }, "Bound")));
    }
    rows.push(row([[name, "code"], [`${timeText(us)}: ${reason}`]]));
  }
  table("parameters", [["name"], ["value"]], rows);
}

function drawAll(simulations, chosen, choose) {
  table("all", [["plan"], ["size", "number"], ["time", "number"], ["algbw", "number"],
    ["busbw", "number"], ["of bound", "number"]],
  simulations.map((s, index) => {
    const made = row([[s.name], [s.size, "number"], [timeText(s.time), "number"],
      [s.algbw.toFixed(2), "number"], [s.busbw.toFixed(2), "number"],
      [percent(s.reached), "number"]]);
    made.className = index === chosen ? "chosen" : "";
    made.addEventListener("click", () => choose(index));
    return made;
  }));
}
