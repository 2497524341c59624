/* Where everything of a scene stands for a width (layout), and what is at a point or next to it (hit, walk). Pure.
   The scene is described at the top of view.js. Lengths are CSS pixels. */

const SMALLEST = 9; // no text below this size: it goes before it can no longer be read

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/* So many significant digits, but every digit before the point, as ppedu.core.format.number says it. */
const numberText = (value, digits) => `${Math.abs(value) < 10 ** digits ? Number(value.toPrecision(digits)) : Math.round(value)}`;

/* A time as the picture says it: no more digits than it has. */
const timeText = (scene, value) => `${numberText(value, 4)} ${scene.unit}`.trim();

/* The time of the cursor: as exact as one can point. */
const cursorText = (scene, value) => `${Number(value.toFixed(scene.span >= 200 ? 1 : 2))} ${scene.unit}`.trim();

/* How much is in flight: a whole number, or shares of a larger unit. */
const heldText = (count) => numberText(count, 3);

// where things stand

const widths = new Map();

/* Width of a text per pixel of its font size. */
function em(ctx, text, bold, font) {
  const key = (bold ? "b" : "n") + font + text;
  if (!widths.has(key)) {
    ctx.font = `${bold ? "600 " : ""}100px ${font}`;
    widths.set(key, ctx.measureText(text).width / 100);
  }
  return widths.get(key);
}

/* Pieces joined to lines of a width, whole pieces only. */
function wrapped(ctx, pieces, gap, width, size, bold, font) {
  const lines = [];
  for (const piece of pieces) {
    const longer = lines.length ? lines[lines.length - 1] + gap + piece : piece;
    if (lines.length && em(ctx, longer, bold, font) * size <= width) lines[lines.length - 1] = longer;
    else lines.push(piece);
  }
  return lines;
}

/* Where a lane's ground ends: with the timeline. The lanes of an empty one are whole, unless they are still being filled. */
const laneEnd = (scene, track) => track.makespan || (scene.open ? 0 : scene.span);

/* Tracks that share their ranks, in groups: [[0, 1], [2]]. */
function grouped(scene) {
  const groups = [];
  scene.tracks.forEach((track, k) => {
    const last = groups[groups.length - 1];
    if (last && scene.tracks[last[0]].group === track.group) last.push(k);
    else groups.push([k]);
  });
  return groups;
}

/* Everything's place, for a width. options: strips, phases, large, height (what lanes may take together, if they can). */
function layout(scene, options, width, ctx, font) {
  const big = options.large ? 1.35 : 1;
  const groups = grouped(scene);
  const rows = scene.tracks.reduce((sum, track) => sum + track.ranks, 0) || 1;
  const room = (options.height || 420) * big;
  const height = Math.round(clamp(room / rows / (options.strips ? 1.9 : 1.15), 12, 34 * big));
  const strip = options.strips ? Math.round(Math.max(8, 0.56 * height)) : 0;
  const lay = {
    width, height: 0, groups, lanes: [], ranks: [], heads: [], brackets: [], laneOf: scene.tracks.map(() => []),
    font, label: Math.min(13 * big, 0.8 * height + 1), small: 11 * big, head: 14 * big,
  };
  sides(scene, options, lay, ctx, groups);
  const headWidth = width - 4;
  let y = scene.marks?.length ? 4 + 15 * big : 4; // marks have their names at the top
  for (const group of groups) {
    const first = scene.tracks[group[0]];
    if (first.title.length) {
      if (lay.heads.length) y += 14 * big;
      for (const line of wrapped(ctx, first.title, "   ", headWidth, lay.head, true, font)) {
        lay.heads.push({ y: y + 10 * big, text: line });
        y += 20 * big;
      }
      y += 2;
    }
    if (options.phases && first.phases.length) {
      y += 20 * big;
      lay.brackets.push({ y, track: group[0] });
    }
    for (let rank = 0; rank < first.ranks; rank++) {
      const top = y;
      for (const k of group) {
        const lane = { track: k, rank, top: y, height, strip, stripTop: y + height + 2 };
        lay.lanes.push(lane);
        lay.laneOf[k][rank] = lane;
        y += height + (strip ? strip + 4 : 0) + Math.max(1, Math.round(0.1 * height));
      }
      lay.ranks.push({ y: (top + lay.lanes[lay.lanes.length - 1].top + height) / 2, text: `rank ${rank}` });
      if (group.length > 1) y += Math.round(0.3 * height);
      if (strip) y += Math.round(0.14 * height);
    }
  }
  lay.bottom = y + 2;
  placeKey(scene, options, lay, ctx);
  lay.height = Math.ceil(lay.bottom + 34 * big + 1.7 * lay.small * lay.keyLines);
  lay.scale = (width - lay.left - lay.right) / (scene.span || 1);
  lay.x = (time) => lay.left + time * lay.scale;
  lay.texts = textLevels(scene, lay, ctx);
  return lay;
}

/* The margins at both sides: rank labels and what a row is; the figure of what is in flight, with its gauge. */
function sides(scene, options, lay, ctx, groups) {
  const widest = (texts, size) => Math.max(0, ...texts.map((text) => em(ctx, text, false, lay.font) * size));
  const most = Math.max(...scene.tracks.map((track) => track.ranks));
  const words = groups.some((group) => group.length > 1) ? scene.tracks.map((track) => track.word) : [];
  lay.words = words.length && lay.width > 560 ? widest(words, lay.small - 1) + 8 : 0;
  lay.left = Math.ceil(8 + widest([`rank ${most - 1}`], lay.label) + 8 + lay.words);
  lay.gauge = options.strips ? 7 : 0;
  lay.right = options.strips ? Math.ceil(10 + lay.gauge + 6 + widest(scene.tracks.flatMap((track) => ["peak 88", ...track.peaks.map((peak) => `peak ${heldText(peak)}`)]), lay.small) + 4) : 10;
}

/* The scene's key, each entry with its left and its line. It stands right of the axis label (line 0), or on lines of its own
   below it where that leaves too little room. */
function placeKey(scene, options, lay, ctx) {
  const hidden = { "in flight": !options.strips, path: !options.path };
  const key = scene.key.filter(([kind]) => !hidden[kind]);
  const wide = key.map(([, word]) => 1.5 * lay.small + 5 + em(ctx, word, false, lay.font) * lay.small + 14);
  const whole = wide.reduce((sum, one) => sum + one, -14);
  const end = lay.width - lay.right;
  const beside = end - whole >= lay.left + em(ctx, scene.label, false, lay.font) * lay.small + 20;
  let [x, line] = beside ? [end - whole, 0] : [lay.left, 1];
  lay.key = key.map((one, n) => {
    if (!beside && x > lay.left && x + wide[n] - 14 > end) [x, line] = [lay.left, line + 1];
    x += wide[n];
    return [...one, x - wide[n], line];
  });
  lay.keyLines = line;
}

/* What a box can say, the fullest first: what is left of its name without each pattern of SHORTER. */
const TEXTS = SHORTER.map((pattern) => new RegExp(pattern, "g")).map((out) => (name) => name.replace(out, ""));

/* For each kind the text that nearly all of its boxes have room for (its place in TEXTS), and its size. */
function textLevels(scene, lay, ctx) {
  const rooms = new Map();
  for (const track of scene.tracks) {
    for (let i = 0; i < track.kind.length; i++) {
      const kind = track.kind[i];
      if (!rooms.has(kind)) rooms.set(kind, { wide: [], name: "" });
      const found = rooms.get(kind);
      found.wide.push((track.end[i] - track.start[i]) * lay.scale - 3);
      for (const name of kind.length > 1 ? track.name[i].split("&") : [track.name[i]])
        if (name.length > found.name.length) found.name = name;
    }
  }
  const height = lay.lanes.length ? lay.lanes[0].height : 0;
  const levels = {};
  for (const [kind, { wide, name }] of rooms) {
    wide.sort((a, b) => a - b);
    const narrow = wide[Math.floor(wide.length / 10)];
    const tall = 0.72 * height * (kind.length > 1 ? 0.5 : SHAPE[kind][1] - SHAPE[kind][0]);
    TEXTS.some((shorten, level) => {
      const text = shorten(name);
      const size = Math.min(lay.label + 1, tall, narrow / em(ctx, text, true, lay.font));
      if (size >= SMALLEST) levels[kind] = { level, size };
      return size >= SMALLEST;
    });
  }
  const smallest = Math.min(...Object.values(levels).map((level) => level.size));
  for (const level of Object.values(levels)) level.size = Math.min(level.size, 1.3 * smallest);
  return levels;
}

/* The rectangle of an operation, or of one part of an overlapped pair: [left, top, width, height]. */
function boxOf(scene, lay, k, i, rank, part) {
  const track = scene.tracks[k];
  const lane = lay.laneOf[k][rank];
  const kind = track.kind[i];
  const [top, bottom] = kind.length > 1 ? [part / 2, (part + 1) / 2] : SHAPE[kind];
  const left = lay.x(track.start[i]);
  const wide = lay.x(track.end[i]) - left;
  const gap = Math.min(0.7, 0.08 * wide);
  return [left + gap, lane.top + top * lane.height, Math.max(wide - 2 * gap, 0.3), (bottom - top) * lane.height];
}

/* The rank of an operation: `first` cuts the operations into ranks. */
function rankOf(track, i) {
  let rank = 0;
  while (rank + 1 < track.ranks && track.first[rank + 1] <= i) rank++;
  return rank;
}

/* [[index in track.waiting, box]]: side by side from the end of what runs, as wide as a text needs where there is room. */
function waitingBoxes(scene, lay, k) {
  const track = scene.tracks[k];
  const at = [];
  const waiting = track.waiting || [];
  return waiting.map(([rank, , kind], w) => {
    const last = track.first[rank + 1] - 1;
    const end = last >= track.first[rank] ? lay.x(track.end[last]) : lay.x(0);
    const lane = lay.laneOf[k][rank];
    const room = (lay.x(scene.span) - end - 6) / waiting.filter(([other]) => other === rank).length - 2;
    const wide = Math.max(Math.min(clamp(lay.scale, 26, 48), room), 4);
    at[rank] = (at[rank] ?? end + 6) + 2;
    const [top, bottom] = SHAPE[kind[0]];
    const box = [at[rank], lane.top + top * lane.height, wide, (bottom - top) * lane.height];
    at[rank] += wide;
    return [w, box];
  });
}

/* Operations to show with a target: those before it, and those after. */
function related(track, target) {
  if (target.op !== undefined) return [track.needs[target.op], unblocks(track)[target.op]];
  if (target.gap !== undefined) {
    const [, , , , next, waited] = track.gaps[target.gap];
    return [waited >= 0 ? [waited] : [], next >= 0 ? [next] : []];
  }
  return [[], []];
}

/* The rectangle of a target. */
function areaOf(scene, lay, target) {
  const track = scene.tracks[target.track];
  const lane = lay.laneOf[target.track][target.rank];
  if (target.op !== undefined) {
    const [x, y, w, h] = boxOf(scene, lay, target.track, target.op, target.rank, 0);
    return track.kind[target.op].length > 1 ? [x, y, w, 2 * h] : [x, y, w, h];
  }
  if (target.gap !== undefined) {
    const [, from, to] = track.gaps[target.gap];
    return [lay.x(from) + 1, lane.top, Math.max(1, (to - from) * lay.scale - 2), lane.height];
  }
  if (target.wait !== undefined) return waitingBoxes(scene, lay, target.track)[target.wait][1];
  return [lay.x(0), lane.top, laneEnd(scene, track) * lay.scale, lane.height];
}

/* For each operation those that need its result: `needs`, read the other way. */
function unblocks(track) {
  if (!track.unblocks) {
    track.unblocks = track.needs.map(() => []);
    track.needs.forEach((needed, i) => needed.forEach((j) => track.unblocks[j].push(i)));
  }
  return track.unblocks;
}

// what is at a point, and what is next to it

/* The target at a point, or null outside of all lanes. */
function hit(scene, lay, x, y) {
  const lane = lay.lanes.find((l) => y >= l.top - 1 && y <= l.top + l.height + (l.strip ? l.strip + 3 : 0));
  if (!lane || x < lay.left - 2) return null;
  const { track: k, rank } = lane;
  const track = scene.tracks[k];
  const place = { track: k, rank };
  const wait = waitingBoxes(scene, lay, k).find(([w, b]) => track.waiting[w][0] === rank && x >= b[0] && x <= b[0] + b[2]);
  if (wait) return { ...place, wait: wait[0] };
  const item = items(track, rank).find(([from, to]) => x >= lay.x(from) && x < lay.x(to));
  return item ? { ...place, ...item[2] } : place;
}

/* Operations and gaps of a rank in order of time: [[from, to, {op} or {gap}]]. */
function items(track, rank) {
  track.items = track.items || [];
  if (!track.items[rank]) {
    const found = [];
    for (let op = track.first[rank]; op < track.first[rank + 1]; op++)
      found.push([track.start[op], track.end[op], { op }]);
    track.gaps.forEach(([r, from, to], gap) => r === rank && found.push([from, to, { gap }]));
    track.items[rank] = found.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  }
  return track.items[rank];
}

/* Where a key leads to: left and right along the rank, bubbles included; up and down to what runs then on another rank. */
function walk(scene, lay, target, key) {
  if (!lay.lanes.length) return null;
  const start = target || { track: 0, rank: 0 };
  const at = lay.lanes.findIndex((lane) => lane.track === start.track && lane.rank === start.rank);
  const list = items(scene.tracks[start.track], start.rank);
  const found = list.findIndex(([, , item]) => target && item.op === target.op && item.gap === target.gap);
  const to = (lane, item) => ({ track: lane.track, rank: lane.rank, ...(item ? item[2] : {}) });
  const lane = lay.lanes[Math.max(at, 0)];
  if (key === "Home") return to(lane, list[0]);
  if (key === "End") return to(lane, list[list.length - 1]);
  if (!target) return to(lane, list.find(([, , item]) => item.op !== undefined) || list[0]);
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const next = found < 0 ? 0 : clamp(found + (key === "ArrowRight" ? 1 : -1), 0, list.length - 1);
    return to(lane, list[next]);
  }
  const other = lay.lanes[clamp(at + (key === "ArrowDown" ? 1 : -1), 0, lay.lanes.length - 1)];
  if (other === lane) return target;
  const time = found < 0 ? 0 : (list[found][0] + list[found][1]) / 2;
  const there = items(scene.tracks[other.track], other.rank);
  return to(other, there.find(([from, end]) => from <= time && time < end) || there[time > 0 ? there.length - 1 : 0]);
}
