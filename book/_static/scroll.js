// A box that scrolls sideways says so: the end that hides something fades (custom.css), and the box takes the focus, so
// that the arrow keys scroll it.
(() => {
  const BOXES = ".math, mjx-container, .scrolls, .measured, .bd-article table, .bd-article pre";
  const ROUNDING = 1; // pixel

  const scrolls = (box) => ["auto", "scroll"].includes(getComputedStyle(box).overflowX);

  const mark = (box) => {
    const hidden = box.scrollWidth - box.clientWidth;
    box.classList.toggle("more-left", hidden > ROUNDING && box.scrollLeft > ROUNDING);
    box.classList.toggle("more-right", box.scrollLeft < hidden - ROUNDING);
    if (hidden > 0) box.tabIndex = 0; // by a pixel too: whatever scrolls must be in reach of the keys
    else if (box.matches(".math, mjx-container")) box.removeAttribute("tabindex"); // a formula that fits is no tab stop
  };

  const start = () => {
    const sizes = new ResizeObserver((entries) => entries.forEach((entry) => mark(entry.target)));
    [...document.querySelectorAll(BOXES)].filter(scrolls).forEach((box) => {
      mark(box);
      sizes.observe(box); // a fold opens, the window changes
      box.addEventListener("scroll", () => mark(box), { passive: true });
    });
  };

  addEventListener("load", () => (window.MathJax?.startup?.promise ?? Promise.resolve()).then(start));
})();
