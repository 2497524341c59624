/* Pure drawing of what moves, on a canvas of its own above the picture: the time cursor, and what is pointed out. */

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
  const text = cursorText(scene, time);
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
  const scale = mostHeld(scene);
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
    const over = now > (budgetOf(scene, lane.rank) ?? Infinity);
    ctx.fillStyle = colors.strip;
    ctx.fillRect(x, top, lay.gauge, high);
    ctx.fillStyle = over ? mix(colors["in flight"], 0.45, colors.ink) : colors["in flight"];
    ctx.fillRect(x, top + high * (1 - now / scale), lay.gauge, (high * now) / scale);
    if (lane.rank % every) continue;
    ctx.fillStyle = colors.ink;
    const y = lane.stripTop + Math.min(lane.strip / 2, lane.strip - 0.45 * lay.small);
    setFont(ctx, lay, lay.small, over);
    ctx.fillText(time === null ? `peak ${heldText(peak)}` : `now ${heldText(now)}`, x + lay.gauge + 5, y);
    if (over && lane.height > lay.small) ctx.fillText("over", x + lay.gauge + 5, y - 1.15 * lay.small);
  }
}

function countAt(curve, time) {
  let count = 0;
  for (let at = 0; at < curve.length && curve[at] <= time; at += 2) count = curve[at + 1];
  return count;
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
  // A bubble ends when what it waits for is there: the arrow goes to the operation that then starts.
  const end = target.gap !== undefined && after.length ? area(after[0]) : box;
  for (const i of before) arrow(ctx, colors, area(i), end, []);
  if (target.op !== undefined) for (const i of after) arrow(ctx, colors, box, area(i), [5, 4]);
  outline(ctx, colors, box, 3);
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

/* From the end of one box to the start of another: level and curved, or, for neighbours in time on other ranks, straight
   from edge to edge, since a curve would have no room. */
function arrow(ctx, colors, [ax, ay, aw, ah], [bx, by, bw, bh], dash) {
  const steep = bx - ax - aw < 6;
  const down = by > ay ? 1 : -1;
  const [x0, y0] = steep ? [ax + aw - Math.min(8, aw / 2), down > 0 ? ay + ah : ay] : [ax + aw, ay + ah / 2];
  const [x1, y1] = steep ? [bx + Math.min(8, bw / 2), down > 0 ? by : by + bh] : [bx, by + bh / 2];
  const bend = Math.max(10, (x1 - x0) / 2);
  const line = new Path2D();
  line.moveTo(x0, y0);
  if (steep) line.lineTo(x1, y1);
  else line.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
  const angle = steep ? Math.atan2(y1 - y0, x1 - x0) : 0;
  const head = new Path2D();
  head.moveTo(x1 + 9 * Math.cos(angle + 2.6), y1 + 9 * Math.sin(angle + 2.6));
  head.lineTo(x1, y1);
  head.lineTo(x1 + 9 * Math.cos(angle - 2.6), y1 + 9 * Math.sin(angle - 2.6));
  for (const [color, width] of [[colors.paper, 5.5], [colors.ink, 2.4]]) {
    ctx.strokeStyle = color;
    ctx.lineWidth = width;
    ctx.setLineDash(color === colors.paper ? [] : dash);
    ctx.stroke(line);
    ctx.setLineDash([]);
    ctx.stroke(head);
  }
}
