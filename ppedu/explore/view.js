/* The live picture of timelines: what the explorers and the puzzle share. Plain JavaScript, no framework, no bundler:
   assets.py puts paint.js, view.js and panel.js in front of explore.js, compare.js or puzzle.js, and the palette
   (PALETTE, SHAPE, HATCH, WORD, from ppedu/palette.py) in front of all.

   No rule of scheduling lives in JavaScript. What an operation needs, when a tensor was there and why a rank is idle
   comes with the scene, from `dependencies` and `Timeline`.

   A SCENE (ppedu/explore/scene.py makes it: `scene(timelines, ...)`) is all that is drawn:
     number    counts up; the picture says which one it has painted: root.dataset.drawn
     unit      "" or "ms"; label: what the time axis says; whole: every operation ends at a whole number
     span      where the time axis ends; peak: the most in flight of any rank, the one scale of all strips
     caption   a sentence: p, m, predicted or measured
     marks     [{time, label}]: dashed vertical lines ("target 22")                                    (optional)
     budget    activations that a rank may hold: a dashed line in each strip                           (optional)
     tracks    one for each timeline, each with
       group     tracks with the same group share their ranks: predicted over measured, rank by rank
       word      what tells the tracks of a group apart ("predicted", "measured"), or ""
       title     the pieces of its heading, as plot_timeline has them; [] for none
       ranks     p;  makespan; provenance; phases [[name, from, to]];  peaks [one a rank]
       first     first[r] to first[r+1] - 1 are the operations of rank r, by start; ops are numbered over the track
       kind      "F", "B", "I", "W", or "FB" for a pair that overlaps; one an operation
       name      what its box says, fullest first ("F3"); one an operation
       microbatch  one an operation; start, end: its times
       needs     [[operation, ...]]: what it needs;  there: [[time, ...]]: when that was there, where messages take
                 time or are measured (else null: when it ended)
       gaps      [[rank, from, to, message]]: idle times, each with its reason
       curve     [[time, count, time, count, ...]] one a rank: in flight from then on
       path      operations of the critical path
       pale      0 to 1 an operation: later stages of a rank are paler; null where each rank holds one stage
       waiting   [[rank, name, kind, message]]: placed, but it cannot start yet: drawn dashed behind the lane's last
                 operation                                                                             (optional)
     A TARGET is what one can point at: {track, rank} and one of op, gap, wait (indexes), or none of them: the lane.

   THE API
     const view = new TimelineView(host, {onPick(target), onFocus(target), onTime(time), keys(event) -> handled?})
       host gets two stacked canvases (the picture; what moves on it), a tip, and a live region for screen readers.
     view.show(scene)      paints it at the next animation frame, then root.dataset.drawn = scene.number
     view.set({strips, phases, path, large, height})   how it is drawn; strips = in flight under each lane
     view.play() .pause() .playing .step(+1|-1) .seek(time|null) .time     time null: the whole picture, no cursor
     view.focus(target|null), view.target     what is pointed out, by pointer or by keys
     view.describe(target) -> {title, lines}  the words of the tip and of the live region
     view.at(x, y) -> target                  hit test, in CSS pixels of the picture
     view.walk(target, key) -> target         what an arrow key, Home or End leads to
     view.destroy()
   Below that, paint.js is pure: layout(scene, options, width, colors) -> lay; paintScene(ctx, scene, lay, options, colors);
   paintOver(ctx, scene, lay, options, colors, {time, target}); hit(scene, lay, x, y); walk(scene, lay, target, key).

   panel.js has the controls: slider(), choice(), toggle(), button(), Transport (play, step, scrub), Figures,
   RunPanel ("Run for real"), Asker (sends the newest move only when the last answer is back), open(host) (the root:
   theme, keyboard shortcuts of the notebook switched off in it). */
