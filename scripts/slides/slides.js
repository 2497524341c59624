// Turns the pages: arrows, Page Up and Down, Space, Home, End, a click, a swipe. N shows the speaker's notes.
"use strict";
const slides = [...document.querySelectorAll("section")];
const main = document.querySelector("main");
const SMALLEST = 0.6; // of the wished size of text: what does not fit then is cut off, and `data-overflow` says so

// Where in the talk a slide is: the heading that it stands under.
let section = "";
for (const slide of slides) {
  const heading = slide.querySelector("h2");
  section = heading ? heading.firstChild.textContent : section;
  slide.dataset.section = heading ? "" : section;
}

document.body.classList.add("shown");

// A table keeps its lines: where they are wider than the slide its letters get smaller; sentences wrap instead.
function narrow(pre) {
  pre.style.fontSize = "";
  const share = pre.clientWidth / pre.scrollWidth;
  pre.classList.toggle("long", share < 0.74);
  if (share < 1 && share >= 0.74) pre.style.fontSize = `${parseFloat(getComputedStyle(pre).fontSize) * share * 0.995}px`;
}

function fit(slide) {
  const inner = slide.querySelector(".fit");
  const pictures = [...slide.querySelectorAll(".output_png img")];
  const room = slide.clientHeight - 36 - 52;
  const height = (share) => pictures.forEach((picture) => { picture.style.maxHeight = `${share}px`; });
  let size = 1;
  for (; size > SMALLEST; size -= 0.02) {
    slide.style.setProperty("--fit", size.toFixed(2));
    slide.querySelectorAll(".output_text pre").forEach(narrow);
    height(0);
    const rest = inner.scrollHeight; // pictures take what the text leaves, if that is enough for them
    height(Math.max(pictures.length > 1 ? 240 : 440, (room - rest) / (pictures.length || 1)));
    if (inner.scrollHeight <= room && inner.scrollWidth <= inner.clientWidth) break;
  }
  slide.dataset.fit = size.toFixed(2);
  if (inner.scrollHeight > room) slide.dataset.overflow = String(inner.scrollHeight - room);
}

function enlarge() {
  const scale = Math.min(innerWidth / 1280, innerHeight / 720);
  main.style.transform = `translate(${(innerWidth - 1280 * scale) / 2}px, ${(innerHeight - 720 * scale) / 2}px) scale(${scale})`;
}

let here = 0;
function show(number) {
  here = Math.max(0, Math.min(slides.length - 1, number));
  slides.forEach((slide, i) => slide.classList.toggle("here", i === here));
  document.getElementById("place").textContent = `${here + 1} / ${slides.length}`;
  document.getElementById("section").textContent = slides[here].dataset.section;
  history.replaceState(null, "", `#${here + 1}`);
}

function step(forward) {
  const fragments = [...slides[here].querySelectorAll(".fragment")];
  const next = forward ? fragments.find((f) => !f.classList.contains("seen")) : fragments.reverse().find((f) => f.classList.contains("seen"));
  if (next) next.classList.toggle("seen", forward);
  else show(here + (forward ? 1 : -1));
}

const KEYS = { ArrowRight: true, ArrowDown: true, PageDown: true, " ": true, ArrowLeft: false, ArrowUp: false, PageUp: false };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in KEYS) step(event.shiftKey ? false : KEYS[event.key]);
  else if (event.key === "Home") show(0);
  else if (event.key === "End") show(slides.length - 1);
  else if (event.key.toLowerCase() === "n") document.body.classList.toggle("speaking");
  else return;
  event.preventDefault();
});
addEventListener("click", (event) => {
  if (!event.target.closest("a") && !String(getSelection())) step(event.clientX > innerWidth / 3);
});
let touched = 0;
addEventListener("touchstart", (event) => { touched = event.changedTouches[0].clientX; }, { passive: true });
addEventListener("touchend", (event) => {
  const way = event.changedTouches[0].clientX - touched;
  if (Math.abs(way) > 40) step(way < 0);
});
addEventListener("resize", enlarge);
addEventListener("hashchange", () => show(Number(location.hash.slice(1)) - 1 || 0));

enlarge();
show(Number(location.hash.slice(1)) - 1 || 0);
Promise.all([...document.images].map((image) => image.decode().catch(() => {}))).then(() => {
  slides.forEach(fit);
  document.body.dataset.ready = String(slides.length);
});
