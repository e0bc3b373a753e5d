// Curves over the size: a line for each plan, and its bound.

const BUS = (s) => s.busbw / s.algbw;
const QUANTITIES = {
  algbw: { word: "algbw, GB/s", of: (s) => s.algbw, bound: (s) => s.bound.algbw },
  busbw: { word: "busbw, GB/s", of: (s) => s.busbw, bound: (s) => s.bound.algbw * BUS(s) },
  time: { word: "time, us", of: (s) => s.time, bound: (s) => s.bound.time },
};

function series(simulations) {
  const found = new Map();
  simulations.forEach((s, index) => {
    const name = s.name;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ s, index });
  });
  for (const points of found.values()) points.sort((a, b) => a.s.size_bytes - b.s.size_bytes);
  return [...found];
}

const PICTURE = { width: 620, height: 320, left: 62, right: 26, top: 12, bottom: 40 };

// The positions of sizes and values in the picture, and those with grid lines.
function curveScales(sizes, values, logarithmic) {
  const { width, height, left, right, top, bottom } = PICTURE;
  let [low, high] = [Math.log2(Math.min(...sizes)), Math.log2(Math.max(...sizes))];
  if (high - low < 1) [low, high] = [low - 1, high + 1];
  const floor = logarithmic ? Math.log10(Math.min(...values)) - 0.1 : 0;
  const ceiling = logarithmic ? Math.log10(Math.max(...values)) + 0.1 : Math.max(...values) * 1.06;
  const least = Math.ceil(floor);
  const step = Math.max(1, Math.ceil((high - low) / 11));
  return {
    x: (size) => left + ((Math.log2(size) - low) / (high - low)) * (width - left - right),
    y: (value) => height - bottom - (((logarithmic ? Math.log10(value) : value) - floor)
      / (ceiling - floor)) * (height - top - bottom),
    values: logarithmic
      ? Array.from({ length: Math.floor(ceiling) - least + 1 }, (_, n) => 10 ** (least + n))
      : ticks(floor, ceiling, 6).values,
    sizes: Array.from({ length: Math.floor((high - Math.ceil(low)) / step) + 1 },
      (_, n) => 2 ** (Math.ceil(low) + n * step)),
  };
}

function drawAxes(picture, scales, word) {
  const { width, height, left, right, top, bottom } = PICTURE;
  const line = (x1, x2, y1, y2) =>
    picture.append(svg("line", { x1, x2, y1, y2, stroke: style("--grid") }));
  const text = (x, y, words, more = {}) =>
    picture.append(svg("text", { x, y, "text-anchor": "middle", ...more }, words));
  for (const value of scales.values) {
    line(left, width - right, scales.y(value), scales.y(value));
    text(left - 6, scales.y(value) + 4, `${+value.toPrecision(6)}`, { "text-anchor": "end" });
  }
  for (const size of scales.sizes) {
    line(scales.x(size), scales.x(size), top, height - bottom);
    text(scales.x(size), height - bottom + 16, sizeText(size));
  }
  text((left + width) / 2, height - 6, "size, bytes");
  text(14, height / 2, word, { transform: `rotate(-90 14 ${height / 2})` });
}

function curveDot(x, y, name, s, colour, chosen, choose) {
  const dot = svg("circle", { cx: x, cy: y, r: chosen ? 6 : 4, fill: colour,
    stroke: chosen ? style("--ink") : "none", "stroke-width": 2 });
  dot.style.cursor = "pointer";
  dot.addEventListener("pointermove", (event) => showTip(event, [`${name}, ${s.size}`,
    `${timeText(s.time)}, algbw ${s.algbw.toFixed(2)} GB/s, busbw ${s.busbw.toFixed(2)} GB/s`,
    `${percent(s.reached)} of the bound`]));
  dot.addEventListener("pointerleave", (event) => showTip(event, null));
  dot.addEventListener("click", choose);
  return dot;
}

function drawCurve(simulations, chosen, choose) {
  const { word, of, bound } = QUANTITIES[byId("curve-of").value];
  const scales = curveScales(simulations.map((s) => s.size_bytes),
    simulations.flatMap((s) => [of(s), bound(s)]), byId("curve-of").value === "time");
  const picture = svg("svg", { viewBox: `0 0 ${PICTURE.width} ${PICTURE.height}`, role: "img" });
  drawAxes(picture, scales, word);
  const entries = [];
  const bounds = new Set();
  series(simulations).forEach(([name, points], number) => {
    const colour = SERIES[number % SERIES.length];
    entries.push([name, colour]);
    const path = (value) => points.map(({ s }, n) => `${n ? "L" : "M"}`
      + `${scales.x(s.size_bytes).toFixed(1)},${scales.y(value(s)).toFixed(1)}`).join("");
    if (!bounds.has(path(bound))) {
      picture.append(svg("path", { d: path(bound), fill: "none", stroke: style("--soft"),
        "stroke-width": 1.5, "stroke-dasharray": "6 4" }));
      bounds.add(path(bound));
    }
    picture.append(svg("path", { d: path(of), fill: "none", stroke: colour, "stroke-width": 2 }));
    picture.append(...points.map(({ s, index }) => curveDot(scales.x(s.size_bytes),
      scales.y(of(s)), name, s, colour, index === chosen, () => choose(index))));
  });
  entries.push(["bound (dashed)", style("--soft")]);
  legend(byId("curve-legend"), entries);
  byId("curve").replaceChildren(picture);
  byId("curve").dataset.marks = picture.querySelectorAll("circle").length;
}
