/* The controls around the picture: native elements, so that keys, touch and screen readers work as everywhere. */

/* An element: h("button.name", {attributes; onclick and the like as functions}, ...children). */
function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.map((one) => `ppedu-${one}`).join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== ""));
  return element;
}

/* A function that does something once for all calls of one moment: one message of the kernel changes many traits. */
function soon(use) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    queueMicrotask(() => {
      waiting = false;
      use();
    });
  };
}

/* The root of a live view. JupyterLab runs its shortcuts (b: a cell below) before a widget sees a key, unless the focused
   element itself carries the attribute that switches them off. */
function openRoot(el, label) {
  const root = h("div", { role: "group", "aria-label": label });
  root.className = "ppedu";
  el.append(root);
  const suppress = () => {
    for (const one of [root, ...root.querySelectorAll("button, input, select, textarea, a, canvas, [tabindex]")])
      one.setAttribute("data-lm-suppress-shortcuts", "true");
  };
  new MutationObserver(suppress).observe(root, { childList: true, subtree: true });
  suppress();
  return root;
}

const LOCAL = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);

/* Moves: the newest one is sent only when the last one's answer is back, so that a burst of them settles at once.
   notes(text) is told when the kernel keeps silent, and "" when it answers again; complete() says whether the shown scene
   has its details. */
class Asker {
  constructor(model, root, notes, complete) {
    [this.model, this.root, this.notes, this.complete] = [model, root, notes, complete];
    [this.asked, this.gesture, this.busy, this.next] = [model.get("answered"), 0, false, null];
    this.heard = () => this.answer();
    model.on("change:answered", this.heard);
    root.dataset.asked = root.dataset.answered = this.asked;
  }

  /* values: traits and what they are to be. A gesture is one drag, or one key: what "the last move" means. */
  move(values) {
    this.next = { ...this.next, ...values };
    this.of = this.gesture; // it may be sent later, when the next one has begun
    this.root.dataset.asked = this.asked + 1; // what the answer to this move will have, or more
    this.send();
  }

  settle() {
    this.gesture++;
  }

  /* A move that is a gesture of its own: a choice from a list, a tick. */
  once(values) {
    this.settle();
    this.move(values);
    this.settle();
  }

  send() {
    if (this.busy || !this.next) return;
    this.busy = true;
    this.tell({ do: "set", values: this.next, asked: this.stamp(), gesture: this.of });
    this.next = null;
  }

  /* A number that no answer had yet, also where the page was loaded anew, or shows the same view twice. */
  stamp() {
    this.asked = Math.max(this.asked, this.model.get("answered")) + 1;
    this.root.dataset.asked = this.asked;
    return this.asked;
  }

  tell(content) {
    clearTimeout(this.patience);
    this.patience = setTimeout(() => this.notes("No answer from the kernel yet: it is busy, or gone."), 1500);
    try {
      this.model.send({ ...content, local: LOCAL });
    } catch {
      this.notes("There is no kernel: run the cell again to move the controls.");
    }
  }

  answer() {
    clearTimeout(this.patience);
    this.notes("");
    if (this.model.get("answered") < this.asked) return;
    this.busy = false;
    this.send();
  }

  /* Ask for what belongs to the scene and was left out for speed, once the moves have settled. */
  details(wait = 120) {
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => this.busy || this.complete() || this.model.send({ do: "details" }), wait);
  }

  destroy() {
    this.model.off("change:answered", this.heard);
    clearTimeout(this.patience);
    clearTimeout(this.quiet);
  }
}

/* A range with a number that can be typed, for a Control of settings.py. use(value) is called on every move, settle() when
   one is over. */
function slider({ label, hint, low, high, step }, { use, settle }) {
  const id = `ppedu-${Math.random().toString(36).slice(2)}`;
  const limits = { min: low, max: high, step };
  const bar = h("input", { type: "range", id, ...limits, oninput: () => use(Number(bar.value)), onchange: settle });
  let typing = false; // what is being typed is not overwritten by an answer to an earlier move
  const typed = () => {
    typing = false;
    use(box.value === "" ? null : Number(box.value));
    settle();
  };
  const box = h("input.number", {
    type: "number", ...limits, step: "any", "aria-label": `${label}, as a number`,
    oninput: () => (typing = true), onchange: typed,
    onkeydown: (event) => event.key === "Enter" && typing && typed(), // JupyterLab lets Enter change nothing by itself
  });
  bar.addEventListener("pointerdown", settle);
  const element = h("div.control", { title: hint }, h("label", { for: id }, label), bar, box);
  return {
    element, bar, box,
    set(value) {
      bar.value = value;
      const wrong = box.getAttribute("aria-invalid") === "true"; // it stays, to be mended
      if (!typing && !wrong) box.value = Number(Number(value).toPrecision(6));
    },
    invalid(wrong) {
      box.setAttribute("aria-invalid", wrong);
    },
    limit(low, high, step) {
      for (const one of [bar, box]) [one.min, one.max] = [low, high];
      bar.step = step;
    },
    disable(off, why = "") {
      bar.disabled = box.disabled = off;
      element.title = off ? why : hint;
    },
  };
}

/* A list to choose from. options: [[value, text]]. */
function choice(label, options, use) {
  const id = `ppedu-${Math.random().toString(36).slice(2)}`;
  const select = h("select", { id, onchange: () => use(JSON.parse(select.value)) });
  const element = h("div.control", {}, h("label", { for: id }, label), select);
  const fill = (list) => {
    const texts = JSON.stringify(list);
    if (texts === select.dataset.list) return; // an open list would close
    select.dataset.list = texts;
    select.replaceChildren(...list.map(([value, text]) => h("option", { value: JSON.stringify(value) }, text)));
  };
  fill(options);
  return { element, select, fill, set: (value) => (select.value = JSON.stringify(value)) };
}

function toggle(label, use) {
  const box = h("input", { type: "checkbox", onchange: () => use(box.checked) });
  const element = h("label.toggle", {}, box, ` ${label}`);
  return { element, box, set: (value) => (box.checked = value) };
}

const button = (label, use, attributes = {}) => h("button.button", { type: "button", onclick: use, ...attributes }, label);

/* Play, step and scrub through time. It follows the view's onTime. */
class Transport {
  constructor(view) {
    this.view = view;
    const name = (text) => ({ "aria-label": text, title: text });
    this.start = button("▶ Play", () => (view.playing ? view.pause() : view.play()), { title: "Play (space)" });
    this.scrub = h("input.scrub", {
      type: "range", min: 0, max: 1, step: "any", value: 0, "aria-label": "time",
      oninput: () => view.seek(Number(this.scrub.value)),
      onkeydown: (event) => this.keys(event),
    });
    this.now = h("output.now");
    const speeds = [[0.25, "¼ speed"], [0.5, "½ speed"], [1, "1 × speed"], [2, "2 × speed"], [4, "4 × speed"]];
    const speed = h("select", { "aria-label": "speed", onchange: () => (view.speed = Number(speed.value)) },
      speeds.map(([value, text]) => h("option", { value, selected: value === 1 }, text)));
    this.element = h("div.transport", { role: "group", "aria-label": "time" },
      this.start,
      button("|◀", () => view.step(-1), name("one step back (,)")),
      button("▶|", () => view.step(1), name("one step on (.)")),
      this.scrub, this.now, speed,
      (this.whole = button("Show all", () => view.seek(null), { title: "The whole picture, without a cursor (Esc)" })));
    this.update();
  }

  /* An arrow key on the scrub bar goes to the next event, not by some share of the bar. */
  keys(event) {
    const way = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (event.key === " ") this.view.playing ? this.view.pause() : this.view.play();
    else if (way) this.view.step(way);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  update() {
    const { view } = this;
    const last = view.last();
    const time = view.time;
    this.scrub.max = last || 1;
    this.scrub.value = time ?? 0;
    const text = time === null ? "" : `${cursorText(view.scene, time)} of ${timeText(view.scene, last)}`;
    this.now.textContent = text;
    this.scrub.setAttribute("aria-valuetext", text || "no cursor");
    this.start.textContent = view.playing ? "❚❚ Pause" : "▶ Play";
    this.whole.disabled = time === null;
  }
}

/* "Run for real": progress, stop, and how it ended. */
class RunPanel {
  constructor(model, ask, { label }) {
    this.model = model;
    this.go = button(label, () => ask({ do: "run" }), { title: "Train with these settings, in processes of their own" });
    this.go.classList.add("ppedu-go");
    this.halt = button("Stop", () => ask({ do: "stop" }));
    this.bar = h("progress", { max: 1, value: 0, "aria-label": "progress of the run" });
    this.text = h("span.run-text", { role: "status", "aria-live": "polite" });
    this.element = h("div.run", { role: "group", "aria-label": "run for real" }, this.go, this.halt, this.bar, this.text);
    this.changed = () => this.update();
    for (const name of ["run", "not_real"]) model.on(`change:${name}`, this.changed);
    this.update();
  }

  update() {
    const run = this.model.get("run");
    const not = this.model.get("not_real");
    this.element.dataset.state = run.state;
    this.go.disabled = run.busy || Boolean(not);
    this.halt.hidden = this.bar.hidden = !run.busy;
    this.halt.disabled = run.state === "stopping";
    if (run.step) [this.bar.max, this.bar.value] = [run.steps, run.step];
    else this.bar.removeAttribute("value"); // it goes to and fro until the first step is done
    this.text.textContent = not && !run.busy ? not : run.text;
    this.text.classList.toggle("ppedu-wrong", run.state === "failed");
  }

  destroy() {
    for (const name of ["run", "not_real"]) this.model.off(`change:${name}`, this.changed);
  }
}

/* What all live views wire up alike: the picture, its transport, its switches, errors and notes.
   Returns {root, view, asker, parts, on(name, handler), tell(content), destroy}. */
function liveView(model, el, label) {
  const root = openRoot(el, label);
  const stage = h("div.stage");
  const note = h("div.note", { role: "status" });
  const error = h("div.error", { role: "alert" });
  let transport = null;
  const view = new TimelineView(stage, {
    root,
    onTime: () => transport?.update(),
    onPaint: () => (root.dataset.answered = model.get("answered")),
  });
  transport = new Transport(view);
  const asker = new Asker(model, root, (text) => (note.textContent = text), () => view.complete);
  const handlers = [];
  const on = (name, handler) => {
    model.on(name, handler);
    handlers.push([name, handler]);
  };
  const drawn = () => {
    view.show(JSON.parse(model.get("scene")));
    transport.update();
    asker.details();
  };
  on("change:scene", drawn);
  on("change:details", () => view.detail(JSON.parse(model.get("details"))));
  on("change:error", () => (error.textContent = model.get("error")));
  on("change:answered", () => view.request()); // an answer without a new scene is painted, too
  error.textContent = model.get("error");
  root.view = view; // for the browser's console, and for tests
  const { element: switches, set } = viewSwitches(model, root, view, on);
  set();
  drawn();
  view.detail(JSON.parse(model.get("details")));
  on("change:critical_path", () => asker.details(0)); // which is one of them
  const destroy = () => {
    for (const [name, handler] of handlers) model.off(name, handler);
    asker.destroy();
    view.destroy();
  };
  const tell = (content) => asker.tell({ ...content, asked: asker.stamp() });
  return { root, view, asker, transport, stage, note, error, switches, on, tell, destroy };
}

/* How things are drawn: the page's own business, which the kernel is told of and need not be there for. */
function viewSwitches(model, root, view, on) {
  const names = { in_flight: "in flight", phases: "phases", critical_path: "critical path", large: "large" };
  const toggles = Object.entries(names).map(([trait, label]) => {
    const one = toggle(label, (value) => {
      model.set(trait, value);
      model.save_changes();
    });
    on(`change:${trait}`, () => set());
    return [trait, one];
  });
  const set = () => {
    for (const [trait, one] of toggles) one.set(model.get(trait));
    view.set({
      strips: model.get("in_flight"), phases: model.get("phases"), path: model.get("critical_path"), large: model.get("large"),
    });
    root.classList.toggle("ppedu-large", model.get("large"));
  };
  return { element: h("div.switches", { role: "group", "aria-label": "show" }, toggles.map(([, one]) => one.element)), set };
}

/* The controls that all explorers have, for the traits of settings.py, in their order. They follow the model. chosen() lists
   the names of the schedules that are shown: what none of them has is not shown. An order that was given has its own p and m. */
function settingControls(model, asker, on, chosen) {
  const { controls, own, several, given } = model.get("fixed");
  const settle = () => asker.settle();
  const made = Object.entries(controls).map(([name, control]) => [
    name,
    slider(control, { use: (value) => asker.move({ [name]: value }), settle }),
  ]);
  const sliders = Object.fromEntries(made);
  const slow = choice("slow stage", [], (value) => asker.once({ slow_stage: value }));
  const update = () => {
    for (const [name, one] of made) {
      one.invalid(model.get("error").startsWith(`${name} `));
      one.set(model.get(name));
      if (own[name]) one.element.hidden = !chosen().some((key) => own[name].includes(key));
    }
    const [p, possible] = [model.get("p"), model.get("ranks")];
    sliders.p.limit(possible[0], possible[possible.length - 1], possible.length > 1 ? possible[1] - possible[0] : 1);
    sliders.p.set(p);
    const what = chosen().some((key) => several.includes(key)) ? "rank" : "stage"; // all that the rank holds is slow then
    slow.element.querySelector("label").textContent = `slow ${what}`;
    slow.fill([[null, "none"], ...Array.from({ length: p }, (_, rank) => [rank, `${what} ${rank}`])]);
    slow.set(model.get("slow_stage"));
    const fixed = chosen().some((key) => given.includes(key));
    sliders.p.disable(fixed, "The order that was given is for so many ranks");
    sliders.m.disable(fixed, "The order that was given is for so many microbatches");
    sliders.slow_factor.disable(model.get("slow_stage") === null, "Choose the slow stage first");
    sliders.transfer.disable(p === 1, "One rank sends no messages");
  };
  const later = soon(update);
  for (const name of [...Object.keys(sliders), "ranks", "schedule", "schedules", "slow_stage", "error", "answered"]) on(`change:${name}`, later);
  update();
  const last = sliders.slow_factor.element; // beside the stage that it is of
  return [...made.map(([, one]) => one.element).filter((one) => one !== last), slow.element, last];
}
