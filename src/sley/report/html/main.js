// The page: the user's choices, and what draws them.

const DATA = JSON.parse(byId("data").textContent);
const time = new Span();
const whole = new Span();
const timeline = new Lanes(byId("timeline"), time, 15);
const links = new Lanes(byId("links"), time, 15, 300);
const timelineBeside = new Lanes(byId("timeline-beside"), time, 15);
const linksBeside = new Lanes(byId("links-beside"), time, 15, 300);
const idle = new Lanes(byId("idle"), whole, 15, 320);
let chosen = 0;

function drawTimeline() {
  const simulation = DATA.simulations[chosen];
  timelineNote(simulation);
  timelineLegend(simulation, besideOf());
  timeline.show(timelineSource(simulation));
}

function drawSizes() {
  const several = DATA.simulations.length > 1;
  byId("sizes").hidden = !several;
  if (!several) return;
  drawCurve(DATA.simulations, chosen, choose);
  drawAll(DATA.simulations, chosen, choose);
}

function drawIdle() {
  idle.show(idleSource(DATA.simulations[chosen]));
}

function drawBlocks() {
  drawTimeline();
  drawIdle();
  drawBeside(DATA.simulations[chosen]);
}

function drawPage() {
  const simulation = DATA.simulations[chosen];
  drawCards(simulation);
  drawLimit(simulation);
  drawChanges(simulation);
  drawSizes();
  drawBlocks();
  drawClasses(simulation);
  linkNote(simulation);
  heatLegend(byId("links-legend"));
  links.show(linkSource(simulation));
  drawHeat(simulation);
  drawCritical(simulation);
  drawParameters(simulation);
}

function choose(index) {
  chosen = index;
  const simulation = DATA.simulations[index];
  byId("choice").value = `${index}`;
  const { rank, alike, detail } = simulation.blocks;
  const choices = [...new Set(rank)].map((one) => [one, one]);
  if (detail !== "alike") choices.unshift(["all", "all"]);
  if (alike.some((group) => group.length > 1)) choices.unshift(["alike", "alike together"]);
  byId("rank").replaceChildren(...choices.map(([value, word]) =>
    element("option", { value }, `${word}`)));
  opened.clear();
  offerBeside(index);
  showBeside();
}

function showBeside() {
  const simulation = DATA.simulations[chosen];
  const beside = besideOf();
  byId("colour").disabled = !simulation.timeline || simulation.timeline.kind === "bins";
  time.full(Math.max(simulation.time, beside ? beside.time : 0));
  whole.full(simulation.time);
  drawPage();
}

function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  drawPage();
}

byId("choice").append(...DATA.simulations.map((s, index) =>
  element("option", { value: index }, `${s.name}, ${s.size}`)));
byId("beside").addEventListener("change", showBeside);
byId("choose").hidden = byId("choose-beside").hidden = DATA.simulations.length < 2;
byId("choice").addEventListener("change", (event) => choose(Number(event.target.value)));
byId("rank").addEventListener("change", drawBlocks);
byId("colour").addEventListener("change", drawBlocks);
byId("idle-order").addEventListener("change", drawIdle);
byId("curve-of").addEventListener("change", drawSizes);
byId("zoom").addEventListener("click", (event) => {
  if (event.target.dataset.zoom) time.zoom(Number(event.target.dataset.zoom));
});
byId("theme").addEventListener("click", () =>
  useTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));

const wanted = matchMedia("(prefers-color-scheme: dark)");
const asked = location.hash.replace("#", "");
document.documentElement.dataset.theme =
  ["dark", "light"].includes(asked) ? asked : wanted.matches ? "dark" : "light";
wanted.addEventListener("change", () => useTheme(wanted.matches ? "dark" : "light"));
// Starts with the largest size of the first plan.
const sizes = DATA.simulations.map((s) => s.size_bytes);
choose(sizes.indexOf(Math.max(...sizes)));
document.documentElement.dataset.ready = "yes";
