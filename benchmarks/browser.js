/* Run inside the page by browser.py: how long it takes from a move to the painted picture, in milliseconds. */

(() => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));

  /* A frame is put together after the callbacks of its animation frame; a message posted in one of them comes after that. */
  const framed = () =>
    new Promise((done) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = done;
      port2.postMessage(0);
    });

  const answered = (root) => +root.dataset.answered >= +root.dataset.asked && !root.view.stale;

  /* Calls use([drawn, shown]) when the answer to the newest move is painted, and its frame has left the page. */
  function watch(root, use) {
    const seen = new MutationObserver(async () => {
      const [asked, drawn] = [root.dataset.asked, performance.now()];
      if (!answered(root)) return;
      await framed();
      if (asked === root.dataset.asked) use([drawn, performance.now()]);
    });
    seen.observe(root, { attributes: true, attributeFilter: ["data-answered", "data-drawn"] });
    return seen;
  }

  function move(slider, value) {
    slider.value = value;
    if (+slider.value !== value) throw new Error(`the slider does not go to ${value}`);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /* Single moves, each when all is quiet again: [[until it is painted, until its frame has left the page], ...]. */
  async function moves(root, slider, values, pause) {
    const times = [];
    for (const value of values) {
      const before = root.dataset.drawn;
      const start = performance.now();
      const end = new Promise((done) => {
        const seen = watch(root, (ends) => (seen.disconnect(), done(ends)));
      });
      move(slider, value);
      times.push((await end).map((time) => time - start));
      if (root.dataset.drawn === before) throw new Error(`nothing new was painted for ${value}`);
      await wait(pause);
    }
    return times;
  }

  /* A drag: moves that do not wait for answers. From the last of them until its own picture is painted. */
  async function burst(root, slider, values, gap) {
    let [start, end] = [0, 0];
    const seen = watch(root, ([drawn]) => (end = drawn));
    for (const value of values) {
      await wait(gap);
      end = 0;
      start = performance.now();
      move(slider, value);
    }
    while (!end) await wait(1);
    seen.disconnect();
    return end - start;
  }

  /* The same by an ipywidgets.Image: from the number's change until the new image is loaded. */
  async function images(input, image, values, pause) {
    const times = [];
    for (const value of values) {
      const loaded = new Promise((done) => image.addEventListener("load", done, { once: true }));
      const start = performance.now();
      input.value = value;
      for (const name of ["input", "change"]) input.dispatchEvent(new Event(name, { bubbles: true }));
      await loaded;
      times.push(performance.now() - start);
      await wait(pause);
    }
    return times;
  }

  window.ppeduMeasure = { moves, burst, images };
})();
