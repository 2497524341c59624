/* Pure drawing: where everything of a scene stands (layout), what it looks like (paintScene, paintOver), and what is at a
   point (hit, walk). The scene is described at the top of view.js. Lengths are CSS pixels. The look is plot.py's. */

const SMALLEST = 9; // no text below this size: it goes before it can no longer be read

const mixed = new Map();

/* A colour with a share of another one in it; both as #rrggbb. */
function mix(color, share, other) {
  const key = color + share + other;
  if (!mixed.has(key)) {
    const part = (text, at) => parseInt(text.slice(at, at + 2), 16);
    const blend = (at) => Math.round(part(color, at) + (part(other, at) - part(color, at)) * share);
    mixed.set(key, "#" + [1, 3, 5].map((at) => blend(at).toString(16).padStart(2, "0")).join(""));
  }
  return mixed.get(key);
}

/* Relative luminance, 0 to 1 (WCAG 2). */
function luminance(color) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const c = parseInt(color.slice(at, at + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/* What the theme of the page makes of the palette. paper and ink are the page's own, as #rrggbb. */
function colorsOn(paper, ink, font) {
  const dark = luminance(paper) < 0.2;
  const own = (key, share) => (dark ? mix(PALETTE[key], share, "#ffffff") : PALETTE[key]);
  return {
    paper, ink, font, dark,
    quiet: mix(ink, 0.3, paper),
    idle: dark ? mix(paper, 0.17, ink) : PALETTE.idle,
    strip: dark ? mix(paper, 0.08, ink) : mix(PALETTE.idle, 0.55, PALETTE.paper),
    flight: own("in flight", 0.12),
    F: own("F", 0.14), B: PALETTE.B, I: PALETTE.I, W: PALETTE.W,
  };
}

/* The text colour with the better contrast on a fill. */
function textOn(fill) {
  const [paper, ink, ground] = [PALETTE.paper, PALETTE.ink, fill].map((c) => luminance(c) + 0.05);
  return paper / ground > ground / ink ? PALETTE.paper : PALETTE.ink;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/* A time as the picture says it: no more digits than it has. */
function timeText(scene, value) {
  const digits = Math.abs(value) < 1e4 ? Number(value.toPrecision(4)) : Math.round(value);
  return scene.unit ? `${digits} ${scene.unit}` : `${digits}`;
}

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
  const height = Math.round(clamp(room / rows / (options.strips ? 1.85 : 1.15), 12, 34 * big));
  const strip = options.strips ? Math.round(Math.max(7, height / 2)) : 0;
  const lay = {
    width, height: 0, groups, lanes: [], ranks: [], heads: [], brackets: [], laneOf: scene.tracks.map(() => []),
    font, label: Math.min(13 * big, 0.8 * height + 1), small: 11 * big, head: 14 * big,
  };
  sides(scene, options, lay, ctx, groups);
  const headWidth = width - 4;
  let y = 4;
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
  lay.height = Math.ceil(lay.bottom + 34 * big + (scene.marks?.length ? 4 : 0));
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
  lay.right = options.strips ? Math.ceil(10 + lay.gauge + 6 + widest(["peak 88"], lay.small) + 4) : 10;
}

/* For each kind the text that nearly all of its boxes have room for (its place in the name list), and its size. */
function textLevels(scene, lay, ctx) {
  const rooms = new Map();
  for (const track of scene.tracks) {
    for (let i = 0; i < track.kind.length; i++) {
      const kind = track.kind[i];
      if (!rooms.has(kind)) rooms.set(kind, { wide: [], name: "" });
      const found = rooms.get(kind);
      found.wide.push((track.end[i] - track.start[i]) * lay.scale - 3);
      if (track.name[i].length > found.name.length) found.name = track.name[i];
    }
  }
  const height = lay.lanes.length ? lay.lanes[0].height : 0;
  const levels = {};
  for (const [kind, { wide, name }] of rooms) {
    wide.sort((a, b) => a - b);
    const narrow = wide[Math.floor(wide.length / 10)];
    const tall = 0.72 * height * (kind.length > 1 ? 0.5 : SHAPE[kind][1] - SHAPE[kind][0]);
    const options = kind.length > 1 ? [name.split("&")[0]] : [name, name.replace(/^.*[FBIW]/, "")];
    options.some((text, level) => {
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

// what does not move

function paintScene(ctx, scene, lay, options, colors) {
  ctx.clearRect(0, 0, lay.width, lay.height);
  ctx.textBaseline = "middle";
  paintHeads(ctx, scene, lay, colors);
  for (const lane of lay.lanes) {
    const track = scene.tracks[lane.track];
    ctx.fillStyle = colors.idle;
    ctx.fillRect(lay.x(0), lane.top, (track.makespan || scene.span) * lay.scale, lane.height);
  }
  if (options.phases) paintPhases(ctx, scene, lay, colors);
  const all = [];
  scene.tracks.forEach((track, k) => {
    for (let rank = 0; rank < track.ranks; rank++)
      for (let i = track.first[rank]; i < track.first[rank + 1]; i++) all.push([k, i, rank]);
  });
  paintBoxes(ctx, scene, lay, colors, all, options.path ? pathSets(scene) : null);
  paintWaiting(ctx, scene, lay, colors);
  if (options.strips) paintStrips(ctx, scene, lay, colors);
  if (options.path) paintPath(ctx, scene, lay, colors);
  paintMarks(ctx, scene, lay, colors);
  paintAxis(ctx, scene, lay, colors);
}

function setFont(ctx, lay, size, bold) {
  ctx.font = `${bold ? "600 " : ""}${size}px ${lay.font}`;
}

function paintHeads(ctx, scene, lay, colors) {
  ctx.textAlign = "left";
  ctx.fillStyle = colors.ink;
  setFont(ctx, lay, lay.head, true);
  for (const { y, text } of lay.heads) ctx.fillText(text, 2, y);
  ctx.textAlign = "right";
  setFont(ctx, lay, lay.label, false);
  const pitch = lay.ranks.length > 1 ? lay.ranks[1].y - lay.ranks[0].y : 99;
  const every = Math.max(1, Math.ceil((1.1 * lay.label) / pitch));
  let rank = 0;
  for (const { y, text } of lay.ranks) {
    rank = text === "rank 0" ? 0 : rank + 1;
    if (rank % every === 0) ctx.fillText(text, lay.left - 8 - lay.words, y);
  }
  if (!lay.words || lay.lanes[0].height < 0.9 * lay.small) return;
  setFont(ctx, lay, lay.small - 1, false);
  ctx.fillStyle = colors.quiet;
  for (const lane of lay.lanes) {
    const word = scene.tracks[lane.track].word;
    if (word) ctx.fillText(word, lay.left - 8, lane.top + lane.height / 2);
  }
}

/* A bracket and a name for each phase above the lanes, and its limits as dashes in every lane, by the lane's own times. */
function paintPhases(ctx, scene, lay, colors) {
  ctx.strokeStyle = ctx.fillStyle = colors.quiet;
  ctx.textAlign = "center";
  ctx.lineWidth = 1;
  setFont(ctx, lay, lay.small, false);
  for (const { y, track } of lay.brackets) {
    ctx.beginPath();
    const taken = [];
    const byLength = [...scene.tracks[track].phases].sort((a, b) => a[2] - a[1] - (b[2] - b[1]));
    for (const [name, from, to] of byLength) {
      const [a, b] = [lay.x(from) + 1.5, lay.x(to) - 1.5];
      for (const [x, h] of [[a, -2], [a, -5], [b, -5], [b, -2]]) ctx[x === a && h === -2 ? "moveTo" : "lineTo"](x, y + h);
      const half = (em(ctx, name, false, lay.font) * lay.small) / 2 + 3;
      setFont(ctx, lay, lay.small, false); // em() may have set another one
      let x = (a + b) / 2;
      if (half > (b - a) / 2 && name === "steady") continue;
      if (half > (b - a) / 2) x = name === "warm-up" ? a + half : b - half;
      if (taken.some(([left, right]) => x + half > left && x - half < right)) continue;
      taken.push([x - half, x + half]);
      ctx.fillText(name, x, y - 12);
    }
    ctx.stroke();
  }
  ctx.setLineDash([3, 3]);
  ctx.beginPath();
  for (const lane of lay.lanes) {
    for (const [, from] of scene.tracks[lane.track].phases.slice(1)) {
      ctx.moveTo(lay.x(from), lane.top);
      ctx.lineTo(lay.x(from), lane.top + lane.height);
    }
  }
  ctx.stroke();
  ctx.setLineDash([]);
}

const pathSets = (scene) => scene.tracks.map((track) => new Set(track.path));

/* Boxes with their texts. list: [[track, operation, rank]]. All boxes of one fill are one path: 2000 cost about as much
   as 20. paths: for each track the operations that stay in full colour, where the others are to be paler. */
function paintBoxes(ctx, scene, lay, colors, list, paths) {
  const groups = new Map();
  for (const [k, i, rank] of list) {
    const track = scene.tracks[k];
    const kind = track.kind[i];
    let pale = track.pale ? track.pale[i] : 0;
    if (paths && !paths[k].has(i)) pale = 0.5 + pale / 2;
    for (let part = 0; part < kind.length; part++) {
      const key = kind[part] + pale;
      if (!groups.has(key)) groups.set(key, { kind: kind[part], pale, boxes: [] });
      groups.get(key).boxes.push([k, i, part, boxOf(scene, lay, k, i, rank, part)]);
    }
  }
  for (const { kind, pale, boxes } of groups.values()) {
    const fill = pale ? mix(colors[kind], pale, colors.paper) : colors[kind];
    ctx.beginPath();
    for (const [, , , box] of boxes) rounded(ctx, box);
    ctx.fillStyle = fill;
    ctx.fill();
    const narrow = boxes.reduce((least, [, , , box]) => Math.min(least, box[2]), 99);
    if (HATCH[kind] && narrow > 3) hatch(ctx, boxes, mix(fill, 0.3, PALETTE.ink));
    if (narrow > 3) {
      ctx.strokeStyle = mix(fill, 0.35, colors.ink);
      ctx.lineWidth = 0.6;
      ctx.stroke();
    }
    paintNames(ctx, scene, lay, boxes, textOn(fill));
  }
}

function rounded(ctx, [x, y, w, h]) {
  const radius = Math.min(3, 0.2 * w, 0.2 * h);
  if (radius < 0.8) ctx.rect(x, y, w, h);
  else ctx.roundRect(x, y, w, h, radius);
}

/* The hatch of a kind, inside the boxes of the current path. */
function hatch(ctx, boxes, color) {
  ctx.save();
  ctx.clip();
  ctx.strokeStyle = color;
  ctx.lineWidth = 0.8;
  const path = new Path2D();
  for (const [, , , [x, y, w, h]] of boxes)
    for (let at = -h; at < w; at += 5) {
      path.moveTo(x + at, y + h);
      path.lineTo(x + at + h, y);
    }
  ctx.stroke(path);
  ctx.restore();
}

function paintNames(ctx, scene, lay, boxes, color) {
  ctx.textAlign = "center";
  ctx.fillStyle = color;
  let size = 0;
  for (const [k, i, part, [x, y, w, h]] of boxes) {
    const track = scene.tracks[k];
    const text = lay.texts[track.kind[i]];
    if (!text) continue;
    const name = track.kind[i].length > 1 ? track.name[i].split("&")[part] : track.name[i];
    let said = text.level ? name.replace(/^.*[FBIW]/, "") : name;
    if (em(ctx, said, true, lay.font) * text.size > w - 1) said = said.replace(/^.*[FBIW]/, "");
    if (em(ctx, said, true, lay.font) * text.size > w - 1) continue;
    if (size !== text.size) setFont(ctx, lay, (size = text.size), true);
    else if (!ctx.font.includes(`${size}px`)) setFont(ctx, lay, size, true); // em() measured a new text
    ctx.fillText(said, x + w / 2, y + h / 2 + 0.5);
  }
}

/* Operations that were placed and cannot start yet: dashed, behind the last one of their lane. */
function paintWaiting(ctx, scene, lay, colors) {
  scene.tracks.forEach((track, k) => {
    for (const [w, box] of waitingBoxes(scene, lay, k)) {
      const [, name, kind] = track.waiting[w];
      ctx.setLineDash([4, 3]);
      ctx.lineWidth = 1.4;
      ctx.strokeStyle = mix(colors[kind[0]], 0.2, colors.ink);
      ctx.fillStyle = mix(colors[kind[0]], 0.72, colors.paper);
      ctx.beginPath();
      rounded(ctx, box);
      ctx.fill();
      ctx.stroke();
      ctx.setLineDash([]);
      const size = Math.min(lay.label, box[2] / em(ctx, name, true, lay.font) - 1);
      if (size < SMALLEST) continue;
      ctx.textAlign = "center";
      ctx.fillStyle = colors.ink;
      setFont(ctx, lay, size, true);
      ctx.fillText(name, box[0] + box[2] / 2, box[1] + box[3] / 2 + 0.5);
    }
  });
}

/* [[index in track.waiting, box]]: side by side from the end of what runs, as wide as a text needs. */
function waitingBoxes(scene, lay, k) {
  const track = scene.tracks[k];
  const at = [];
  return (track.waiting || []).map(([rank, , kind], w) => {
    const last = track.first[rank + 1] - 1;
    const end = last >= track.first[rank] ? lay.x(track.end[last]) : lay.x(0);
    const lane = lay.laneOf[k][rank];
    const wide = clamp(lay.scale, 26, 48);
    at[rank] = (at[rank] ?? end + 6) + 2;
    const [top, bottom] = SHAPE[kind[0]];
    const box = [at[rank], lane.top + top * lane.height, wide, (bottom - top) * lane.height];
    at[rank] += wide;
    return [w, box];
  });
}

/* What is in flight under each lane, as a share of the largest peak in the picture: one scale for all. */
function paintStrips(ctx, scene, lay, colors) {
  const scale = Math.max(scene.peak, scene.budget ?? 0) || 1;
  const over = mix(colors.flight, 0.45, colors.ink);
  for (const lane of lay.lanes) {
    const track = scene.tracks[lane.track];
    const [end, base] = [track.makespan || scene.span, lane.stripTop + lane.strip];
    ctx.fillStyle = colors.strip;
    ctx.fillRect(lay.x(0), lane.stripTop, end * lay.scale, lane.strip);
    const area = (least) => {
      ctx.beginPath();
      stairs(track.curve[lane.rank], end, (from, to, count) => {
        const high = Math.max((count * lane.strip) / scale, 0.8);
        const low = (least * lane.strip) / scale;
        if (count > least) ctx.rect(lay.x(from), base - high, (to - from) * lay.scale, high - low);
      });
      ctx.fill();
    };
    ctx.fillStyle = colors.flight;
    area(0);
    if (scene.budget == null) continue;
    ctx.fillStyle = over;
    area(scene.budget);
  }
  if (scene.budget != null) paintBudget(ctx, scene, lay, colors, scale);
}

/* The line up to which a rank may fill its strip. What is above it is darker, and its peak says "over". */
function paintBudget(ctx, scene, lay, colors, scale) {
  ctx.strokeStyle = colors.ink;
  ctx.lineWidth = 1.5;
  ctx.setLineDash([5, 3]);
  ctx.beginPath();
  for (const lane of lay.lanes) {
    const y = lane.stripTop + lane.strip - (scene.budget * lane.strip) / scale;
    ctx.moveTo(lay.x(0), y);
    ctx.lineTo(lay.x(scene.tracks[lane.track].makespan || scene.span), y);
  }
  ctx.stroke();
  ctx.setLineDash([]);
}

/* Each step of a flat curve [time, count, time, count, ...], the last one up to `end`. */
function stairs(curve, end, use) {
  for (let at = 0; at < curve.length; at += 2) {
    const to = at + 2 < curve.length ? curve[at + 2] : end;
    if (to > curve[at]) use(curve[at], to, curve[at + 1]);
  }
}

/* The critical path: its boxes outlined, and a line where it changes rank. */
function paintPath(ctx, scene, lay, colors) {
  ctx.strokeStyle = colors.ink;
  ctx.lineWidth = 2;
  ctx.beginPath();
  scene.tracks.forEach((track, k) => {
    let before = null;
    for (const i of track.path) {
      const lane = lay.laneOf[k][rankOf(track, i)];
      ctx.rect(lay.x(track.start[i]), lane.top, (track.end[i] - track.start[i]) * lay.scale, lane.height);
      if (before && before.lane !== lane) {
        ctx.moveTo(lay.x(before.end), before.lane.top + lane.height / 2);
        ctx.lineTo(lay.x(track.start[i]), lane.top + lane.height / 2);
      }
      before = { lane, end: track.end[i] };
    }
  });
  ctx.stroke();
}

function paintMarks(ctx, scene, lay, colors) {
  ctx.strokeStyle = ctx.fillStyle = colors.ink;
  ctx.textAlign = "right";
  ctx.lineWidth = 1.5;
  for (const { time, label } of scene.marks || []) {
    const x = lay.x(time);
    ctx.setLineDash([6, 4]);
    ctx.beginPath();
    ctx.moveTo(x, lay.lanes.length ? lay.lanes[0].top - 3 : 0);
    ctx.lineTo(x, lay.bottom + 3);
    ctx.stroke();
    ctx.setLineDash([]);
    setFont(ctx, lay, lay.small, true);
    ctx.fillText(label, Math.min(x + 3, lay.width - 2), lay.bottom + 30 * (lay.small / 11));
  }
}

function paintAxis(ctx, scene, lay, colors) {
  const y = lay.bottom;
  const wide = lay.width - lay.left - lay.right;
  ctx.strokeStyle = ctx.fillStyle = colors.quiet;
  ctx.lineWidth = 1;
  ctx.textAlign = "center";
  setFont(ctx, lay, lay.small, false);
  const step = tickStep(scene.span, Math.max(2, Math.min(12, wide / (48 * (lay.small / 11)))), scene.integer);
  ctx.beginPath();
  for (let n = 0; n * step <= scene.span * (1 + 1e-9); n++) {
    const x = lay.x(n * step);
    ctx.moveTo(x, y);
    ctx.lineTo(x, y + 3);
    ctx.fillText(`${Number((n * step).toPrecision(6))}`, x, y + 5 + 0.6 * lay.small);
  }
  ctx.stroke();
  ctx.textAlign = "left";
  ctx.fillText(scene.label, lay.left, y + 8 + 1.7 * lay.small);
}

/* 1, 2 or 5 times a power of ten, so that there are at most so many ticks. */
function tickStep(span, most, integer) {
  for (let power = 10 ** Math.floor(Math.log10(span / most || 1)); ; power *= 10)
    for (const step of [power, 2 * power, 5 * power])
      if (span / step <= most && (!integer || step >= 1)) return step;
}

// what moves: the time cursor, and what is pointed out

/* over: {time, target, focused}. Drawn on a canvas of its own above the picture. */
function paintOver(ctx, scene, lay, options, colors, over) {
  ctx.clearRect(0, 0, lay.width, lay.height);
  ctx.textBaseline = "middle";
  if (over.time !== null && !over.target) paintPresent(ctx, scene, lay, options, colors, over.time);
  if (over.target) paintTarget(ctx, scene, lay, colors, over.target);
  if (over.time !== null) paintCursor(ctx, scene, lay, colors, over.time);
  if (options.strips) paintLevels(ctx, scene, lay, colors, over.time);
}

const alpha = (color, share) => color + Math.round(255 * share).toString(16).padStart(2, "0");

/* The future lies under a veil; what runs now is lit. */
function paintPresent(ctx, scene, lay, options, colors, time) {
  ctx.fillStyle = alpha(colors.paper, 0.74);
  const x = lay.x(time);
  for (const lane of lay.lanes) {
    const end = lay.x(Math.max(scene.tracks[lane.track].makespan, time)) + 1;
    ctx.fillRect(x, lane.top - 1, end - x, lane.height + 2);
    if (lane.strip) ctx.fillRect(x, lane.stripTop, end - x, lane.strip);
  }
  const running = [];
  for (const { track: k, rank } of lay.lanes) {
    const track = scene.tracks[k];
    for (let i = track.first[rank]; i < track.first[rank + 1] && track.start[i] <= time; i++)
      if (time < track.end[i]) running.push([k, i, rank]);
  }
  paintBoxes(ctx, scene, lay, colors, running, null);
  ctx.strokeStyle = colors.ink;
  ctx.lineWidth = 2.5;
  ctx.beginPath();
  for (const [k, i, rank] of running) rounded(ctx, boxOf(scene, lay, k, i, rank, 0));
  ctx.stroke();
}

function paintCursor(ctx, scene, lay, colors, time) {
  const x = lay.x(time);
  ctx.strokeStyle = ctx.fillStyle = colors.ink;
  ctx.lineWidth = 2;
  ctx.beginPath();
  ctx.moveTo(x, lay.lanes.length ? lay.lanes[0].top - 4 : 0);
  ctx.lineTo(x, lay.bottom + 4);
  ctx.stroke();
  const text = timeText(scene, time);
  setFont(ctx, lay, lay.small, true);
  const half = ctx.measureText(text).width / 2 + 4;
  const middle = clamp(x, half + 1, lay.width - half - 1);
  ctx.beginPath();
  ctx.roundRect(middle - half, lay.bottom + 3, 2 * half, 1.5 * lay.small, 3);
  ctx.fill();
  ctx.fillStyle = colors.paper;
  ctx.textAlign = "center";
  ctx.fillText(text, middle, lay.bottom + 3.5 + 0.75 * lay.small);
}

/* Right of each strip: a gauge that fills and drains, and its figure; without a cursor, the peak. */
function paintLevels(ctx, scene, lay, colors, time) {
  const scale = Math.max(scene.peak, scene.budget ?? 0) || 1;
  setFont(ctx, lay, lay.small, false);
  ctx.textAlign = "left";
  const pitch = lay.lanes.length > 1 ? lay.lanes[1].top - lay.lanes[0].top : 99;
  const every = Math.max(1, Math.ceil((1.1 * lay.small) / pitch));
  for (const lane of lay.lanes) {
    const track = scene.tracks[lane.track];
    const peak = track.peaks[lane.rank];
    const now = time === null ? peak : countAt(track.curve[lane.rank], time);
    const x = lay.width - lay.right + 8;
    const [top, high] = [lane.top, lane.height + lane.strip + 2];
    const over = scene.budget != null && now > scene.budget;
    ctx.fillStyle = colors.strip;
    ctx.fillRect(x, top, lay.gauge, high);
    ctx.fillStyle = over ? mix(colors.flight, 0.45, colors.ink) : colors.flight;
    ctx.fillRect(x, top + high * (1 - now / scale), lay.gauge, (high * now) / scale);
    if (lane.rank % every) continue;
    ctx.fillStyle = colors.ink;
    const y = lane.stripTop + Math.min(lane.strip / 2, lane.strip - 0.45 * lay.small);
    setFont(ctx, lay, lay.small, over);
    ctx.fillText(time === null ? `peak ${peak}` : `now ${now}`, x + lay.gauge + 5, y);
    if (over && lane.height > lay.small) ctx.fillText("over", x + lay.gauge + 5, y - 1.15 * lay.small);
  }
}

function countAt(curve, time) {
  let count = 0;
  for (let at = 0; at < curve.length && curve[at] <= time; at += 2) count = curve[at + 1];
  return count;
}

/* For each operation those that need its result: `needs`, read the other way. */
function unblocks(track) {
  if (!track.unblocks) {
    track.unblocks = track.needs.map(() => []);
    track.needs.forEach((needed, i) => needed.forEach((j) => track.unblocks[j].push(i)));
  }
  return track.unblocks;
}

/* The target in full colour with what it needs (solid lines) and unblocks (dashed lines); all else steps back. */
function paintTarget(ctx, scene, lay, colors, target) {
  const track = scene.tracks[target.track];
  if (target.op === undefined && target.gap === undefined && target.wait === undefined) {
    outline(ctx, colors, areaOf(scene, lay, target), 2);
    return;
  }
  ctx.fillStyle = alpha(colors.paper, 0.66);
  for (const lane of lay.lanes) {
    const wide = scene.tracks[lane.track].makespan * lay.scale + 2;
    ctx.fillRect(lay.x(0) - 1, lane.top - 1, wide, lane.height + 2);
  }
  const box = areaOf(scene, lay, target);
  const [before, after] = related(track, target);
  const list = [...before, ...after].map((i) => [target.track, i, rankOf(track, i)]);
  if (target.op !== undefined) list.push([target.track, target.op, target.rank]);
  paintBoxes(ctx, scene, lay, colors, list, null);
  if (target.gap !== undefined) {
    ctx.fillStyle = colors.idle;
    ctx.fillRect(...box);
  }
  const area = (i) => areaOf(scene, lay, { track: target.track, rank: rankOf(track, i), op: i });
  for (const i of before) arrow(ctx, colors, area(i), box, []);
  for (const i of after) arrow(ctx, colors, box, area(i), [5, 4]);
  outline(ctx, colors, box, 3);
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
  return [lay.x(0), lane.top, (track.makespan || scene.span) * lay.scale, lane.height];
}

/* A line of ink on a line of paper: seen on every fill, in both themes. */
function outline(ctx, colors, box, line) {
  for (const [color, width] of [[colors.paper, line + 2.5], [colors.ink, line]]) {
    ctx.strokeStyle = color;
    ctx.lineWidth = width;
    ctx.beginPath();
    rounded(ctx, box);
    ctx.stroke();
  }
}

function arrow(ctx, colors, [ax, ay, aw, ah], [bx, by, bw, bh], dash) {
  const [x0, y0, x1, y1] = [ax + aw, ay + ah / 2, bx, by + bh / 2];
  const bend = Math.max(10, Math.abs(x1 - x0) / 2);
  const close = Math.abs(x1 - x0) < 4 && Math.abs(y1 - y0) > 4;
  const line = new Path2D();
  // Neighbours in time on other ranks: from the middle of one box to the middle of the other, or the line would vanish.
  const [fx, tx] = close ? [x0 - Math.min(8, aw / 2), x1 + Math.min(8, bw / 2)] : [x0, x1];
  line.moveTo(fx, y0);
  if (close) line.lineTo(tx, y1);
  else line.bezierCurveTo(fx + bend, y0, tx - bend, y1, tx, y1);
  const angle = close ? Math.atan2(y1 - y0, tx - fx) : 0;
  const head = new Path2D();
  for (const turn of [2.6, 0, -2.6]) {
    const [x, y] = turn ? [tx + 8 * Math.cos(angle + turn), y1 + 8 * Math.sin(angle + turn)] : [tx, y1];
    head[turn === 2.6 ? "moveTo" : "lineTo"](x, y);
  }
  for (const [color, width] of [[colors.paper, 5.5], [colors.ink, 2.2]]) {
    ctx.strokeStyle = color;
    ctx.lineWidth = width;
    ctx.setLineDash(color === colors.paper ? [] : dash);
    ctx.stroke(line);
    ctx.setLineDash([]);
    ctx.stroke(head);
  }
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
