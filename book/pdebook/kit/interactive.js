// Moves one figure of pdebook.explore; runs inside the figure, so it needs no id and may stand on a page twice.
(() => {
  const root = document.currentScript.parentNode;
  const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const controls = [...root.querySelectorAll("input, select")];
  const svg = root.querySelector("svg");
  const img = root.querySelector("img");
  const parts = svg ? [...svg.querySelectorAll("*")] : [];
  const show = () => {
    let frame = 0;
    controls.forEach((control, i) => {
      const values = data.values[i];
      frame = frame * values.length + Number(control.value);
      if (control.type === "range") {
        control.setAttribute("aria-valuetext", values[control.value]);
        control.nextElementSibling.textContent = values[control.value];
      }
    });
    if (svg) {
      data.slots.forEach(([part, name], j) => {
        if (name) parts[part].setAttribute(name, data.frames[frame][j]);
        else parts[part].textContent = data.frames[frame][j];
      });
      svg.setAttribute("aria-label", data.alts[frame]);
    } else {
      img.src = "data:image/webp;base64," + data.frames[frame];
      img.alt = data.alts[frame];
    }
  };
  controls.forEach((control) => control.addEventListener("input", show));
  show();
})();
