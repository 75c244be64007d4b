// What every page does once it is there.
(() => {
  // The reader's own hand on the page: from then on nothing moves it any more.
  let touched = false;
  for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"]) {
    addEventListener(kind, () => { touched = true; }, { once: true, passive: true, capture: true });
  }

  // Formulas grow while they are typeset, so the place that the address names has moved: go there again.
  function land() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target || touched) return;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.scrollIntoView({ behavior: "instant" });
  }

  // sphinx-togglebutton calls every button "Toggle hidden content"; a screen reader should say the title that it opens.
  function nameFolds() {
    for (const button of document.querySelectorAll(".admonition-title > button.toggle-button")) {
      button.setAttribute("aria-label", button.parentNode.textContent.trim());
    }
  }

  // The code of a figure to play with stands under it (custom.css); Tab and screen readers come to it there too.
  addEventListener("DOMContentLoaded", () => {
    for (const cell of document.querySelectorAll("div.cell:has(.pdelab-explore, .pdelab-play)")) {
      cell.append(...cell.querySelectorAll(":scope > :not(.cell_output)"));
    }
  });

  // The theme's spy of the scroll reads every link of the page, and stops at one that holds a state of the playground.
  addEventListener("DOMContentLoaded", () => {
    const { dataset } = document.body;
    if (document.querySelector(".page-toc")) dataset.bsTarget = ".page-toc";
    else delete dataset.bsSpy;
  });

  // On paper nothing scrolls: a formula that is too wide gets smaller, and a figure says where it moves.
  addEventListener("beforeprint", () => {
    const address = document.querySelector("link[rel=canonical]")?.href || location.pathname.split("/").pop();
    for (const figure of document.querySelectorAll(".pdelab-explore")) figure.dataset.address = address;
    for (const box of document.querySelectorAll("div.math")) {
      const share = box.clientWidth / box.scrollWidth;
      if (share < 1) box.style.fontSize = `${Math.floor(100 * share)}%`;
    }
  });

  addEventListener("load", () => {
    nameFolds();
    const typeset = window.MathJax && MathJax.startup ? MathJax.startup.promise : Promise.resolve();
    typeset.then(land);
    // folds close and pictures arrive later still: the place is kept for a few seconds
    const watch = new ResizeObserver(land);
    watch.observe(document.body);
    setTimeout(() => watch.disconnect(), 5000);
  });
})();
