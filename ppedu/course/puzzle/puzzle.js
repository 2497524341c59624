/* puzzle(): the picture of a position above, a tray with all operations below. Python says what is legal and why not; this
   file only sends moves and shows answers. */

function render({ model, el }) {
  const live = liveView(model, el, "Build a pipeline schedule by hand");
  const { root, view, on } = live;
  for (const [kind, [fill, text]] of Object.entries(COLORS[0])) {
    root.style.setProperty(`--ppedu-${kind.toLowerCase()}`, fill);
    root.style.setProperty(`--ppedu-on-${kind.toLowerCase()}`, text);
  }
  const ask = live.tell;
  const set = (values) => ask({ do: "set", values });
  const tray = new Tray((rank, move) => ask({ do: "place", rank, move }));
  const parts = [new Head(set), new Goals(), new Answer(set), tray, new Moves(ask, set), new Hints(set), new Saved(ask)];
  const [head, goals, said, , moves, hints, saved] = parts;
  const overlay = toggle("measured", (value) => set({ overlay: value }));
  live.switches.append(overlay.element);
  const run = new RunPanel(model, ask, { label: "Run for real" });

  const update = () => {
    const board = model.get("board");
    for (const part of parts) part.update(board, model);
    overlay.set(model.get("overlay"));
    overlay.element.hidden = !model.get("measured");
    run.update();
    if (!board.complete) {
      run.go.disabled = true;
      run.go.title = "Place every operation first: only a whole schedule can run";
    }
    root.dataset.placed = board.placed;
    // The tray is to be seen with the picture; what was measured needs more room, and the tray is full then.
    const height = view.scene.tracks.length > 1 ? 420 : 240;
    if (view.options.height !== height) view.set({ height });
  };
  for (const name of ["board", "scene", "text", "overlay", "measured", "run"]) on(`change:${name}`, update);
  view.calls.onPick = (target) => tray.choose(target.rank);
  view.calls.keys = (event) => moves.key(event) || tray.letter(event);
  tray.keys = (event) => moves.key(event);
  update();
  root.append(
    head.element,
    h("div.puzzle-main", {},
      goals.element,
      h("div.puzzle-board", {}, live.stage, said.element, live.error, tray.element, moves.element, live.transport.element, live.switches),
      h("div.puzzle-help", {}, hints.element, saved.element)),
    run.element,
    live.note,
  );
  return () => {
    run.destroy();
    live.destroy();
  };
}

/* Which level, and what it asks for. */
class Head {
  constructor(set) {
    this.level = choice("level", [], (level) => set({ level }));
    this.goal = h("span");
    this.given = h("span.given");
    this.element = h("div.puzzle-head", {}, this.level.element, h("p.goal", {}, this.goal, " ", this.given));
  }

  update(board) {
    const own = board.level === 0 ? [[0, board.title]] : [];
    this.level.fill([...own, ...board.levels.map((title, n) => [n + 1, `${n + 1}  ${title}`])]);
    this.level.set(board.level);
    this.goal.textContent = board.goal;
    this.given.textContent = board.given;
  }
}

/* Each goal with a sign, a word and the figures: never by colour alone. */
class Goals {
  constructor() {
    this.element = h("table.goals", { "aria-label": "goals" });
    this.said = "";
  }

  update({ goals }) {
    const text = JSON.stringify(goals);
    if (text === this.said) return;
    this.said = text;
    const sign = (kept) => (kept === null ? ["○", "open"] : kept ? ["✓", "kept"] : ["✗", "missed"]);
    const row = ({ name, yours, wanted, kept, message }) => {
      const [mark, word] = sign(kept);
      return h("tr", { "data-key": name, "data-kept": word },
        h("th", { scope: "row" }, h("span.sign", { role: "img", "aria-label": word }, mark), ` ${name}`),
        h("td", {}, h("b", {}, yours), h("span.wanted", {}, ` ${wanted}`), h("div.why", {}, message)));
    };
    this.element.replaceChildren(h("tbody", {}, goals.map(row)));
  }
}

/* What the last move led to, or why it was refused. */
class Answer {
  constructor(set) {
    this.set = set;
    this.text = h("span", { role: "status", "aria-live": "polite" });
    this.next = button("Next level", () => this.set({ level: this.level + 1 }));
    this.element = h("div.answer", {}, this.text, this.next);
  }

  update({ said: [kind, text], level, levels, placed, total, kinds }) {
    this.level = level;
    this.element.dataset.kind = kind;
    const signs = { refused: "✗ ", solved: "★ ", placed: "✓ ", undone: "↶ ", done: "○ " };
    const start = "Choose an operation below: it becomes the next one of its rank. Keys: arrows, " +
      `${kinds.slice(0, -1).join(", ")} or ${kinds[kinds.length - 1]}, Enter; U takes back.`;
    const now = kind === "start" ? start : (signs[kind] ?? "") + text;
    if (this.text.textContent !== now) this.text.textContent = now;
    this.next.hidden = kind !== "solved" || level === 0 || level >= levels.length;
    this.element.dataset.left = total - placed;
  }
}

/* All operations, a row a rank, in groups of a kind and a stage. Those that are placed stay, faint: one that is tried twice
   is told why it cannot be. One button at a time is in the tab order; arrow keys go from there. */
class Tray {
  constructor(place) {
    this.place = place;
    this.keys = () => false;
    this.rows = [];
    [this.rank, this.column, this.typed] = [0, 0, ""];
    this.element = h("div.tray", { role: "group", "aria-label": "operations to place", onkeydown: (event) => this.key(event) });
  }

  update(board) {
    const shape = JSON.stringify([board.names, board.ranks]);
    if (shape !== this.shape) this.build(board, shape);
    this.states = board.tray;
    board.tray.forEach((row, rank) =>
      row.forEach((state, column) => {
        const cell = this.rows[rank][column];
        if (cell.dataset.state === state) return;
        cell.dataset.state = state;
        const words = { placed: "placed", open: "not placed", legal: "can come next", illegal: "cannot come next" };
        cell.setAttribute("aria-label", `${this.names[rank][column]} on rank ${rank}, ${words[state]}`);
      }));
    if (board.placed !== this.placed) this.typed = "";
    if (board.placed > this.placed && this.states[this.rank][this.column] === "placed") this.onwards();
    this.placed = board.placed;
    this.show(this.element.contains(document.activeElement));
  }

  build({ names, ranks, kinds }, shape) {
    [this.shape, this.kinds] = [shape, kinds];
    this.names = names.map((groups) => groups.flat());
    this.group = names.map((groups) => groups.flatMap((group, g) => group.map(() => g))); // of each column
    [this.rank, this.column, this.placed, this.typed] = [0, 0, 0, ""];
    const cell = (name, rank, column) =>
      h("button.cell", {
        type: "button", tabindex: "-1", "data-kind": letterOf(name), "data-op": name, "data-rank": rank,
        onclick: () => {
          this.go(rank, column, false);
          this.place(rank, name);
        },
        onfocus: () => this.go(rank, column, false),
      }, name);
    const longest = Math.max(...this.names.flat().map((name) => name.length));
    this.element.style.setProperty("--ppedu-cell", `${0.6 + 0.61 * longest}em`);
    this.rows = Array.from({ length: ranks }, (_, rank) => this.names[rank].map((name, column) => cell(name, rank, column)));
    this.element.replaceChildren(...this.rows.map((row, rank) =>
      h("div.row", { role: "group", "aria-label": `rank ${rank}` },
        h("span.rank", { "aria-hidden": "true" }, `rank ${rank}`),
        names[rank].map((_, g) => h("span.cells", {}, row.filter((_, column) => this.group[rank][column] === g))))));
  }

  go(rank, column, focus = true) {
    [this.rank, this.column] = [rank, column];
    this.show(focus);
  }

  show(focus) {
    this.rows.forEach((row, rank) => {
      row[0].closest(".ppedu-row").toggleAttribute("data-current", rank === this.rank);
      row.forEach((cell, column) => cell.setAttribute("tabindex", rank === this.rank && column === this.column ? "0" : "-1"));
    });
    const cell = this.rows[this.rank][this.column];
    if (focus && document.activeElement !== cell) cell.focus({ preventScroll: true });
  }

  /* The row of a rank, at its first operation that is not placed: forwards before backwards. */
  choose(rank) {
    const found = this.states[rank].findIndex((state) => state !== "placed");
    this.go(rank, Math.max(found, 0), false);
  }

  /* After a move: the next one of the kind and stage on this rank, else of the kind, else the first that is left there. */
  onwards() {
    const left = this.left(this.rank);
    const [names, group] = [this.names[this.rank], this.group[this.rank]];
    const same = left.filter((column) => group[column] === group[this.column]);
    const kind = left.filter((column) => letterOf(names[column]) === letterOf(names[this.column]));
    this.column = same.find((column) => column > this.column) ?? same[0] ?? kind[0] ?? left[0] ?? this.column;
  }

  left(rank) {
    return this.names[rank].map((_, column) => column).filter((column) => this.states[rank][column] !== "placed");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.arrow(event.key) || this.letter(event) || this.keys(event)) {
      event.preventDefault();
      event.stopPropagation();
    }
  }

  arrow(key) {
    const left = this.left(this.rank);
    const last = this.rows.length - 1;
    if (!["Home", "End"].includes(key) && !key.startsWith("Arrow")) return false;
    this.typed = "";
    if (key === "ArrowRight") this.go(this.rank, left.find((column) => column > this.column) ?? this.column);
    else if (key === "ArrowLeft") this.go(this.rank, left.findLast((column) => column < this.column) ?? this.column);
    else if (key === "ArrowUp") this.go(Math.max(0, this.rank - 1), this.column);
    else if (key === "ArrowDown") this.go(Math.min(last, this.rank + 1), this.column);
    else if (key === "Home") this.go(this.rank, left[0] ?? 0);
    else this.go(this.rank, left[left.length - 1] ?? this.names[this.rank].length - 1);
    return true;
  }

  /* A letter of the board's kinds chooses the first that is left of it on this rank; again, the first of the rank's other
     stage. Digits after it choose another microbatch: F 1 2. */
  letter({ key }) {
    const letter = key.toUpperCase();
    const [names, group] = [this.names[this.rank], this.group[this.rank]];
    if (this.kinds.includes(letter)) {
      const firsts = this.left(this.rank).filter((column) => letterOf(names[column]) === letter)
        .filter((column, n, all) => n === 0 || group[column] !== group[all[n - 1]]); // one a stage
      const again = this.typed[0] === letter;
      const found = firsts.find((column) => (again ? group[column] > group[this.column] : group[column] === group[this.column]));
      this.typed = letter;
      if (firsts.length) this.go(this.rank, found ?? firsts[0]);
      return true;
    }
    if (!/^\d$/.test(key) || !this.typed) return false;
    const find = (typed) => names.findIndex((name, column) =>
      group[column] === group[this.column] && name.replace(/^\d+/, "") === typed);
    const longer = this.typed + key;
    const typed = find(longer) >= 0 ? longer : this.typed[0] + key;
    if (find(typed) >= 0) {
      this.go(this.rank, find(typed));
      this.typed = typed;
    }
    return true;
  }
}

const letterOf = (name) => name.match(/[FBIW]/)[0];

/* Back, again, empty; what is legal. */
class Moves {
  constructor(ask, set) {
    this.undo = button("Undo", () => ask({ do: "undo" }), { title: "Take the last move back (U)" });
    this.redo = button("Redo", () => ask({ do: "redo" }), { title: "Make it again (R)" });
    this.empty = button("Start over", () => ask({ do: "restart" }), { title: "Empty the board; Undo brings it back" });
    this.legal = toggle("show legal moves", (legal) => set({ legal }));
    this.legal.element.title = "Outline what can come next on each rank (L)";
    this.count = h("span.quiet");
    this.element = h("div.moves", { role: "group", "aria-label": "moves" },
      this.undo, this.redo, this.empty, this.legal.element, this.count);
  }

  update(board) {
    this.undo.disabled = !board.undo;
    this.redo.disabled = !board.redo;
    this.empty.disabled = !board.placed;
    this.legal.set(board.legal);
    this.count.textContent = `${board.placed} of ${board.total} placed`;
  }

  key({ key }) {
    const found = { u: this.undo, r: this.redo, l: this.legal.box }[key.toLowerCase()];
    found?.click();
    return Boolean(found);
  }
}

/* Hints, one after the other. */
class Hints {
  constructor(set) {
    this.more = button("Hint", () => set({ hints: this.shown + 1 }));
    this.list = h("ol", { "aria-live": "polite" });
    this.element = h("div.hints", {}, this.more, this.list);
  }

  update({ hints, hints_left: left }) {
    this.more.textContent = hints.length ? `Next hint (${left} left)` : `Hint (${left})`;
    this.more.disabled = !left;
    if (this.shown === hints.length) return;
    this.shown = hints.length;
    this.list.replaceChildren(...hints.map((hint) => h("li", {}, hint)));
  }
}

/* The position as text, to keep and to come back to. */
class Saved {
  constructor(ask) {
    this.box = h("textarea", {
      spellcheck: "false", wrap: "off", "aria-label": "the position as text, a line a rank",
      oninput: () => this.edited(true), onkeydown: (event) => event.stopPropagation(),
    });
    this.load = button("Load", () => {
      this.edited(false);
      ask({ do: "load", text: this.box.value });
    }, { title: "Go to the position that this text describes" });
    this.copy = button("Copy", () => this.copied());
    this.element = h("details.saved", {}, h("summary", {}, "Save or load as text"),
      this.box, h("div", {}, this.copy, this.load));
    this.edited(false);
  }

  edited(yes) {
    this.changed = yes;
    this.load.disabled = !yes;
  }

  async copied() {
    this.box.select();
    try {
      await navigator.clipboard.writeText(this.box.value);
      this.copy.textContent = "Copied";
    } catch {
      this.copy.textContent = "Press Ctrl+C"; // a page without https has no clipboard; the text is selected
    }
  }

  update(board, model) {
    this.box.rows = board.ranks + 1;
    const text = model.get("text");
    if (text === this.text) return; // what is being typed stays, and what could not be loaded, too
    this.text = this.box.value = text;
    this.edited(false);
    this.copy.textContent = "Copy";
  }
}

export default { render };
