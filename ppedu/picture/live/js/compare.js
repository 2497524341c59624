/* explore_compare(): two or three schedules on one time axis, and their time and memory side by side. */

function render({ model, el }) {
  const live = liveView(model, el, "Compare pipeline schedules");
  const { root, asker, on } = live;
  const settings = settingControls(model, asker, on, () => model.get("schedules"));
  const schedules = scheduleBoxes(model, asker);
  const budget = budgetControl(model, asker);
  const overlay = toggle("measured", (value) => asker.move({ overlay: value }));
  const run = new RunPanel(model, live.tell, { label: "Run all for real" });
  const table = h("div.figures.comparison", { role: "group", "aria-label": "time and memory" });
  const update = () => {
    schedules.update();
    budget.update();
    overlay.set(model.get("overlay"));
    overlay.element.hidden = !model.get("measured");
    run.update();
    table.replaceChildren(h("div.verdict", { role: "status" }, model.get("verdict").map((one) => h("p", {}, one))), comparisonTable(model.get("rows"), model.get("budget")));
  };
  const later = soon(update);
  for (const name of ["schedules", "budget", "overlay", "measured", "rows", "verdict", "p"]) on(`change:${name}`, later);
  update();
  live.switches.append(overlay.element);
  live.view.set({ height: 320 }); // two schedules of four ranks are to be seen at once, on a projector too
  root.append(
    h("div.controls", { role: "group", "aria-label": "settings" }, schedules.element, settings, budget.element),
    live.error,
    h("div.main", {}, h("div.left", {}, live.stage, live.transport.element, live.switches), table),
    run.element,
    live.note,
  );
  return () => {
    run.destroy();
    live.destroy();
  };
}

/* A box for each schedule. Two stay ticked, and three are enough: the others cannot be chosen then. */
function scheduleBoxes(model, asker) {
  const boxes = Object.entries(model.get("fixed").names).map(([key, name]) => [
    key,
    toggle(name, (ticked) => {
      const others = model.get("schedules").filter((one) => one !== key);
      asker.once({ schedules: ticked ? [...others, key] : others });
    }),
  ]);
  const update = () => {
    const chosen = model.get("schedules");
    for (const [key, one] of boxes) {
      const ticked = chosen.includes(key);
      one.set(ticked);
      one.box.disabled = ticked ? chosen.length <= 2 : chosen.length >= 3;
      one.element.title = one.box.disabled ? "Two or three schedules are compared" : "";
    }
  };
  const element = h("div.control.boxes", { role: "group", "aria-label": "schedules" }, boxes.map(([, one]) => one.element));
  return { element, update };
}

/* The memory budget: none, or so many activations in flight on every rank. */
function budgetControl(model, asker) {
  const control = model.get("fixed").budget;
  const bar = slider(control, { use: (value) => asker.move({ budget: value }), settle: () => asker.settle() });
  const tick = toggle("", (ticked) => asker.once({ budget: ticked ? Number(bar.bar.value) : null }));
  tick.box.setAttribute("aria-label", "set a memory budget");
  bar.element.prepend(tick.element);
  const update = () => {
    const budget = model.get("budget");
    tick.set(budget !== null);
    bar.disable(budget === null, "Tick the box to set a budget");
    bar.set(budget ?? Math.min(control.high, model.get("p")));
  };
  return { element: bar.element, update };
}

/* Bars of one scale a figure, a schedule a bar: the same time is the same length, other memory is not. */
function comparisonTable(rows, budget) {
  const longest = Math.max(...rows.map((row) => row.makespan));
  const largest = Math.max(budget ?? 0, ...rows.map((row) => row.peak));
  const sized = rows.some((row) => row.stages);
  const held = sized ? "most activations on a rank (1: a microbatch's on 1/p of the model)" : "most in flight on a rank";
  const bar = (kind, share, line) =>
    h("div.bar", {},
      h(`div.fill.${kind}`, { style: `width: ${100 * share}%` }),
      line == null ? null : h("div.limit", { style: `left: ${100 * line}%`, title: `budget ${budget}` }));
  const figure = (label, cells) => [
    h("tr", {}, h("th.head", { scope: "colgroup", colspan: 2 }, label)),
    rows.map((row) => h("tr", { "data-name": row.name }, h("th", { scope: "row" }, row.name), h("td", {}, cells(row)))),
  ];
  const over = (row) => (row.over ? h("b.wrong", {}, " over the budget") : "");
  return h("table", {}, h("tbody", {},
    figure("makespan", (row) => [bar("time", row.makespan / longest), h("b", {}, row.time), ` bubble ${row.bubble}`]),
    figure(budget === null ? held : `${held}, budget ${budget}`, (row) => [
      bar("memory", row.peak / largest, budget && budget / largest), h("b", {}, row.most),
      row.stages ? ` (${row.stages})` : "", row.weights ? `, ${row.weights}` : "", over(row),
    ]),
    budget === null ? null : figure("affords", (row) => [h("b", {}, row.afford), `: ${row.each}`])));
}

export default { render };
