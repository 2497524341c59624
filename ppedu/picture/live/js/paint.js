/* Pure drawing of what does not move: lanes, boxes, strips, axis, key. The look is that of ppedu/picture/paper, in the
   page's own paper and ink; texts, key and colours come with the scene. */

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
  const theme = Number(dark); // its place in what has two
  const colors = { ...PALETTE, paper, ink, font, dark, theme, quiet: mix(ink, 0.3, paper) };
  for (const [kind, [fill]] of Object.entries(COLORS[theme])) colors[kind] = fill;
  if (!dark) return colors;
  const lighter = { "in flight": mix(PALETTE["in flight"], 0.12, PALETTE.paper) };
  return { ...colors, ...lighter, idle: mix(paper, 0.17, ink), strip: mix(paper, 0.08, ink) };
}

function paintScene(ctx, scene, lay, options, colors) {
  ctx.clearRect(0, 0, lay.width, lay.height);
  ctx.textBaseline = "middle";
  paintHeads(ctx, scene, lay, colors);
  for (const lane of lay.lanes) {
    const track = scene.tracks[lane.track];
    ctx.fillStyle = colors.idle;
    ctx.fillRect(lay.x(0), lane.top, laneEnd(scene, track) * lay.scale, lane.height);
    if (scene.open) paintRoom(ctx, scene, lay, colors, lane);
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
  paintAxis(ctx, scene, lay, options, colors);
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

/* Whether a track shows its critical path: of a group, the last one does (the measured one). */
const showsPath = (scene, k) => scene.tracks[k + 1]?.group !== scene.tracks[k].group;

/* For each track the operations of its critical path, or null where it does not show it. */
const pathSets = (scene) => scene.tracks.map((track, k) => (showsPath(scene, k) && track.path.length ? new Set(track.path) : null));

/* Boxes with their texts. list: [[track, operation, rank]]. All boxes of one fill are one path: 2000 cost about as much
   as 20. paths: for each track the operations that stay in full colour, where the others are to be paler. */
function paintBoxes(ctx, scene, lay, colors, list, paths) {
  const groups = new Map();
  for (const [k, i, rank] of list) {
    const track = scene.tracks[k];
    const aside = paths?.[k] && !paths[k].has(i) ? 2 : 0; // which of the colours: off the critical path, the paler ones
    track.shade[i].forEach((shade, part) => {
      const [fill, text] = track.colors[colors.theme][shade].slice(aside);
      const [kind, key] = [track.kind[i][part], track.kind[i][part] + fill];
      if (!groups.has(key)) groups.set(key, { kind, fill, text, boxes: [] });
      groups.get(key).boxes.push([k, i, part, boxOf(scene, lay, k, i, rank, part)]);
    });
  }
  for (const { kind, fill, text, boxes } of groups.values()) {
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
    paintNames(ctx, scene, lay, boxes, text);
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
    const fits = (level) => level >= text.level && em(ctx, TEXTS[level](name), true, lay.font) * text.size <= w - 1;
    const level = [0, 1, 2, 3].find(fits);
    if (level === undefined) continue;
    const said = TEXTS[level](name);
    if (size !== text.size) setFont(ctx, lay, (size = text.size), true);
    else if (!ctx.font.includes(`${size}px`)) setFont(ctx, lay, size, true); // em() measured a new text
    ctx.fillText(said, x + w / 2, y + h / 2 + 1);
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

/* What a rank may hold: the scene's budget is one number for all, or one a rank; null for none. */
const budgetOf = (scene, rank) => (Array.isArray(scene.budget) ? scene.budget[rank] : scene.budget);

/* The scale of all strips: the most that any rank holds, or may hold. */
const mostHeld = (scene) => Math.max(1, scene.peak, ...[scene.budget ?? 0].flat());

/* What is in flight under each lane, as a share of the largest peak in the picture: one scale for all. */
function paintStrips(ctx, scene, lay, colors) {
  const scale = mostHeld(scene);
  const over = mix(colors["in flight"], 0.45, colors.ink);
  for (const lane of lay.lanes) {
    const track = scene.tracks[lane.track];
    const [end, base] = [laneEnd(scene, track), lane.stripTop + lane.strip];
    ctx.fillStyle = colors.strip;
    ctx.fillRect(lay.x(0), lane.stripTop, (scene.open ? scene.span : end) * lay.scale, lane.strip);
    const area = (least) => {
      ctx.beginPath();
      stairs(track.curve[lane.rank], end, (from, to, count) => {
        const high = Math.max((count * lane.strip) / scale, 0.8);
        const low = (least * lane.strip) / scale;
        if (count > least) ctx.rect(lay.x(from), base - high, (to - from) * lay.scale, high - low);
      });
      ctx.fill();
    };
    ctx.fillStyle = colors["in flight"];
    area(0);
    const budget = budgetOf(scene, lane.rank);
    if (budget == null) continue;
    ctx.fillStyle = over;
    area(budget);
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
    const y = lane.stripTop + lane.strip - (budgetOf(scene, lane.rank) * lane.strip) / scale;
    ctx.moveTo(lay.x(0), y);
    ctx.lineTo(lay.x(scene.open ? scene.span : laneEnd(scene, scene.tracks[lane.track])), y);
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
    if (!showsPath(scene, k)) return;
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

/* What is left of a lane up to the end of the axis: room to fill, no bubble yet. */
function paintRoom(ctx, scene, lay, colors, lane) {
  const from = lay.x(laneEnd(scene, scene.tracks[lane.track]));
  ctx.strokeStyle = colors.idle;
  ctx.lineWidth = 1;
  ctx.strokeRect(from, lane.top + 0.5, lay.x(scene.span) - from, lane.height - 1);
}

function paintMarks(ctx, scene, lay, colors) {
  ctx.strokeStyle = ctx.fillStyle = colors.ink;
  ctx.textAlign = "right";
  ctx.lineWidth = 1.5;
  for (const { time, label } of scene.marks || []) {
    const x = lay.x(time);
    ctx.setLineDash([6, 4]);
    ctx.beginPath();
    ctx.moveTo(x, lay.heads.length ? lay.lanes[0].top - 3 : 1.5 * lay.small);
    ctx.lineTo(x, lay.bottom + 3);
    ctx.stroke();
    ctx.setLineDash([]);
    setFont(ctx, lay, lay.small, true);
    ctx.fillText(label, Math.min(x + 3, lay.width - 2), 0.8 * lay.small);
  }
}

function paintAxis(ctx, scene, lay, options, colors) {
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
    ctx.fillText(numberText(n * step, 6), x, y + 5 + 0.6 * lay.small);
  }
  ctx.stroke();
  ctx.textAlign = "left";
  ctx.fillText(scene.label, lay.left, y + 8 + 1.7 * lay.small);
  paintKey(ctx, scene, lay, options, colors, y + 8 + 1.7 * lay.small);
}

/* What the shapes mean, from the line of the axis label on. */
function paintKey(ctx, scene, lay, options, colors, first) {
  const size = lay.small;
  const [w, high] = [1.5 * size, 1.3 * size];
  for (const [kind, word, parts, x, line] of lay.key) {
    const y = first + 1.7 * size * line;
    for (const [letter, top, bottom] of parts) {
      const box = [x, y + (top - 0.5) * high, w, (bottom - top) * high];
      ctx.beginPath();
      ctx.rect(...box);
      ctx.fillStyle = colors[letter];
      ctx.fill();
      if (HATCH[letter]) hatch(ctx, [[0, 0, 0, box]], mix(colors[letter], 0.3, PALETTE.ink));
      if (kind === "path") {
        ctx.strokeStyle = colors.ink;
        ctx.lineWidth = 2;
        ctx.stroke();
      }
      if (kind !== letter || !COLORS[colors.theme][kind]) continue;
      setFont(ctx, lay, 0.85 * size, true);
      ctx.fillStyle = COLORS[colors.theme][kind][1];
      ctx.textAlign = "center";
      ctx.fillText(kind, x + w / 2, box[1] + box[3] / 2 + 0.5);
    }
    ctx.textAlign = "left";
    setFont(ctx, lay, size, false);
    ctx.fillStyle = colors.quiet;
    ctx.fillText(word, x + w + 5, y);
  }
}

/* 1, 2 or 5 times a power of ten, so that there are at most so many ticks. */
function tickStep(span, most, integer) {
  for (let power = 10 ** Math.floor(Math.log10(span / most || 1)); ; power *= 10)
    for (const step of [power, 2 * power, 5 * power])
      if (span / step <= most && (!integer || step >= 1)) return step;
}
