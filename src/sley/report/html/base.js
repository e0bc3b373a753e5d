"use strict";
// Shared by all figures: a record of errors, numbers as text, elements, colours, the tip.

document.documentElement.dataset.errors = "";
window.addEventListener("error", (event) => {
  document.documentElement.dataset.errors += `${event.message} (line ${event.lineno})\n`;
});

const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const percent = (part, digits = 1) => `${(100 * part).toFixed(digits)} %`;

function timeText(us) {
  if (us >= 1e6) return `${(us / 1e6).toPrecision(4)} s`;
  if (us >= 1e4) return `${(us / 1e3).toPrecision(4)} ms`;
  return `${us >= 100 ? us.toFixed(1) : us.toPrecision(3)} us`;
}

function sizeText(bytes) {
  for (const [unit, size] of [["G", 2 ** 30], ["M", 2 ** 20], ["K", 2 ** 10]]) {
    if (bytes >= size) return `${+(bytes / size).toPrecision(3)}${unit}`;
  }
  return `${bytes}`;
}

// About `count` round numbers from low to high.
function ticks(low, high, count) {
  const rough = Math.max(high - low, 1e-9) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n++) found.push(n * step);
  return { step, values: found };
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Operations have cool colours, waits warm ones (--wait, --message, --slot).
const OPERATIONS = {
  "send": "#2f7fb8", "recv": "#2a9d73", "copy": "#7d8590", "reduce": "#596270",
  "recv reduce copy": "#8460c4", "recv copy send": "#56b3d4", "recv reduce send": "#5566d6",
  "recv reduce copy send": "#8aa83a", "nop": "#b0b5bc",
};
const SERIES = [
  "#2f7fb8", "#cf5b17", "#2a9d73", "#b9689a", "#b8912a", "#5fb6d9", "#7a6bc0", "#777777",
];
// In the order of Cause: launch, turn, wait, message, slot.
const causeColour = (cause) =>
  [style("--over"), style("--move"), style("--wait"), style("--message"), style("--slot")][cause];
const tileColour = (tile) => `hsl(${(tile * 47) % 360} 55% 52%)`;

function heatColour(part) {
  const low = style("--heat0").split(",").map(Number);
  const high = style("--heat1").split(",").map(Number);
  if (!(part > 0)) return `rgb(${low.join(",")})`;
  const at = 0.1 + 0.9 * Math.min(part, 1); // so that the smallest load is visible
  return `rgb(${low.map((v, n) => Math.round(v + (high[n] - v) * at)).join(",")})`;
}

// 101 colours, computed once, because looking up the page's style for each cell is slow.
const heatScale = () => Array.from({ length: 101 }, (_, n) => heatColour(n / 100));

function legend(host, entries) {
  host.replaceChildren(...entries.map(([word, colour]) => {
    const swatch = element("i");
    swatch.style.background = colour;
    return element("span", {}, swatch, word);
  }));
}

function heatLegend(host) {
  legend(host, [0, 0.25, 0.5, 0.75, 1].map((part) => [percent(part, 0), heatColour(part)]));
}

function showTip(event, lines) {
  const tip = byId("tip");
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.map((line) => element("div", {}, line)));
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 10
    : event.clientX + 14;
  tip.style.left = `${Math.max(x, 4)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - box.height - 6)}px`;
}
