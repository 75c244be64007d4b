// Pictures that a chapter may set beside the tokens: a phase diagram, and who notices a poke.
// Each is view(play, tools) → {element, update, draw}: update after each run, draw for each frame.
(() => {
  "use strict";
  const { engine, settings } = globalThis.pdelab;
  const ROWS = 12; // of a phase diagram, and its columns

  const head = (make, title, words) => make("p", { className: "play-head" }, make("b", { textContent: title }), ` ${words}`);

  // A frame with numbers at the ends of its axes.
  const axes = (c, { left, right, top, bottom }, colour, [x0, x1, xName], [y0, y1, yName]) => {
    c.strokeStyle = colour.line;
    c.lineWidth = 1;
    c.strokeRect(left, top, right - left, bottom - top);
    c.fillStyle = colour.soft;
    c.font = "12px system-ui, sans-serif";
    c.textAlign = "right";
    c.fillText(y1, left - 6, top + 10);
    c.fillText(y0, left - 6, bottom);
    c.fillText(x1, right, bottom + 14);
    c.textAlign = "left";
    c.fillText(x0, left, bottom + 14);
    c.textAlign = "center";
    c.fillText(xName, (left + right) / 2, bottom + 14);
    c.save();
    c.translate(left - 8, (top + bottom) / 2);
    c.rotate(-Math.PI / 2);
    c.fillText(yName, 0, 0);
    c.restore();
    c.textAlign = "left";
  };

  // ---- each mark is a run: which settings bring the tokens together?

  const map = (play, { make, pen, clamp }) => {
    const [x, y] = Object.keys(play.given.ranges);
    const values = (key) => {
      const [low, high] = play.given.ranges[key];
      const { min, step } = settings[key];
      const snap = (v) => Number((min + Math.round((v - min) / step) * step).toFixed(6));
      return Array.from({ length: ROWS }, (_, k) => snap(low + (k * (high - low)) / (ROWS - 1)));
    };
    const [across, up] = [values(x), values(y)];
    const canvas = make("canvas", { className: "play-map", role: "img" });
    const words = "filled: the tokens come together; line: the theorem promises it below. Press a mark to see its run";
    canvas.setAttribute("aria-label", `each mark is a run; ${words}`);
    const element = make("div", { className: "play-curve" }, head(make, "each mark is a run", words), canvas);
    let [found, edge, waiting, key] = [[], [], 0, ""];

    // All other settings: where these stay, the picture stays.
    const rest = () => JSON.stringify({ ...play.o, [x]: 0, [y]: 0 });

    // Whether a theorem promises that the tokens come together from this start; no run is needed for that.
    const promised = (o) => engine.theory(o, engine.start(o), { states: [] }).some((one) => one.curve === "diameter" && Array.isArray(one.values));

    const update = () => {
      if (rest() === key) return;
      key = rest();
      clearTimeout(waiting);
      found = [];
      const { min, max, step } = settings[y];
      edge = across.map((gamma) => {
        let top = null;
        for (let v = min; v <= max; v += step) if (promised(engine.complete({ ...play.o, [x]: gamma, [y]: v }))) top = v;
        return top;
      });
      const slice = () => {
        const end = performance.now() + 12;
        while (found.length < ROWS * ROWS && performance.now() < end) {
          const [k, n] = [found.length % ROWS, Math.floor(found.length / ROWS)];
          found.push(engine.outcome(engine.complete({ ...play.o, [x]: across[k], [y]: up[n] })).word);
        }
        play.draw();
        if (found.length < ROWS * ROWS) waiting = setTimeout(slice, 0);
      };
      slice();
    };

    const box = () => ({ left: 44, right: canvas.clientWidth - 10, top: 8, bottom: canvas.clientHeight - 20 });
    const place = (list, v, from, to) => {
      const half = (list[1] - list[0]) / 2;
      return from + ((v - list[0] + half) / (list[ROWS - 1] - list[0] + 2 * half)) * (to - from);
    };

    const draw = (colour) => {
      const { c, w } = pen(canvas);
      if (!w) return;
      const frame = box();
      const { left, right, top, bottom } = frame;
      axes(c, frame, colour, [across[0], across[ROWS - 1], settings[x].label], [up[0], up[ROWS - 1], settings[y].label]);
      const at = (a, b) => [place(across, a, left, right), place(up, b, bottom, top)];
      const size = clamp((right - left) / ROWS / 2 - 3, 2, 6);
      found.forEach((word, n) => {
        c.beginPath();
        c.arc(...at(across[n % ROWS], up[Math.floor(n / ROWS)]), size, 0, 7);
        c.fillStyle = word === "together" ? colour.hit : colour.bg;
        c.strokeStyle = word === "together" ? colour.hit : colour.soft;
        c.lineWidth = 1.3;
        c.fill();
        c.stroke();
      });
      c.save();
      c.beginPath();
      c.rect(left, top, right - left, bottom - top);
      c.clip();
      c.beginPath();
      edge.forEach((v, k) => v !== null && c.lineTo(...at(across[k], v)));
      c.strokeStyle = colour.fg;
      c.lineWidth = 2;
      c.setLineDash([5, 4]);
      c.stroke();
      c.setLineDash([]);
      c.restore();
      const [a, b] = at(play.o[x], play.o[y]);
      c.strokeRect(a - size - 4, b - size - 4, 2 * size + 8, 2 * size + 8);
    };

    const nearest = (list, share) => list[clamp(Math.floor(share * ROWS), 0, ROWS - 1)];
    canvas.addEventListener("pointerdown", (event) => {
      const { left: x0, top: y0 } = canvas.getBoundingClientRect();
      const { left, right, top, bottom } = box();
      play.set({
        [x]: nearest(across, (event.clientX - x0 - left) / (right - left)),
        [y]: nearest(up, (bottom - event.clientY + y0) / (bottom - top)),
      });
    });

    // What each mark says, and whether the theorem promises it.
    const marks = () => found.map((word, n) => [word, up[Math.floor(n / ROWS)] <= (edge[n % ROWS] ?? -1)]);

    return { element, update, draw, marks };
  };

  // ---- who notices a poke: the run minus the run without it

  // How far a token was moved, with the sign of its first feature.
  const moved = (u, v, i, d) => {
    let squares = 0;
    for (let c = 0; c < d; c++) squares += (u[i * d + c] - v[i * d + c]) ** 2;
    return Math.sqrt(squares) * (u[i * d] < v[i * d] ? -1 : 1);
  };

  // Heat on a ring of N tokens, 1 at its middle.
  const bell = (x, N, variance) => {
    const heat = (away) => Math.exp(-(away ** 2) / (2 * variance));
    return (heat(x) + heat(x - N) + heat(x + N)) / (heat(0) + 2 * heat(N));
  };

  // The variance, in tokens, by which heat widens a poke in one layer: as attention to neighbours does, or as D says.
  const spreadOf = (o) => (o.D ? 2 * (o.D / 1000) * o.N ** 2 : engine.NEAR * (engine.NEAR + 1) / 3) * o.dt;

  const response = (play, { make, pen, clamp }) => {
    const canvas = make("canvas", { className: "play-response", role: "img" });
    canvas.setAttribute("aria-label", "the answer of each token to the poke");
    const words = make("p", { className: "play-head" });
    const element = make("div", { className: "play-curve" }, words, canvas);
    const frame = () => ({ left: 34, right: canvas.clientWidth - 8, top: 8, bottom: canvas.clientHeight - 20 });
    let quiet = null;

    const update = () => {
      const calm = { ...play.now, poke: 0 };
      quiet = engine.run(calm, engine.start(calm)).states;
      canvas.setAttribute("aria-label", "the answer of each token to the poke, in the layer shown");
    };

    const draw = (colour) => {
      const { c, w } = pen(canvas);
      if (!w || !quiet) return;
      const { N, d } = play.now;
      const poked = Number(Object.keys(play.moved)[0] ?? Math.floor(N / 2));
      const layer = Math.min(Math.floor(play.at), quiet.length - 1);
      const answer = Array.from({ length: N }, (_, i) => moved(play.run.states[layer], quiet[layer], i, d));
      const most = answer.reduce((a, x) => Math.max(a, Math.abs(x)), 1e-300);
      const others = answer.filter((x, i) => i !== poked && Math.abs(x) > 0.01 * most).length;
      const found = others === 1 ? "1 other token answers" : `${others || "no"} other tokens answer`;
      words.replaceChildren(make("b", { textContent: `Layer ${layer}: ${found}` }), "; the largest answer is 1, dashed is heat. Press a token to poke it");
      const { left, right, top, bottom } = frame();
      axes(c, frame(), colour, ["1", String(N), "token"], ["−0.5", "1", ""]);
      const at = (i, value) => [left + ((i + 0.5) / N) * (right - left), bottom - ((value + 0.5) / 1.6) * (bottom - top)];
      const variance = spreadOf(play.now) * layer;
      if (variance > 0) {
        c.beginPath();
        for (let x = 0; x <= N - 1; x += 0.25) c.lineTo(...at(x, bell(x - poked, N, variance)));
        c.strokeStyle = colour.fg;
        c.lineWidth = 1.5;
        c.setLineDash([5, 4]);
        c.stroke();
        c.setLineDash([]);
      }
      answer.forEach((x, i) => {
        c.beginPath();
        c.arc(...at(i, x / most), i === poked ? 5 : 3, 0, 7);
        c.fillStyle = colour.hit;
        c.fill();
      });
    };

    canvas.addEventListener("pointerdown", (event) => {
      const { left, right } = frame();
      const share = (event.clientX - canvas.getBoundingClientRect().left - left) / (right - left);
      const token = clamp(Math.floor(share * play.o.N), 0, play.o.N - 1);
      const place = [...engine.start({ ...play.o, poke: 0 }).slice(token * play.o.d, (token + 1) * play.o.d)];
      place[0] += 1;
      play.moved = { [token]: place };
      play.set({ poke: 0 });
    });
    return { element, update, draw };
  };

  globalThis.pdelab.views = { map, response };
})();
