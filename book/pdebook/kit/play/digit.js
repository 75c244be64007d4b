/* A digit through the layers: draw one, and four trained networks read it, with every state on the way.

   A plain script after engine.js; it defines `pdelab.digit`. The networks are the corners of the 2×2 of skip and
   LayerNorm, recorded by the experiment `digit`; a test compares them with torch. */
(() => {
  "use strict";

  const pdelab = (globalThis.pdelab = globalThis.pdelab || {});
  const { engine } = pdelab;

  // ---------------------------------------------------------------- from strokes to the data set's 8 × 8

  const SIDE = 32; // of the square that is drawn on; the data set's forms were scanned to as many pixels
  const BLOCK = 4; // of these pixels make the side of one of the data set's
  const WIDEST = 24; // three quarters: most digits of the data set fill six of eight columns, all fill eight rows
  const INK = 0.305; // the share of the square that is black in the data set, nearly the same for every digit
  const PENS = [1, 6]; // least and largest radius

  /** The square of the distance of (x, y) from the piece of line that begins at a and ends at b. */
  const squaredDistance = (x, y, a, b) => {
    const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
    const length = dx * dx + dy * dy;
    const along = length ? Math.min(1, Math.max(0, ((x - a[0]) * dx + (y - a[1]) * dy) / length)) : 0;
    return (x - a[0] - along * dx) ** 2 + (y - a[1] - along * dy) ** 2;
  };

  /** All lines of a drawing, [from, to]; a stroke of one point is a dot. */
  const lines = (strokes) =>
    strokes.flatMap((stroke) =>
      stroke.length > 1 ? stroke.slice(1).map((point, k) => [stroke[k], point]) : [[stroke[0], stroke[0]]]
    );

  /** Count the black pixels of each block: 64 shares from 0 to 1, for lines of a pen with this radius. */
  const blocks = (drawn, radius) => {
    const black = new Uint8Array(SIDE * SIDE);
    for (const [a, b] of drawn) {
      // the pixels that the pen may reach, and no others
      const first = [0, 1].map((axis) => Math.max(0, Math.floor(Math.min(a[axis], b[axis]) - radius)));
      const last = [0, 1].map((axis) => Math.min(SIDE, Math.ceil(Math.max(a[axis], b[axis]) + radius)));
      for (let row = first[1]; row < last[1]; row++) {
        for (let column = first[0]; column < last[0]; column++) {
          const near = squaredDistance(column + 0.5, row + 0.5, a, b) <= radius * radius;
          if (near) black[row * SIDE + column] = 1;
        }
      }
    }
    const counts = new Float64Array((SIDE / BLOCK) ** 2);
    black.forEach((is, k) => {
      const [row, column] = [Math.floor(k / SIDE), k % SIDE];
      counts[Math.floor(row / BLOCK) * (SIDE / BLOCK) + Math.floor(column / BLOCK)] += is / BLOCK ** 2;
    });
    return counts;
  };

  /** The strokes as an image of the data set: moved to the middle, stretched to its full height or to three quarters of
      its width, drawn with the pen that blackens as much of the square as in the data set, and counted in blocks. */
  const image = (strokes) => {
    const points = strokes.flat();
    if (!points.length) return new Float64Array((SIDE / BLOCK) ** 2);
    const ends = [0, 1].map((axis) => {
      const places = points.map((point) => point[axis]);
      return [Math.min(...places), Math.max(...places)];
    });
    const middles = ends.map(([low, high]) => (low + high) / 2);
    const [width, height] = ends.map(([low, high]) => Math.max(1e-9, high - low));
    const inked = (radius) => {
      const scale = Math.min((SIDE - 2 * radius) / height, (WIDEST - 2 * radius) / width);
      const placed = (point) => point.map((at, axis) => SIDE / 2 + scale * (at - middles[axis]));
      return blocks(lines(strokes.map((stroke) => stroke.map(placed))), radius);
    };
    let [thin, thick] = PENS;
    for (let n = 0; n < 6; n++) { // to a twelfth of a pixel
      const middle = (thin + thick) / 2;
      const share = inked(middle).reduce((sum, value) => sum + value, 0) / (SIDE / BLOCK) ** 2;
      if (share < INK) thin = middle;
      else thick = middle;
    }
    return inked((thin + thick) / 2);
  };

  // ---------------------------------------------------------------- the networks

  /** Gives the next matrix of rows × columns from packed weights: for each row a scale, then a byte for each weight. */
  const unpacking = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    let at = 0;
    return (rows, columns) => {
      const matrix = new Float64Array(rows * columns);
      for (let row = 0; row < rows; row++) {
        const scale = view.getFloat32(at, true);
        at += 4;
        for (let column = 0; column < columns; column++) matrix[row * columns + column] = scale * view.getInt8(at++);
      }
      return matrix;
    };
  };

  const CORNERS = {
    bare: { name: "bare", words: "no skip, no LayerNorm", skip: false, norm: false },
    norm: { name: "norm", words: "LayerNorm, no skip", skip: false, norm: true },
    residual: { name: "skip", words: "skip, no LayerNorm", skip: true, norm: false },
    residual_norm: { name: "both", words: "skip and LayerNorm", skip: true, norm: true },
  };

  /** The network of a corner, a function of 64 grey values: {states, logits, measured}; weights as `pack` wrote them.

      Layer by layer u ← N(u + Att(u)), u ← N(u + FFN(u)); without a skip the first u is not there, without LayerNorm
      N is not. The readout sees the mean over the tokens. */
  const network = (corner, packed, { sizes, paper, ink }) => {
    const { tokens: N, width: d, depth, heads, hidden, features, classes } = sizes;
    const { skip, norm } = CORNERS[corner];
    const next = unpacking(packed);
    const affine = (to, from) => ({ W: next(to, from), b: next(1, to) });
    const gains = () => norm && { gain: next(1, d), bias: next(1, d) };
    const layers = Array.from({ length: depth }, () => ({
      attention: { N, d, heads, qkv: affine(3 * d, d), out: affine(d, d) },
      first: gains(),
      reaction: { N, d, hidden, inner: affine(hidden, d), outer: affine(d, hidden) },
      second: gains(),
    }));
    const places = next(N, d);
    const embedding = affine(d, features);
    const readout = affine(classes, d);

    const joined = (u, branch, gain) => {
      const sum = skip ? branch.map((value, k) => value + u[k]) : branch;
      return gain ? engine.layerNorm(sum, N, d, gain) : sum;
    };
    return (greys) => {
      const x = Float64Array.from(greys, (value) => paper + (ink - paper) * value);
      const states = [engine.linear(x, N, embedding, d, features).map((value, k) => value + places[k])];
      for (const { attention, first, reaction, second } of layers) {
        const u = states[states.length - 1];
        const v = joined(u, engine.attend(u, attention), first);
        states.push(joined(v, engine.feedForward(v, reaction), second));
      }
      const mean = new Float64Array(d);
      states[depth].forEach((value, k) => { mean[k % d] += value / N; });
      const logits = engine.linear(mean, 1, readout, classes, d);
      return { states, logits, measured: engine.measure({ N, d }, { states }) };
    };
  };

  /** e^{z_k} / Σ e^{z_j}: what the network would bet on each digit. */
  const shares = (logits) => {
    const top = Math.max(...logits);
    const powers = Array.from(logits, (z) => Math.exp(z - top));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  };

  // ---------------------------------------------------------------- in words

  /** Two digits, small numbers as powers of ten. */
  const short = (x) => {
    const small = x !== 0 && Math.abs(x) < 0.01;
    return (small ? x.toExponential(0) : String(Number(x.toPrecision(2)))).replace("-", "−");
  };

  const list = (words) =>
    words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;

  const answer = (logits) => logits.indexOf(Math.max(...logits));
  const percent = (share) => `${Math.round(100 * share)} %`;

  const ALIKE = 0.01; // of their length

  /** The layer from which on the rows differ from their mean by at most a hundredth of their length; 0 if never. */
  const alikeFrom = ({ measured }) => {
    const apart = measured.map(({ nonuniformity }) => !(nonuniformity < ALIKE));
    return apart[apart.length - 1] ? 0 : apart.lastIndexOf(true) + 1;
  };

  /** What happened to the digit: in which networks its rows became alike, and what each network reads. */
  const sentence = (runs, digit) => {
    const entries = Object.entries(runs).map(([corner, run]) => {
      return { name: CORNERS[corner].name, run, reads: answer(run.logits) };
    });
    const alike = entries.filter(({ run }) => alikeFrom(run));
    const apart = entries.filter(({ run }) => !alikeFrom(run));
    const what = digit === null ? "your drawing" : `this ${digit}`;
    const places = alike.map(({ name, run: { measured }, run }) => {
      const last = short(measured[measured.length - 1].spread);
      return `in ${name} from layer ${alikeFrom(run)} on (spread ${last} at the end)`;
    });
    const rest = apart.length ? `; they stay apart in ${list(apart.map(({ name }) => name))}.` : ".";
    const rows = alike.length
      ? `The eight rows of ${what} become alike ${list(places)}${rest}`
      : `The eight rows of ${what} stay apart in all four networks.`;
    const answers = [...new Set(entries.map(({ reads }) => reads))].map((reads) => {
      const names = entries.filter((entry) => entry.reads === reads).map(({ name }) => name);
      const verdict = digit === null ? "" : reads === digit ? " (right)" : " (wrong)";
      const who = names.length === entries.length ? "all four" : list(names);
      return `${who} read${names.length === 1 ? "s" : ""} ${reads === 8 ? "an" : "a"} ${reads}${verdict}`;
    });
    const said = list(answers);
    return `${rows} ${said[0].toUpperCase()}${said.slice(1)}.`;
  };

  // ---------------------------------------------------------------- drawing on the page

  const SVG = "http://www.w3.org/2000/svg";

  /** {key: make(key)} for each key. */
  const byKey = (keys, make) => Object.fromEntries(keys.map((key) => [key, make(key)]));

  /** An element with attributes and children; `text` is its text. */
  const element = (name, attributes = {}, ...children) => {
    const made = attributes.svg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "text") made.textContent = value;
      else if (key !== "svg") made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const shape = (name, attributes, ...children) => element(name, { svg: true, ...attributes }, ...children);

  /** Grey values as squares of one colour, the page's own. */
  const squares = (greys) =>
    Array.from(greys, (grey, k) =>
      shape("rect", { x: k % 8, y: Math.floor(k / 8), width: 1, height: 1, "fill-opacity": grey })
    );

  /** A small image of 8 × 8; without a label it says nothing to a screen reader. */
  const small = (greys, label) => {
    const named = label ? { role: "img", "aria-label": label } : { "aria-hidden": true };
    return shape("svg", { viewBox: "0 0 8 8", class: "small", ...named }, ...squares(greys));
  };

  /** A state on a canvas, a row per token: orange above zero, blue below, the largest number of the state in full. */
  const paint = (canvas, u, N, d) => {
    const top = u.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-300);
    const picture = new ImageData(d, N);
    u.forEach((value, k) => {
      picture.data.set(value > 0 ? [226, 106, 0] : [30, 130, 210], 4 * k);
      picture.data[4 * k + 3] = 255 * Math.abs(value / top);
    });
    canvas.getContext("2d").putImageData(picture, 0, 0);
  };

  /** One network's panel: its name, what it answers, and a table of its states; `show(run)` fills it. */
  const panel = (corner, { accuracy }, { tokens: N, width: d, depth, classes }) => {
    const { name, words } = CORNERS[corner];
    const says = element("p", { class: "says" });
    const bars = Array.from({ length: classes }, () => element("span", { class: "bar" }));
    const bet = element("div", { class: "bars", role: "img" });
    bars.forEach((bar, digit) => bet.append(element("span", { class: "slot" }, bar, element("span", { text: digit }))));

    const layers = Array.from({ length: depth + 1 }, (_, layer) => layer);
    const row = (head, cells) => element("tr", {}, element("th", { scope: "row", text: head }), ...cells);
    const maps = layers.map((layer) =>
      element("canvas", { width: d, height: N, role: "img", "aria-label": `${name}, state after layer ${layer}` })
    );
    const cells = () => layers.map(() => element("td"));
    const [spreads, cosines] = [cells(), cells()];
    const head = layers.map((layer) => element("th", { scope: "col", text: layer }));
    const table = element(
      "table",
      {},
      element("thead", {}, element("tr", {}, element("th", { scope: "col", text: "layer" }), ...head)),
      element(
        "tbody",
        {},
        row("state", maps.map((map) => element("td", {}, map))),
        row("spread", spreads),
        row("cosine", cosines)
      )
    );
    const made = element(
      "section",
      { class: `panel ${name}`, "aria-label": `${name}: ${words}` },
      element("p", { class: "title" }, element("strong", { text: name }), `: ${words}`),
      element("p", { class: "quiet", text: `reads ${(100 * accuracy).toFixed(1)} % of the 400 test digits` }),
      says,
      bet,
      table
    );

    const show = ({ states, logits, measured }) => {
      const bets = shares(logits);
      const best = answer(logits);
      says.replaceChildren("answers ", element("strong", { text: best }), ` (${percent(bets[best])})`);
      bet.setAttribute("aria-label", `bets: ${bets.map((share, digit) => `${digit} ${percent(share)}`).join(", ")}`);
      bars.forEach((bar, digit) => {
        bar.style.height = `${2.4 * bets[digit]}rem`;
        bar.parentNode.classList.toggle("best", digit === best);
      });
      states.forEach((u, layer) => {
        paint(maps[layer], u, N, d);
        spreads[layer].textContent = short(measured[layer].spread);
        cosines[layer].textContent = (+measured[layer].cosine.toFixed(2) || 0).toFixed(2).replace("-", "−");
      });
    };
    return { made, show };
  };

  // ---------------------------------------------------------------- curves of all four

  const MARKS = {
    bare: "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0",
    norm: "M-1.1,-0.9h2.2l-1.1,1.9z",
    residual: "M-1.1,0.9h2.2l-1.1,-1.9z",
    residual_norm: "M-0.9,-0.9h1.8v1.8h-1.8z",
  };

  /** A chart of one number per layer for each network; at(value): its height, 0 to 1; ticks: [value, words]. */
  const chart = (title, depth, at, ticks) => {
    const [left, right, top, bottom] = [13, 97, 3, 47];
    const x = (layer) => left + ((right - left) * layer) / depth;
    const y = (value) => bottom - (bottom - top) * Math.min(1, Math.max(0, at(value)));
    const grid = ticks.flatMap(([value, words]) => [
      shape("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
      shape("text", { x: left - 1.5, y: y(value) + 1.2, "text-anchor": "end", text: words }),
    ]);
    const layers = Array.from({ length: depth + 1 }, (_, layer) =>
      shape("text", { x: x(layer), y: bottom + 5, "text-anchor": "middle", text: layer })
    );
    const curves = byKey(Object.keys(CORNERS), (corner) => shape("g", { class: CORNERS[corner].name }));
    layers.push(shape("text", { x: (left + right) / 2, y: bottom + 10, "text-anchor": "middle", text: "layer" }));
    const svg = shape("svg", { viewBox: "0 0 100 58", role: "img" }, ...grid, ...layers, ...Object.values(curves));
    const made = element("figure", {}, element("figcaption", { text: title }), svg);

    const show = (values) => {
      for (const [corner, series] of Object.entries(values)) {
        const path = series.map((value, layer) => `${x(layer)},${y(value)}`).join(" ");
        const marks = series.map((value, layer) =>
          shape("path", { d: MARKS[corner], transform: `translate(${x(layer)} ${y(value)})` })
        );
        curves[corner].replaceChildren(shape("polyline", { points: path }), ...marks);
      }
      const words = Object.entries(values).map(([corner, series]) => `${CORNERS[corner].name} ${series.map(short)}`);
      svg.setAttribute("aria-label", `${title}: ${words.join("; ")}`);
    };
    return { made, show };
  };

  const legend = () =>
    element(
      "p",
      { class: "legend" },
      ...Object.entries(CORNERS).map(([corner, { name }]) =>
        element(
          "span",
          {},
          shape("svg", { viewBox: "-2 -2 4 4", class: name, "aria-hidden": true }, shape("path", { d: MARKS[corner] })),
          name
        )
      )
    );

  // ---------------------------------------------------------------- the pad

  /** The square to draw on, with a pointer or with arrow keys and the space bar; `changed()` after every stroke.

      strokes: lists of [x, y] within 0 … 32; a cell that the keyboard inked is a stroke of one point, its middle. */
  const drawingPad = (changed) => {
    const strokes = [];
    const cursor = { row: 0, column: 0 };
    const ink = shape("g", { class: "ink" });
    const example = shape("g", { class: "example", transform: "scale(4)" });
    const place = shape("rect", { class: "cursor", width: BLOCK, height: BLOCK });
    const grid = Array.from({ length: 7 }, (_, k) => `M${4 * k + 4},0v32M0,${4 * k + 4}h32`).join("");
    const svg = shape(
      "svg",
      {
        viewBox: `0 0 ${SIDE} ${SIDE}`,
        class: "pad",
        tabindex: 0,
        role: "application",
        "aria-label": "Square to draw a digit on. Arrow keys move over 8 by 8 cells, space inks or wipes one.",
      },
      shape("path", { class: "grid", d: grid }),
      example,
      ink,
      place
    );
    const heard = element("p", { class: "heard", "aria-live": "polite" });

    const redraw = () => {
      ink.replaceChildren(
        ...strokes.map((stroke) => shape("polyline", { points: [...stroke, stroke[stroke.length - 1]].join(" ") }))
      );
      place.setAttribute("x", cursor.column * BLOCK);
      place.setAttribute("y", cursor.row * BLOCK);
    };
    const begin = (stroke) => {
      example.replaceChildren();
      strokes.push(stroke);
    };
    const clear = () => {
      strokes.length = 0;
      example.replaceChildren();
      redraw();
    };
    const show = (greys) => {
      clear();
      example.replaceChildren(...squares(greys));
    };

    const point = (event) => {
      const box = svg.getBoundingClientRect();
      const inside = (share) => Math.round(10 * SIDE * Math.min(1, Math.max(0, share))) / 10;
      return [inside((event.clientX - box.left) / box.width), inside((event.clientY - box.top) / box.height)];
    };
    svg.addEventListener("pointerdown", (event) => {
      svg.setPointerCapture(event.pointerId);
      begin([point(event)]);
      redraw();
      changed();
    });
    svg.addEventListener("pointermove", (event) => {
      if (!svg.hasPointerCapture(event.pointerId)) return;
      const stroke = strokes[strokes.length - 1];
      const [to, from] = [point(event), stroke[stroke.length - 1]];
      if (Math.hypot(to[0] - from[0], to[1] - from[1]) < 1) return; // fewer lines, the same picture
      stroke.push(to);
      redraw();
      changed();
    });

    /** Ink the cell under the cursor, or wipe it. */
    const toggle = () => {
      const middle = [cursor.column, cursor.row].map((at) => (at + 0.5) * BLOCK);
      const known = strokes.findIndex((stroke) => stroke.length === 1 && String(stroke[0]) === String(middle));
      if (known >= 0) strokes.splice(known, 1);
      else begin([middle]);
      return known < 0;
    };
    const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    svg.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step && event.key !== " ") return;
      event.preventDefault();
      let done = "";
      if (step) {
        cursor.row = Math.min(7, Math.max(0, cursor.row + step[0]));
        cursor.column = Math.min(7, Math.max(0, cursor.column + step[1]));
      } else {
        done = toggle() ? ", inked" : ", wiped";
      }
      heard.textContent = `row ${cursor.row + 1}, column ${cursor.column + 1}${done}`;
      redraw();
      if (!step) changed();
    });
    redraw();
    return { svg, heard, strokes, clear, show };
  };

  // ---------------------------------------------------------------- the figure

  /** Build the figure inside `root`, which holds its data as JSON. */
  const build = (root) => {
    const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    const { sizes } = data;
    const corners = Object.keys(data.networks);
    const read = byKey(corners, (corner) => network(corner, data.networks[corner].weights, data));
    const panels = byKey(corners, (corner) => panel(corner, data.networks[corner], sizes));
    const charts = {
      spread: chart("spread of the eight rows", sizes.depth, (value) => (Math.log10(value) + 16) / 18, [
        [1, "1"], [1e-4, "10⁻⁴"], [1e-8, "10⁻⁸"], [1e-12, "10⁻¹²"], [1e-16, "10⁻¹⁶"],
      ]),
      cosine: chart("mean cosine between rows", sizes.depth, (value) => (value + 0.25) / 1.25, [
        [1, "1"], [0.5, "0.5"], [0, "0"],
      ]),
    };
    const said = element("p", { class: "sentence", "aria-live": "polite" });
    const seen = element("span", { class: "seen" });

    const show = (greys, digit) => {
      const runs = byKey(corners, (corner) => read[corner](greys));
      for (const corner of corners) panels[corner].show(runs[corner]);
      for (const [name, { show: draw }] of Object.entries(charts)) {
        draw(byKey(corners, (corner) => runs[corner].measured.map((at) => at[name])));
      }
      seen.replaceChildren(small(greys, "what the networks see: eight rows of eight grey values"));
      const empty = !greys.some((value) => value > 0);
      said.textContent = empty ? "The square is empty: draw a digit, or take one." : sentence(runs, digit);
    };

    const pad = drawingPad(() => show(image(pad.strokes), null));
    const take = (digit) => {
      const greys = data.examples[digit].map((value) => value / 16);
      pad.show(greys);
      show(greys, digit);
    };
    const examples = data.examples.map((example, digit) => {
      const button = element("button", { type: "button", "aria-label": `a ${digit} of the test set` });
      button.append(small(example.map((value) => value / 16)));
      button.addEventListener("click", () => take(digit));
      return button;
    });
    const clear = element("button", { type: "button", text: "Clear" });
    clear.addEventListener("click", () => {
      pad.clear();
      show(image([]), null);
    });

    root.querySelector(".without").replaceWith(
      element(
        "div",
        { class: "top" },
        pad.svg,
        element(
          "div",
          {},
          element("p", { text: "Draw a digit in the square. The networks see it as" }),
          element("p", { class: "seeing" }, seen, clear),
          element("p", { class: "quiet", text: "They learned 8×8 digits of one data set alone: in another hand a 7 may be read as a 3." }),
          element("p", { text: "Or take one from the test set:" }),
          element("div", { class: "examples" }, ...examples),
          pad.heard
        )
      ),
      said,
      element("div", { class: "panels" }, ...corners.map((corner) => panels[corner].made)),
      element("div", { class: "charts" }, charts.spread.made, charts.cosine.made),
      legend(),
      element("p", {
        class: "quiet",
        text:
          "A map has a line for each row of the digit and a column for each feature: orange above zero, blue below, " +
          "each map in its own scale. Spread: how far the rows are from their mean. Cosine: between the directions " +
          "of two rows, mean over all pairs.",
      })
    );
    take(3);
  };

  /** Build every figure of the page that is not built yet. */
  const mount = () => {
    for (const root of document.querySelectorAll(".pdelab-digit:not([data-mounted])")) {
      root.dataset.mounted = "";
      build(root);
    }
  };

  pdelab.digit = { image, network, mount };
})();
