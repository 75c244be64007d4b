// Moves one figure of pdebook.explore; runs inside the figure, so it needs no id and may stand on a page twice.
(() => {
  const root = document.currentScript.parentNode;
  const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const controls = [...root.querySelectorAll("input, select")];
  const svg = root.querySelector("svg");
  const img = root.querySelector("img");
  const says = root.querySelector(".says");
  const button = root.querySelector("button");
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
    says.textContent = data.alts[frame];
  };
  let timer = 0;
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    says.setAttribute("aria-live", "polite");
    if (button) button.textContent = "▶ Play";
  };
  const step = (slider) => {
    if (Number(slider.value) === Number(slider.max)) return stop();
    slider.value = Number(slider.value) + 1;
    if (Number(slider.value) === Number(slider.max)) says.setAttribute("aria-live", "polite");
    show();
  };
  const play = () => {
    if (timer) return stop();
    const slider = controls[data.play];
    if (Number(slider.value) === Number(slider.max)) slider.value = 0;
    says.setAttribute("aria-live", "off");  // a film is not read aloud frame by frame; its end is
    show();
    timer = setInterval(() => step(slider), Math.max(60, Math.min(400, 6000 / slider.max)));
    button.textContent = "❚❚ Pause";
  };
  controls.forEach((control) => control.addEventListener("input", () => { stop(); show(); }));
  if (button) button.addEventListener("click", play);
  show();
})();
