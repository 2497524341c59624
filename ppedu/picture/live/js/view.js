/* The live picture of timelines: what the explorers and the puzzle share. Plain JavaScript, no framework, no bundler:
   assets.py puts layout.js, paint.js, over.js, view.js and panel.js in front of explore.js, compare.js or puzzle.js, and
   the palette (PALETTE, COLORS, SHAPE, HATCH, WORD, from ppedu/picture/palette.py), SHORTER and KEEPS in front of all.

   No rule of scheduling lives in JavaScript. What an operation needs, when a tensor was there and why a rank is idle
   comes with the scene, from `dependencies` and `Timeline`.

   A SCENE (`scene` of ppedu/picture/scene.py makes it; matplotlib draws the same one) is all that is drawn:
     number    counts up; the picture says which one it has painted: root.dataset.drawn
     unit      "", "ms" or another; label: what the time axis says; integer: every operation ends at a whole number
     span      where the time axis ends; peak: the most in flight of any rank, the one scale of all strips
     caption   sentences: p, m, predicted or measured
     held      what strips count: "in flight", or "activations" of 1/p of the model where stages differ in size
     key       [[kind, word, [[colour, top, bottom]]]]: what shapes mean; "in flight" and "path" where they are shown
     marks     [{time, label}]: dashed vertical lines ("target 22")                                    (optional)
     open      true where operations are still being placed: lanes are as long as the axis                (optional)
     budget    activations that a rank may hold, one number or one a rank: a dashed line in each strip   (optional)
     tracks    one for each timeline, each with
       group     tracks with the same group share their ranks: predicted over measured, rank by rank
       word      what tells the tracks of a group apart ("predicted", "measured"), or ""
       title     the pieces of its heading, as plot_timeline has them; [] for none
       ranks     p;  makespan;  phases [[name, from, to]];  peaks [one a rank]
       first     first[r] to first[r+1] - 1 are the operations of rank r, by start; ops are numbered over the track
       kind      "F", "B", "I", "W", or "FB" for a pair that overlaps; one an operation
       name      what its box says ("F3"); one an operation
       start, end  its times; one an operation
       curve     [[time, count, time, count, ...]] one a rank: in flight from then on
       shade     [place in colors] one an operation, two for a pair: later stages of a rank are paler
       colors    of light notebooks and of dark ones: [[fill, text, and the same for boxes off the critical path]]
       waiting   [[rank, name, kind, message]]: placed, but it cannot start yet: drawn dashed behind the lane's last
                 operation                                                                             (optional)
       arrives   whether it is known when a result is there: of a measurement only its end is
     and the details, which a large scene gets a moment later (view.detail({number, tracks})):
       needs     [[operation, ...]]: what it needs;  there: [[time, ...]]: when that was there, where messages take
                 time (else null: when it ended, or nobody knows)
       gaps      [[rank, from, to, message, next, waited]]: idle times, each with its reason, the operation that follows
                 and the one that it waits for (-1 for none)
       path      operations of the critical path
     A TARGET is what one can point at: {track, rank} and one of op, gap, wait (indexes), or none of them: the lane.

   THE API
     const view = new TimelineView(host, {onPick(target), onFocus(target), onTime(time), keys(event) -> handled?})
       host gets two stacked canvases (the picture; what moves on it), a tip, and a live region for screen readers.
     view.show(scene)      paints it at the next animation frame, then root.dataset.drawn = scene.number
     view.detail(details)  what is known of the shown scene besides, where it came without
     view.set({strips, phases, path, large, height})   how it is drawn; strips = in flight under each lane
     view.play() .pause() .playing .step(+1|-1) .seek(time|null) .time     time null: the whole picture, no cursor
     view.focus(target|null), view.target     what is pointed out, by pointer or by keys
     view.describe(target) -> {title, lines}  the words of the tip and of the live region
     view.area(target) -> [left, top, width, height]   where it stands, in CSS pixels of the picture
     view.at(x, y) -> target                  hit test, in CSS pixels of the picture
     view.walk(target, key) -> target         what an arrow key, Home or End leads to
     view.destroy()
   Below that, all is pure: layout(scene, options, width, ctx, font) -> lay; hit(scene, lay, x, y); walk(scene, lay, target,
   key) in layout.js; paintScene(ctx, scene, lay, options, colors) in paint.js; paintOver(..., {time, target}) in over.js.

   panel.js has the controls: h() makes elements; slider(), choice(), toggle(), button(); Transport (play, step, scrub);
   RunPanel ("Run for real"); Asker (sends the newest move only when the last answer is back); liveView(model, el, label),
   which wires all of it to the model's traits. root.dataset: asked (number of the newest move), answered (the newest move
   that is painted), drawn (number of the painted scene), time (of the cursor, "" for none). */

const STILL = matchMedia("(prefers-reduced-motion: reduce)");

class TimelineView {
  constructor(host, callbacks = {}) {
    this.host = host;
    this.root = callbacks.root || host;
    this.calls = callbacks;
    this.options = { strips: true, phases: true, path: false, large: false, height: 420 };
    this.scene = null;
    this.lay = null;
    this.time = null;
    this.playing = false;
    this.speed = 1;
    this.hovered = this.picked = null;
    this.undo = []; // what destroy() has to take back
    this.build();
    this.watch();
  }

  // elements

  build() {
    this.box = h("div.picture");
    this.below = h("canvas.canvas", { "aria-hidden": "true" });
    // role=application: arrow keys go to the picture, not to the screen reader's own cursor
    this.above = h("canvas.canvas.over", {
      tabindex: "0", role: "application", "aria-roledescription": "timeline",
    });
    this.tip = h("div.tip", { role: "tooltip", hidden: true });
    this.live = h("div.live", { "aria-live": "polite", role: "status" });
    this.caption = h("div.caption");
    this.box.append(this.below, this.above, this.tip);
    this.host.append(this.box, this.caption, this.live);
  }

  watch() {
    const on = (target, name, handler, options) => {
      target.addEventListener(name, handler, options);
      this.undo.push(() => target.removeEventListener(name, handler, options));
    };
    on(this.above, "pointermove", (event) => this.hover(this.at(event.offsetX, event.offsetY)));
    on(this.above, "pointerleave", () => this.hover(null));
    on(this.above, "pointerdown", (event) => this.pick(this.at(event.offsetX, event.offsetY)));
    on(this.above, "keydown", (event) => this.key(event));
    on(this.above, "focus", () => this.above.matches(":focus-visible") && !this.picked && this.focus(this.walk(null, "")));
    on(this.above, "blur", () => this.focus(null));
    const resize = new ResizeObserver(() => this.resized());
    resize.observe(this.box);
    const themed = new MutationObserver(() => this.recolor());
    for (const element of [document.documentElement, document.body])
      themed.observe(element, { attributes: true, attributeFilter: ["class", "style", "theme", "data-jp-theme-name", "data-jp-theme-light", "data-vscode-theme-kind"] });
    on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.recolor());
    this.watchZoom();
    this.undo.push(() => resize.disconnect(), () => themed.disconnect(), () => cancelAnimationFrame(this.frame));
  }

  /* Zooming the page changes the device pixels of a CSS pixel; each value has to be watched by its own query. */
  watchZoom() {
    const query = matchMedia(`(resolution: ${devicePixelRatio}dppx)`);
    const changed = () => {
      this.watchZoom();
      this.relayout();
    };
    query.addEventListener("change", changed, { once: true });
    this.unzoom = () => query.removeEventListener("change", changed);
  }

  destroy() {
    this.pause();
    this.unzoom();
    for (const back of this.undo) back();
  }

  // what is shown, and how

  show(scene) {
    if (!this.scene || !samePlaces(this.scene, scene)) this.hovered = this.picked = null;
    this.scene = scene;
    for (const track of scene.tracks) {
      track.known = Boolean(track.needs); // the details came along
      track.needs = track.needs || track.kind.map(() => []);
      track.gaps = track.gaps || [];
      track.path = track.path || [];
    }
    if (this.time !== null) this.time = Math.min(this.time, scene.span);
    this.caption.textContent = scene.caption;
    this.above.setAttribute("aria-label", spoken(scene));
    this.relayout();
  }

  detail(details) {
    if (details.number !== this.scene?.number) return;
    this.scene.tracks.forEach((track, k) => Object.assign(track, details.tracks[k], { known: true, items: null, unblocks: null }));
    this.relayout();
  }

  /* The shown scene has its details. */
  get complete() {
    return this.scene.tracks.every((track) => track.known);
  }

  set(options) {
    Object.assign(this.options, options);
    this.relayout();
  }

  resized() {
    if (this.scene && Math.abs(this.box.clientWidth - this.wide) >= 1) this.relayout();
  }

  recolor() {
    this.colors = null;
    this.relayout();
  }

  relayout() {
    this.stale = true;
    this.request();
  }

  request() {
    if (!this.frame) this.frame = requestAnimationFrame((now) => this.paint(now));
  }

  paint(now) {
    this.frame = 0;
    if (!this.scene || !this.box.clientWidth) return; // not on the page yet: the ResizeObserver calls again
    if (this.playing) this.advance(now);
    this.colors = this.colors || this.readColors();
    if (this.stale) this.paintBelow();
    const over = this.context(this.above);
    paintOver(over, this.scene, this.lay, this.options, this.colors, { time: this.time, target: this.target });
    this.placeTip();
    this.root.dataset.drawn = this.scene.number;
    this.root.dataset.time = this.time === null ? "" : this.time;
    this.calls.onPaint?.();
    if (this.playing) this.request();
  }

  paintBelow() {
    this.stale = false;
    this.wide = this.box.clientWidth;
    const probe = this.below.getContext("2d");
    this.lay = layout(this.scene, this.options, this.wide, probe, this.colors.font);
    this.box.style.height = `${this.lay.height}px`;
    const under = this.context(this.below);
    paintScene(under, this.scene, this.lay, this.options, this.colors);
  }

  /* A canvas's context with one unit a CSS pixel, and as many pixels as the screen has. */
  context(canvas) {
    const ratio = window.devicePixelRatio || 1;
    const [wide, high] = [Math.round(this.wide * ratio), Math.round(this.lay.height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) {
      [canvas.width, canvas.height] = [wide, high];
      [canvas.style.width, canvas.style.height] = [`${this.wide}px`, `${this.lay.height}px`];
    }
    const ctx = canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    return ctx;
  }

  /* The theme's own paper and ink, as the style sheet finds them; a context turns any notation into #rrggbb. */
  readColors() {
    const style = getComputedStyle(this.host);
    const hex = (name, other) => {
      const ctx = this.below.getContext("2d");
      ctx.fillStyle = other;
      ctx.fillStyle = style.getPropertyValue(name).trim() || other;
      if (ctx.fillStyle.startsWith("#")) return ctx.fillStyle;
      const parts = ctx.fillStyle.match(/[\d.]+/g) || [];
      return "#" + parts.slice(0, 3).map((part) => Math.round(part).toString(16).padStart(2, "0")).join("");
    };
    const colors = colorsOn(hex("--ppedu-paper", PALETTE.paper), hex("--ppedu-ink", PALETTE.ink), style.fontFamily);
    this.root.classList.toggle("ppedu-dark", colors.dark);
    return colors;
  }

  // pointing

  get target() {
    return this.hovered || this.picked;
  }

  at(x, y) {
    return this.lay && hit(this.scene, this.lay, x, y);
  }

  hover(target) {
    if (sameTarget(target, this.hovered)) return;
    this.hovered = target && (target.op ?? target.gap ?? target.wait) !== undefined ? target : null;
    this.request();
  }

  pick(target) {
    this.focus(sameTarget(target, this.picked) ? null : target);
    if (target) this.calls.onPick?.(target);
  }

  focus(target) {
    this.picked = target;
    this.request();
    if (target) {
      const { title, lines } = this.describe(target);
      this.live.textContent = [title, ...lines].join(". ");
    }
    this.calls.onFocus?.(target);
  }

  /* The rectangle of a target in CSS pixels of the picture: [left, top, width, height]. */
  area(target) {
    return areaOf(this.scene, this.lay, target);
  }

  walk(target, key) {
    return this.lay && walk(this.scene, this.lay, target, key);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const handled = this.calls.keys?.(event) || this.ownKey(event.key);
    if (handled) {
      event.preventDefault(); // the page would scroll
      event.stopPropagation(); // and VS Code would take the key for itself
    }
  }

  ownKey(key) {
    if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(key)) {
      this.hovered = null;
      this.focus(this.walk(this.picked, key));
    } else if (key === " ") this.playing ? this.pause() : this.play();
    else if (key === "Escape") this.picked ? this.focus(null) : this.seek(null);
    else if (key === ".") this.step(1);
    else if (key === ",") this.step(-1);
    else return false;
    return true;
  }

  describe(target) {
    return describe(this.scene, target);
  }

  /* The tip stands to the right of all that is highlighted; else to the left; else below. */
  placeTip() {
    const target = this.target;
    const shown = target && (target.op ?? target.gap ?? target.wait) !== undefined;
    this.tip.hidden = !shown;
    if (!shown) return;
    const { title, lines } = this.describe(target);
    const key = [title, ...lines].join("\n");
    if (key !== this.tip.dataset.text) {
      this.tip.dataset.text = key;
      this.tip.replaceChildren(h("strong", {}, title), ...lines.map((line) => h("div", {}, line)));
    }
    const track = this.scene.tracks[target.track];
    const others = related(track, target).flat().map((op) => ({ track: target.track, rank: rankOf(track, op), op }));
    const areas = [target, ...others].map((one) => areaOf(this.scene, this.lay, one));
    const [left, right] = [Math.min(...areas.map((a) => a[0])), Math.max(...areas.map((a) => a[0] + a[2]))];
    const [wide, high] = [this.tip.offsetWidth, this.tip.offsetHeight];
    const [x, y, , tall] = areas[0];
    const beside = right + 14 + wide <= this.wide ? right + 14 : left - 14 - wide >= 0 ? left - 14 - wide : null;
    const top = beside === null ? Math.max(...areas.map((a) => a[1] + a[3])) + 8 : clamp(y + tall / 2 - high / 2, 0, Math.max(0, this.lay.height - high));
    this.tip.style.left = `${beside ?? clamp(x, 0, Math.max(0, this.wide - wide))}px`;
    this.tip.style.top = `${top}px`;
  }

  // time

  seek(time) {
    this.pause();
    this.moveTo(time);
  }

  moveTo(time) {
    this.time = time === null ? null : clamp(time, 0, this.last());
    this.request();
    this.calls.onTime?.(this.time);
  }

  /* The time at which all is over: the longest makespan. */
  last() {
    return this.scene ? Math.max(0, ...this.scene.tracks.map((track) => track.makespan)) : 0;
  }

  play() {
    if (!this.scene) return;
    if (this.time === null || this.time >= this.last()) this.time = 0;
    this.hovered = this.picked = null;
    this.playing = true;
    this.before = null;
    this.calls.onTime?.(this.time);
    this.request();
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.calls.onTime?.(this.time);
  }

  /* One frame on. The whole takes 6 to 16 seconds, by the number of events; who wishes for less motion gets steps. */
  advance(now) {
    const passed = this.before === null ? 0 : (now - this.before) / 1000;
    if (STILL.matches) {
      if (this.before !== null && passed * this.speed < 0.6) return;
      this.before = now;
      this.time = this.nextEvent(this.time, 1);
    } else {
      this.before = now;
      this.time += (passed * this.speed * this.last()) / clamp(this.events().length / 4, 6, 16);
    }
    if (this.time >= this.last()) {
      this.time = this.last();
      this.playing = false;
    }
    this.calls.onTime?.(this.time);
  }

  step(direction) {
    this.pause();
    this.moveTo(this.nextEvent(this.time ?? (direction > 0 ? -1 : this.last() + 1), direction));
  }

  nextEvent(time, direction) {
    const events = this.events();
    const near = 1e-9 * this.last();
    if (direction > 0) return events.find((event) => event > time + near) ?? this.last();
    return events.findLast((event) => event < time - near) ?? 0;
  }

  /* Every time at which an operation starts or ends. */
  events() {
    if (this.eventsOf !== this.scene) {
      this.eventsOf = this.scene;
      const times = this.scene.tracks.flatMap((track) => [...track.start, ...track.end]);
      this.eventTimes = [...new Set([0, ...times, this.last()])].sort((a, b) => a - b);
    }
    return this.eventTimes;
  }
}

// words

function sameTarget(a, b) {
  return a === b || (a && b && ["track", "rank", "op", "gap", "wait"].every((key) => a[key] === b[key]));
}

/* Two scenes in which an operation's number means the same: then what is pointed out stays. */
function samePlaces(a, b) {
  const shape = (scene) => scene.tracks.map((track) => track.name.join() + track.gaps?.length).join(";");
  return shape(a) === shape(b);
}

/* What a screen reader says of the picture as a whole. */
function spoken(scene) {
  const tracks = scene.tracks.map((track) => [...track.title, track.word].filter(Boolean).join(", "));
  const titles = tracks.filter(Boolean).map((text) => `${text}.`);
  return [...titles, scene.caption, "Arrow keys walk from operation to operation, space plays."].join(" ");
}

/* The words for a target, from what Python computed: {title, lines}. */
function describe(scene, target) {
  const track = scene.tracks[target.track];
  const at = (value) => timeText(scene, value);
  const whose = track.word ? `, ${track.word}` : "";
  if (target.gap !== undefined) {
    const [, from, to, message] = track.gaps[target.gap];
    return { title: `bubble on rank ${target.rank}, ${at(to - from)} long${whose}`, lines: [message] };
  }
  if (target.wait !== undefined) {
    const [, name, , message] = track.waiting[target.wait];
    return { title: `${name} on rank ${target.rank} cannot start yet`, lines: [message] };
  }
  if (target.op === undefined) return { title: `rank ${target.rank}${whose}`, lines: [] };
  const i = target.op;
  const parts = track.name[i].split("&").map((part, n) => {
    const [, stage, , microbatch] = part.match(/^(\d*)([FBIW])(\d+)$/);
    return `${WORD[track.kind[i][n]]} of microbatch ${microbatch}${stage && ` on stage ${stage}`}`;
  });
  const several = /^\d/.test(track.name[i]);
  const name = (j) => (rankOf(track, j) === target.rank ? `its own ${track.name[j]}` : `rank ${rankOf(track, j)}'s ${track.name[j]}`);
  const needs = track.needs[i].map((j, n) => {
    const there = track.there?.[i]?.[n] ?? track.end[j];
    if (!track.arrives) return `${name(j)} (ended at ${at(track.end[j])})`;
    return there > track.end[j] ? `${name(j)} (ended at ${at(track.end[j])}, here at ${at(there)})` : `${name(j)} (there at ${at(there)})`;
  });
  const where = several ? `, rank ${target.rank}` : ` on rank ${target.rank}`;
  const title = `${track.name[i]}: ${parts.length > 1 ? "in one slot, " : ""}${parts.join(" and ")}${where}${whose}`;
  const times = `runs from ${at(track.start[i])} to ${at(track.end[i])}`;
  if (!track.known) return { title, lines: [times] };
  return {
    title,
    lines: [
      times,
      needs.length ? `needs ${needs.join(" and ")}` : "needs nothing from another operation",
      ...(KEEPS[track.kind[i]] ? [KEEPS[track.kind[i]]] : []),
      unblocks(track)[i].length ? `unblocks ${unblocks(track)[i].map(name).join(" and ")}` : "unblocks nothing: no other operation needs it",
    ],
  };
}
