/* explore(): one schedule, its controls, its picture, and its figures with their formulas; or a timeline that is there
   already, without controls: then `fixed` has no names to choose from. */

function render({ model, el }) {
  const live = liveView(model, el, "Explore a pipeline schedule");
  const { root, asker, on } = live;
  const { names, overlay: other } = model.get("fixed");
  const movable = names && movables(model, live, names);
  const overlay = toggle(other, (value) => asker.move({ overlay: value }));
  const moved = h("p.moved", { role: "status", hidden: !movable });
  const table = h("div");
  const update = () => {
    overlay.set(model.get("overlay"));
    overlay.element.hidden = !model.get("measured");
    movable?.update();
    if (movable) moved.replaceChildren(...moveLine(model.get("moved")));
    table.replaceChildren(...figureTable(model.get("figures")).flat());
  };
  const later = soon(update);
  for (const name of ["schedule", "overlay", "measured", "figures", "moved", "p"]) on(`change:${name}`, later);
  update();
  live.switches.append(overlay.element);
  root.append(
    ...(movable ? [movable.controls] : []),
    live.error,
    h("div.main", {}, h("div.left", {}, live.stage, live.transport.element, live.switches),
      h("div.figures", { role: "group", "aria-label": "figures" }, moved, table)),
    ...(movable ? [movable.run.element] : []),
    live.note,
  );
  return () => {
    movable?.run.destroy();
    live.destroy();
  };
}

/* What a view has whose schedule and costs can be moved: the controls, and "Run for real". */
function movables(model, live, names) {
  const { asker, on, tell } = live;
  const schedule = choice("schedule", Object.entries(names), (value) => asker.once({ schedule: value }));
  const settings = settingControls(model, asker, on, () => [model.get("schedule")]);
  const run = new RunPanel(model, tell, { label: "Run for real" });
  const controls = h("div.controls", { role: "group", "aria-label": "settings" }, schedule.element, settings);
  const update = () => {
    schedule.set(model.get("schedule"));
    run.update();
  };
  return { controls, run, update };
}

const ARROWS = { up: "▲", down: "▼", other: "◆" };
const WAYS = { up: "up", down: "down", other: "changed" };

/* What the last move was. */
function moveLine(moved) {
  if (!moved.what) return ["Move a control: what it changes shows here."];
  return ["Last move: ", h("b", {}, moved.what), ` ${moved.before} → ${moved.after}`];
}

/* A figure a row: what it is, its value and what it was, and the formula with its numbers. Why there is none stands once. */
function figureTable(rows) {
  const row = ({ key, label, text, formula, numbers, about, before, way }) => {
    const change = way && h("span.change", { "aria-label": `${WAYS[way]}, before: ${before}` }, ` ${ARROWS[way]} was ${before}`);
    const why = about ? [about] : formula ? [h("div", {}, `= ${formula}`), h("div", {}, `= ${numbers}`)] : ["simulated"];
    return h("tr", { "data-key": key },
      h("th", { scope: "row" }, label),
      h("td", {}, h("b", {}, text), change || null, h("div.why", {}, ...why)));
  };
  const notes = [...new Set(rows.map((one) => one.note).filter(Boolean))];
  return [h("table", {}, h("tbody", {}, rows.map(row))), notes.map((note) => h("p.why", {}, note))];
}

export default { render };
