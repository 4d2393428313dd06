"use strict";
(() => {
  const tip = document.getElementById("tip");
  let marked = null;

  function hide() {
    if (marked) marked.classList.remove("marked");
    marked = null;
    tip.hidden = true;
  }

  function show(mark) {
    if (mark === marked) return;
    hide();
    marked = mark;
    mark.classList.add("marked");
    tip.textContent = mark.getAttribute("data-tip");
    tip.hidden = false;
    place();
  }

  function place() {
    const at = marked.getBoundingClientRect();
    const left = at.left + at.width / 2 - tip.offsetWidth / 2;
    const above = at.top - tip.offsetHeight - 8;
    tip.style.left = Math.max(8, Math.min(left, document.documentElement.clientWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (above > 4 ? above : at.bottom + 8) + "px";
  }

  const chartOf = (node) => (node instanceof Element ? node.closest("svg") : null);

  document.addEventListener("pointerover", (event) => {
    const mark = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (mark) show(mark);
    else hide();
  });

  // A chart is one stop of the tab key; the arrow keys go along its marks.
  document.addEventListener("focusin", (event) => {
    const chart = chartOf(event.target);
    const first = chart && chart.querySelector("[data-tip]");
    if (first && chart.matches(":focus-visible")) show(first);
    else if (!chart) hide();
  });
  document.addEventListener("focusout", hide);
  const follow = () => {
    if (marked && chartOf(document.activeElement) === chartOf(marked)) place();
    else hide();
  };
  document.addEventListener("scroll", follow, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const chart = chartOf(document.activeElement);
    if (!chart) return;
    const marks = [...chart.querySelectorAll("[data-tip]")];
    const here = marks.indexOf(marked);
    const steps = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: marks.length - 1 };
    if (!(event.key in steps) || !marks.length) return;
    event.preventDefault();
    show(marks[Math.max(0, Math.min(steps[event.key], marks.length - 1))]);
  });

  // Paper shows every part.
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details.panel:not([open])")];
    for (const panel of closed) panel.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const panel of closed) panel.open = false;
  });
})();
