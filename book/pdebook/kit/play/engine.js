/* The playground's mathematics: u' = A[u] + R[u] + D[u] + S[u] for one sequence, as pdelab computes it.

   u is a Float64Array of N tokens × d features, token after token; o is a complete settings object, whose keys, ranges
   and words are those of settings.json, in `pdelab.settings` before anything here is called. A plain script: it
   defines `pdelab.engine` and touches no page. A test compares runs, measures and predictions with pdelab. */
(() => {
  "use strict";

  const pdelab = (globalThis.pdelab = globalThis.pdelab || {});

  // ---------------------------------------------------------------- settings and addresses

  /** One value as its setting allows: a number within its range and on its grid, a known word, or the default. */
  const allowed = (setting, value) => {
    if (setting.choices) return Object.hasOwn(setting.choices, value) ? String(value) : setting.default;
    const plain = typeof value === "number" || (typeof value === "string" && value.trim() !== "");
    const x = plain ? Number(value) : NaN;
    if (!Number.isFinite(x)) return setting.default;
    const { min, max, step } = setting;
    const steps = Math.round((Math.min(max, Math.max(min, x)) - min) / step);
    return Math.min(max, Number((min + steps * step).toFixed(6))); // 0.1 + 0.2 is 0.3 here
  };

  /** The settings that were given, each allowed; all others at their default. Unknown keys are dropped. */
  const complete = (given = {}) => {
    const o = {};
    for (const [key, setting] of Object.entries(pdelab.settings)) {
      o[key] = Object.hasOwn(given, key) ? allowed(setting, given[key]) : setting.default;
    }
    return o;
  };

  /** Places that someone moved tokens to, {token: [x, y, …]}, without those that make no sense. */
  const sensible = (moved = {}) => {
    const { N, d } = pdelab.settings;
    const kept = {};
    for (const [token, place] of Object.entries(moved)) {
      const known = /^\d+$/.test(token) && Number(token) < N.max && Array.isArray(place);
      const numbers = known && place.length > 0 && place.length <= d.max && place.every(Number.isFinite);
      if (numbers) kept[Number(token)] = place.map((x) => Math.min(100, Math.max(-100, x)));
    }
    return kept;
  };

  /** What stands behind the # of an address: every setting that is not as `base` or else the default has it, and the
      moved tokens. */
  const address = (o, moved = {}, base = {}) => {
    const parts = [];
    for (const [key, value] of Object.entries(complete(base))) {
      if (o[key] !== value) parts.push(`${key}=${encodeURIComponent(o[key])}`);
    }
    const places = Object.entries(sensible(moved)).map(([token, place]) => [token, ...place].join(","));
    if (places.length) parts.push(`u=${places.join(";")}`);
    return parts.join("&");
  };

  /** {o, moved} of an address over `base`: whatever it holds, the settings are complete and allowed. */
  const fromAddress = (hash, base = {}) => {
    const given = new URLSearchParams(String(hash).replace(/^#/, ""));
    const moved = {};
    for (const part of (given.get("u") || "").split(";").slice(0, pdelab.settings.N.max)) {
      const [token, ...place] = part.split(",");
      moved[token] = place.map((x) => (x.trim() === "" ? NaN : Number(x)));
    }
    return { o: complete({ ...base, ...Object.fromEntries(given) }), moved: sensible(moved) };
  };

  // ---------------------------------------------------------------- random numbers

  /** Random numbers in [0, 1) from a seed, the same everywhere (mulberry32). */
  const random = (seed) => () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), seed | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  /** n normal numbers of the given size, by the method of Box and Muller. */
  const normals = (n, uniform, size = 1) =>
    Float64Array.from({ length: n }, () => {
      const radius = Math.sqrt(-2 * Math.log(1 - uniform()));
      return size * radius * Math.cos(2 * Math.PI * uniform());
    });

  // ---------------------------------------------------------------- the terms
  // Each maker takes sizes and weights and gives rate(u, out), which writes the term's share of du/dt to `out`.
  // Its scratch arrays are made once.

  /** out_i = W x_i + b for `count` rows x_i of width `from`; W is `to` × `from`, row after row, and b may be missing. */
  const linear = (x, count, { W, b }, to, from, out = new Float64Array(count * to)) => {
    for (let i = 0; i < count; i++) {
      for (let row = 0; row < to; row++) {
        let sum = b ? b[row] : 0;
        for (let c = 0, w = row * from, k = i * from; c < from; c++) sum += W[w + c] * x[k + c];
        out[i * to + row] = sum;
      }
    }
    return out;
  };

  const ACTIVATIONS = { relu: (x) => (x > 0 ? x : 0), tanh: Math.tanh };

  const NEAR = 3; // tokens to a side that count as neighbours

  /** Of the tokens on a ring, those that token i sees: its neighbours, or the neighbours behind it; no entry: all. */
  const AMONG = {
    near: (i, j, N) => (j - i + N) % N <= NEAR || (i - j + N) % N <= NEAR,
    behind: (i, j, N) => (i - j + N) % N <= NEAR,
  };

  /** Attention, A[u]_i = W_O Σ_j p_ij W_V u_j with p_i = softmax_j(⟨W_Q u_i, W_K u_j⟩/√d_h): `pdelab.Interaction`.

      qkv: {W, b} with the rows of W_Q, W_K and W_V, as in torch; out: {W, b} is W_O. Each head has its d/heads
      features. `maps`, if given, is filled with the weights p: heads × N × N. */
  const interaction = ({ N, d, heads = 1, causal = false, among = null, qkv, out: join }) => {
    const width = d / heads;
    const x = new Float64Array(3 * d * N); // feature after feature, each of all tokens: so loops over tokens are fast
    const mixed = new Float64Array(N * d);
    const p = new Float64Array(N);

    return (u, out, maps = null) => {
      across(u, N, d, qkv, x);
      for (let h = 0; h < heads; h++) {
        for (let i = 0; i < N; i++) {
          const seen = causal ? i + 1 : N;
          looks(x, N, d, h * width, width, i, seen, among, p);
          reads(x, N, 2 * d + h * width, width, seen, p, mixed, i * d + h * width);
          if (maps) for (let j = 0; j < N; j++) maps[(h * N + i) * N + j] = j < seen ? p[j] : 0;
        }
      }
      return linear(mixed, N, join, d, d, out);
    };
  };

  /** W u_i + b of all tokens, feature after feature. */
  const across = (u, N, d, { W, b }, x) => {
    for (let row = 0; row < 3 * d; row++) {
      for (let i = 0; i < N; i++) {
        let sum = b ? b[row] : 0;
        for (let c = 0, w = row * d, k = i * d; c < d; c++) sum += W[w + c] * u[k + c];
        x[row * N + i] = sum;
      }
    }
  };

  /** p_j of token i, for the first `seen` tokens: queries are the `width` rows of x from `first` on, and keys d later. */
  const looks = (x, N, d, first, width, i, seen, among, p) => {
    p.fill(0);
    for (let row = first; row < first + width; row++) {
      const query = x[row * N + i] / Math.sqrt(width);
      for (let j = 0, key = (row + d) * N; j < seen; j++) p[j] += query * x[key + j];
    }
    if (among) for (let j = 0; j < seen; j++) if (!among(i, j, N)) p[j] = -Infinity;
    let top = -Infinity;
    for (let j = 0; j < seen; j++) if (p[j] > top) top = p[j];
    if (top === -Infinity && !p.some(Number.isNaN)) return void p.fill(0); // too far below 0 for a number: as in torch
    let sum = 0;
    for (let j = 0; j < seen; j++) sum += p[j] = Math.exp(p[j] - top);
    for (let j = 0; j < seen; j++) p[j] /= sum;
  };

  /** Σ_j p_j times each of the `width` values from the row `first` on, written to `mixed` from `at`. */
  const reads = (x, N, first, width, seen, p, mixed, at) => {
    for (let c = 0; c < width; c++) {
      let sum = 0;
      for (let j = 0, value = (first + c) * N; j < seen; j++) sum += p[j] * x[value + j];
      mixed[at + c] = sum;
    }
  };

  /** The feed-forward network, R[u]_i = W₂ φ(W₁ u_i + b₁) + b₂, of each token by itself: `pdelab.Reaction`. */
  const reaction = ({ N, d, hidden, inner, outer, activation = "relu" }) => {
    const z = new Float64Array(N * hidden);
    const phi = ACTIVATIONS[activation];

    return (u, out) => {
      linear(u, N, inner, hidden, d, z);
      for (let k = 0; k < z.length; k++) z[k] = phi(z[k]);
      return linear(z, N, outer, d, hidden, out);
    };
  };

  /** Heat along the tokens, D[u]_i = D (u_{i+1} − 2u_i + u_{i−1}) N²: `pdelab.Diffusion`.

      Beyond each end stands a ghost token: the end's own value, minus it, or that of the other end. */
  const diffusion = ({ N, d, coefficient, ends = "reflecting" }) => (u, out) => {
    const own = ends === "absorbing" ? -1 : 1;
    const around = ends === "periodic";
    for (let i = 0; i < N; i++) {
      for (let c = 0; c < d; c++) {
        const here = u[i * d + c];
        const left = i > 0 ? u[(i - 1) * d + c] : around ? u[(N - 1) * d + c] : own * here;
        const right = i < N - 1 ? u[(i + 1) * d + c] : around ? u[c] : own * here;
        out[i * d + c] = coefficient * ((right - 2 * here + left) * N * N);
      }
    }
    return out;
  };

  /** u − μ, μ the mean over the tokens, written to `rest`; gives σ² = (1/N) Σ_i |u_i − μ|²: `pdelab.field.centred`. */
  const centre = (u, N, d, rest) => {
    for (let c = 0; c < d; c++) {
      const first = u[c]; // measured from the first token: where all agree, exactly 0 is left
      let mean = 0;
      for (let k = c; k < N * d; k += d) mean += u[k] - first;
      mean /= N;
      for (let k = c; k < N * d; k += d) rest[k] = u[k] - first - mean;
    }
    let squares = 0;
    for (let k = 0; k < N * d; k++) squares += rest[k] * rest[k];
    return squares / N;
  };

  /** The pull to the mean, S[u] = −γ (u − μ)/√(σ² + ε), P2 eq 9 as printed: `pdelab.SpatialStabilization`. */
  const stabilization = ({ N, d, gamma, eps }) => (u, out) => {
    const variance = centre(u, N, d, out) + eps;
    const factor = variance > 0 ? -gamma / Math.sqrt(variance) : 0;
    for (let k = 0; k < out.length; k++) out[k] *= factor;
    return out;
  };

  /** g ⊙ (z − m)/√(v + ε) + b over the features of each token, m and v their mean and variance: LayerNorm.

      centred = false is RMSNorm: no mean is taken off. gain and bias may be missing. */
  const layerNorm = (u, N, d, { gain, bias, eps = 1e-5, centred = true } = {}, out = new Float64Array(N * d)) => {
    for (let at = 0; at < N * d; at += d) {
      let mean = 0;
      if (centred) {
        for (let c = 0; c < d; c++) mean += u[at + c];
        mean /= d;
      }
      let squares = 0;
      for (let c = 0; c < d; c++) squares += (u[at + c] - mean) * (u[at + c] - mean);
      const size = Math.sqrt(squares / d + eps);
      for (let c = 0; c < d; c++) {
        out[at + c] = ((u[at + c] - mean) / size) * (gain ? gain[c] : 1) + (bias ? bias[c] : 0);
      }
    }
    return out;
  };

  /** γ (LN(u) − u): with Δt = 1/γ its Euler step is the norm itself: `pdelab.LayerNormRate`. */
  const normRate = ({ N, d, strength, norm }) => (u, out) => {
    layerNorm(u, N, d, norm, out);
    for (let k = 0; k < out.length; k++) out[k] = strength * (out[k] - u[k]);
    return out;
  };

  /** T[LN(u)], a term that reads the normalised state: `pdelab.PreNorm`. */
  const preNorm = (term, { N, d, norm }) => {
    const z = new Float64Array(N * d);
    return (u, out) => term(layerNorm(u, N, d, norm, z), out);
  };

  /** T[u] − θu: what P2 prints for θ = 1; with Δt = 1 nothing of the skip connection is left. */
  const leaking = (term, theta) => (u, out) => {
    term(u, out);
    for (let k = 0; k < out.length; k++) out[k] -= theta * u[k];
    return out;
  };

  // ---------------------------------------------------------------- from settings to layers

  /** s times the identity, d × d. */
  const identity = (d, s) => Float64Array.from({ length: d * d }, (_, k) => (k % (d + 1) ? 0 : s));

  /** The weights of a layer, in the shapes of torch: {qkv, out, inner, outer, hidden}; random ones come from the seed.

      `matrices: identity` has scores β⟨u_i, u_j⟩ and values v u_j. `kind: push` is r u = r relu(u) − r relu(−u). */
  const weights = (o, layer = 0) => {
    const { d } = o;
    const uniform = random(o.seed + (o.fresh === "yes" ? 1000 * layer : 0));
    const drawn = o.matrices === "random";
    const root = Math.sqrt(d);
    const Q = drawn ? normals(d * d, uniform, o.beta / root) : identity(d, o.beta * root);
    const K = drawn ? normals(d * d, uniform, 1 / root) : identity(d, 1);
    const V = drawn ? normals(d * d, uniform, o.v / root) : identity(d, o.v);
    const attention = { qkv: { W: Float64Array.from([...Q, ...K, ...V]) }, out: { W: identity(d, 1) } };
    return { ...attention, ...(o.kind === "push" ? push(d, o.r) : network(d, o.r, uniform)) };
  };

  const push = (d, r) => {
    const hidden = 2 * d;
    const inner = { W: new Float64Array(hidden * d) };
    const outer = { W: new Float64Array(d * hidden) };
    for (let c = 0; c < d; c++) {
      inner.W[c * d + c] = 1;
      inner.W[(d + c) * d + c] = -1;
      outer.W[c * hidden + c] = r;
      outer.W[c * hidden + d + c] = -r;
    }
    return { hidden, inner, outer };
  };

  const network = (d, r, uniform) => {
    const hidden = Math.max(8, 2 * d);
    const inner = { W: normals(hidden * d, uniform, 1 / Math.sqrt(d)) };
    return { hidden, inner, outer: { W: normals(d * hidden, uniform, r / Math.sqrt(hidden)) } };
  };

  /** The norm of these settings, or null; "circle" is RMSNorm with the gain 1/√d, which gives every token length 1. */
  const normOf = (o) => {
    if (o.norm === "none") return null;
    return o.norm === "circle" ? { centred: false, gain: new Float64Array(o.d).fill(1 / Math.sqrt(o.d)) } : {};
  };

  /** Whom the tokens see: {causal, among} for `interaction`. */
  const maskOf = (o) => ({ causal: o.causal === "yes", among: AMONG[o.causal] });

  /** The terms of one layer in the order of the sweep: A, norm, R, norm, D, S. A term of strength 0 is not there. */
  const terms = (o, w) => {
    const { N, d } = o;
    const norm = normOf(o);
    const branch = (term) => {
      const read = o.norm === "pre" ? preNorm(term, { N, d, norm }) : term;
      return o.leak ? leaking(read, o.leak) : read;
    };
    const list = [];
    const add = (term) => {
      list.push(term);
      if (o.norm === "post" || o.norm === "circle") list.push(normRate({ N, d, strength: 1 / o.dt, norm }));
    };
    if (o.v) add(branch(interaction({ N, d, ...maskOf(o), ...w })));
    if (o.r) add(branch(reaction({ N, d, ...w, activation: o.kind === "tanh" ? "tanh" : "relu" })));
    if (o.D) list.push(diffusion({ N, d, coefficient: o.D / 1000, ends: o.ends }));
    if (o.gamma) list.push(stabilization({ N, d, gamma: o.gamma, eps: o.eps }));
    return list;
  };

  // ---------------------------------------------------------------- one step, and many

  /** u ← u + Δt k. */
  const advance = (u, dt, k) => {
    for (let n = 0; n < u.length; n++) u[n] += dt * k[n];
  };

  /** to ← u + Δt k. */
  const ahead = (u, dt, k, to) => {
    for (let n = 0; n < u.length; n++) to[n] = u[n] + dt * k[n];
    return to;
  };

  /** The sum of all terms at u, written to `out`. */
  const total = (list, u, out, scratch) => {
    out.fill(0);
    for (const term of list) advance(out, 1, term(u, scratch));
    return out;
  };

  /** One step of Heun's method with a single term. */
  const heun = (term, u, dt, [k1, k2, v]) => {
    term(u, k1);
    term(ahead(u, dt, k1, v), k2);
    for (let n = 0; n < u.length; n++) u[n] += (dt / 2) * (k1[n] + k2[n]);
  };

  /** One step u(t) → u(t + Δt), in place, with the terms of this layer; s holds six arrays to write to, and `next` the
      terms of the layer after, at which RK4 has its last look. `pdelab.integrators` has the same four. */
  const SCHEMES = {
    euler: (list, u, dt, s) => advance(u, dt, total(list, u, s[0], s[1])),

    lie: (list, u, dt, s) => {
      for (const term of list) advance(u, dt, term(u, s[0]));
    },

    rk4: (list, u, dt, [k1, k2, k3, k4, v, scratch], next) => {
      total(list, u, k1, scratch);
      total(list, ahead(u, dt / 2, k1, v), k2, scratch);
      total(list, ahead(u, dt / 2, k2, v), k3, scratch);
      total(next, ahead(u, dt, k3, v), k4, scratch);
      for (let n = 0; n < u.length; n++) u[n] += (dt / 6) * (k1[n] + 2 * k2[n] + 2 * k3[n] + k4[n]);
    },

    strang: (list, u, dt, s) => {
      const last = list.length - 1;
      for (let n = 0; n < last; n++) heun(list[n], u, dt / 2, s);
      if (last >= 0) heun(list[last], u, dt, s);
      for (let n = last - 1; n >= 0; n--) heun(list[n], u, dt / 2, s);
    },
  };

  const isFinite = (u) => {
    for (let n = 0; n < u.length; n++) if (!Number.isFinite(u[n])) return false;
    return true;
  };

  /** All states from u₀ through L layers: {states, status, stoppedAt}, as `pdelab.solve` gives them.

      A state that is not finite ends the run as "diverged" at that step and is not kept. */
  const run = (o, u0) => {
    const layers = steps(o, u0);
    for (;;) {
      const { done, value } = layers.next();
      if (done) return value;
    }
  };

  /** What `run` computes, one layer at a time: a generator, for a page that must not stand still. */
  const steps = function* (o, u0) {
    const step = SCHEMES[o.scheme];
    const scratch = Array.from({ length: 6 }, () => new Float64Array(u0.length));
    const u = Float64Array.from(u0);
    const states = [Float64Array.from(u0)];
    let list = terms(o, weights(o));

    for (let n = 1; n <= o.L; n++) {
      const next = o.fresh === "yes" && n < o.L ? terms(o, weights(o, n)) : list;
      step(list, u, o.dt, scratch, next);
      list = next;
      if (!isFinite(u)) return { states, status: "diverged", stoppedAt: n };
      states.push(Float64Array.from(u));
      yield;
    }
    return { states, status: "finished", stoppedAt: null };
  };

  /** The state L layers before u: the equation run backwards by RK4, for settings without a norm after the terms. */
  const undo = (o, u) => {
    const back = run({ ...o, dt: -o.dt, scheme: "rk4" }, u);
    return back.status === "finished" ? back.states[o.L] : null;
  };

  /** The weights p of attention in a layer that reads the state u: N × N, row i what token i sees. */
  const attention = (o, u, layer = 0) => {
    const { N, d } = o;
    const maps = new Float64Array(N * N);
    const read = o.norm === "pre" ? layerNorm(u, N, d, normOf(o)) : u;
    interaction({ N, d, ...maskOf(o), ...weights(o, layer) })(read, new Float64Array(N * d), maps);
    return maps;
  };

  // ---------------------------------------------------------------- how the tokens start

  const RIPPLE = { size: 0.01, modes: 12 };

  /** Amplitudes of the ripple on a ring: a_k of cos kθ and b_k of sin kθ, k = 1 … 12. */
  const ripple = (o) => {
    const drawn = normals(2 * RIPPLE.modes, random(200000 + o.seed), RIPPLE.size);
    return { a: drawn.subarray(0, RIPPLE.modes), b: drawn.subarray(RIPPLE.modes) };
  };

  /** The share of the rippled ring between the angles 0 and θ, and its slope there, the density. */
  const share = ({ a, b }, theta) => {
    let below = theta;
    let density = 1;
    for (let k = 1; k <= a.length; k++) {
      const cos = Math.cos(k * theta);
      const sin = Math.sin(k * theta);
      below += (a[k - 1] * sin + b[k - 1] * (1 - cos)) / k;
      density += a[k - 1] * cos + b[k - 1] * sin;
    }
    return { below: below / (2 * Math.PI), density: density / (2 * Math.PI) };
  };

  /** Each shape writes the tokens of layer 0 to u. */
  const SHAPES = {
    cloud: (o, u) => {
      u.set(normals(u.length, random(100000 + o.seed)));
      const spread = Math.sqrt(centre(u, o.N, o.d, u));
      for (let k = 0; k < u.length; k++) u[k] *= o.size / spread;
      for (let k = 0; k < u.length; k += o.d) {
        u[k] += 0.4; // off centre, so that the mean shows
        u[k + 1] += 0.15;
      }
    },

    sphere: (o, u) => {
      u.set(normals(u.length, random(100000 + o.seed)));
      for (let at = 0; at < u.length; at += o.d) {
        const length = Math.hypot(...u.subarray(at, at + o.d));
        for (let c = 0; c < o.d; c++) u[at + c] *= o.size / length;
      }
    },

    ring: (o, u) => {
      const waves = ripple(o);
      for (let i = 0; i < o.N; i++) {
        let theta = (2 * Math.PI * (i + 0.5)) / o.N;
        for (let n = 0; n < 8; n++) { // Newton's steps to the angle that has (i + ½)/N of the crowd below it
          const { below, density } = share(waves, theta);
          theta -= (below - (i + 0.5) / o.N) / density;
        }
        u[i * o.d] = o.size * Math.cos(theta);
        u[i * o.d + 1] = o.size * Math.sin(theta);
      }
    },

    wave: (o, u) => {
      for (let i = 0; i < o.N; i++) {
        const angle = (modeOf(o) * Math.PI * (i + 0.5)) / o.N;
        u[i * o.d] = o.size * (o.ends === "absorbing" ? Math.sin(angle) : Math.cos(angle));
      }
    },

    flat: () => {},
  };

  /** How many half waves the start "wave" has: a ring takes whole waves only, and a grid no more than it carries. */
  const modeOf = (o) => {
    const most = o.ends === "absorbing" ? o.N : o.N - 1;
    const k = Math.min(o.waves, most);
    return o.ends === "periodic" ? Math.max(2, k - (k % 2)) : k;
  };

  /** u₀: the shape that the settings name, the middle token poked, and the tokens that someone moved. */
  const start = (o, moved = {}) => {
    const u = new Float64Array(o.N * o.d);
    SHAPES[o.start](o, u);
    u[Math.floor(o.N / 2) * o.d] += o.poke;
    for (const [token, place] of Object.entries(sensible(moved))) {
      if (token < o.N) u.set(place.slice(0, o.d), token * o.d);
    }
    return u;
  };

  // ---------------------------------------------------------------- measures

  /** How many groups stand apart: two tokens are in one group if they are closer than the share `gap` of the longest
      token's length, or if others between them are. On the unit circle it is `sphere.groups` of the book. */
  const groups = (u, N, d, gap = 0.2) => {
    const near = (gap * longest(u, N, d)) ** 2;
    const group = Int32Array.from({ length: N }, (_, i) => -1 - i); // below 0: not yet met
    const queue = new Int32Array(N);
    let found = 0;
    for (let first = 0; first < N; first++) {
      if (group[first] >= 0) continue;
      let [head, tail] = [0, 1];
      queue[0] = first;
      group[first] = found;
      while (head < tail) {
        const i = queue[head++];
        for (let j = 0; j < N; j++) {
          if (group[j] < 0 && squaredDistance(u, d, i, j) <= near) {
            group[j] = found;
            queue[tail++] = j;
          }
        }
      }
      found++;
    }
    return found;
  };

  /** Σ u², over all tokens and features. */
  const squaresOf = (u) => {
    let sum = 0;
    for (let k = 0; k < u.length; k++) sum += u[k] * u[k];
    return sum;
  };

  /** |u|, also where its square is too large for a number. */
  const length = (u) => {
    const most = largest(u);
    let sum = 0;
    for (let k = 0; k < u.length; k++) sum += (u[k] / most) ** 2;
    return most === 0 ? 0 : most * Math.sqrt(sum);
  };

  const squaredDistance = (u, d, i, j) => {
    let sum = 0;
    for (let c = 0; c < d; c++) sum += (u[i * d + c] - u[j * d + c]) ** 2;
    return sum;
  };

  const longest = (u, N, d) => {
    let most = 0;
    for (let at = 0; at < N * d; at += d) {
      let squares = 0;
      for (let c = 0; c < d; c++) squares += u[at + c] * u[at + c];
      if (squares > most) most = squares;
    }
    return Math.sqrt(most);
  };

  /** max_{i,k} |u_i − u_k|: `metrics.stability.diameter`. */
  const diameter = (u, N, d) => {
    let most = 0;
    for (let i = 1; i < N; i++) for (let j = 0; j < i; j++) most = Math.max(most, squaredDistance(u, d, i, j));
    return Math.sqrt(most);
  };

  /** ⟨u, v⟩/(|u| |v|) of two whole states; NaN for a zero state, as in pdelab. */
  const cosine = (u, v) => {
    const [p, q] = [largest(u), largest(v)]; // or squares would overflow
    let [dot, uu, vv] = [0, 0, 0];
    for (let k = 0; k < u.length; k++) {
      const [x, y] = [u[k] / p, v[k] / q];
      dot += x * y;
      uu += x * x;
      vv += y * y;
    }
    return dot / Math.sqrt(uu * vv);
  };

  /** The largest |entry|. */
  const largest = (u) => {
    let most = 0;
    for (let k = 0; k < u.length; k++) most = Math.max(most, Math.abs(u[k]));
    return most;
  };

  /** The mean of cos(u_i, u_j) over all pairs of two tokens: `laws.mean_cosine` of the chapter on clusters. */
  const meanCosine = (u, N, d) => {
    const sum = new Float64Array(d);
    for (let at = 0; at < N * d; at += d) {
      let squares = 0;
      for (let c = 0; c < d; c++) squares += u[at + c] * u[at + c];
      for (let c = 0; c < d; c++) sum[c] += u[at + c] / Math.sqrt(squares);
    }
    let length = 0;
    for (let c = 0; c < d; c++) length += sum[c] * sum[c];
    return (length - N) / (N * (N - 1));
  };

  /** What the curves show, for each state: an object with these keys.

      spread, diameter, energy and nonuniformity: `pdelab.metrics.stability`; mean: |μ| = √(2 `mean_energy`);
      longest: max |u_i|, `formulas.longest`; fidelity: `metrics.similarity.fidelity(run, over="state")`;
      cosine, of two tokens, and groups: see above. `asked`: the states to measure, where not all. */
  const measure = (o, { states }, asked = states) => {
    const { N, d } = o;
    const rest = new Float64Array(N * d);
    return asked.map((u) => {
      const variance = centre(u, N, d, rest);
      const squares = squaresOf(u);
      let mean = 0;
      for (let c = 0; c < d; c++) mean += (u[c] - rest[c]) ** 2; // u − (u − μ) = μ
      return {
        spread: Math.sqrt(variance),
        diameter: diameter(u, N, d),
        longest: longest(u, N, d),
        energy: squares / N / 2,
        mean: Math.sqrt(mean),
        nonuniformity: length(rest) / length(u),
        fidelity: cosine(u, states[0]),
        cosine: meanCosine(u, N, d),
        groups: groups(u, N, d),
      };
    });
  };

  // ---------------------------------------------------------------- what happened, in a word

  /** √((1/N) Σ_i |u_i − v_i|²), how far two states are apart. */
  const apart = (u, v, N) => {
    let sum = 0;
    for (let k = 0; k < u.length; k++) sum += (u[k] - v[k]) ** 2;
    return Math.sqrt(sum / N);
  };

  /** Whether the last states jump to and fro between two places. */
  const jumps = (o, { states }) => {
    const n = states.length;
    if (n < 4) return false;
    const [one, two] = [apart(states[n - 1], states[n - 2], o.N), apart(states[n - 1], states[n - 3], o.N)];
    return one > 1e-3 * longest(states[n - 1], o.N, o.d) && two < 1e-3 * one;
  };

  /** How far a typical token moved in the last layer, per unit of time. */
  const speed = (o, { states }) => {
    const n = states.length;
    return n < 2 ? Infinity : apart(states[n - 1], states[n - 2], o.N) / o.dt;
  };

  const three = (x) => String(Number(x.toPrecision(3)));

  /** {word, sentence}: collapsed, escaped, diverged, clustered, oscillates, or merely finished. */
  const status = (o, ran, measured) => {
    const [first, last] = [measured[0], measured[measured.length - 1]];
    const far = measured.findIndex((m) => !(m.energy < 1e8));
    const met = measured.findIndex((m) => m.spread < 1e-3 * first.spread);
    const resting = speed(o, ran) < 0.02 * last.longest;
    const tight = groups(ran.states[ran.states.length - 1], o.N, o.d, 0.05) === last.groups; // not a chain of tokens

    if (ran.status === "diverged") {
      const sentence = `Diverged: in layer ${ran.stoppedAt} a number is too large for the computer.`;
      return { word: "diverged", sentence };
    }
    if (far > 0) return { word: "escaped", sentence: `Escaped: the energy is above 10⁸ from layer ${far} on.` };
    if (met > 0 && last.spread < 1e-3 * first.spread) {
      const sentence = `Collapsed: from layer ${met} on all tokens agree to 0.1 % of their first spread.`;
      return { word: "collapsed", sentence };
    }
    if (jumps(o, ran)) return { word: "oscillates", sentence: "Oscillates: every second layer the tokens are back." };
    if (resting && tight && last.groups > 1 && last.groups <= o.N / 2) {
      return { word: "clustered", sentence: `Clustered: the tokens stand in ${last.groups} groups and hardly move.` };
    }
    const ratio = last.spread / first.spread;
    const way = ratio < 0.98 ? "have drawn together" : ratio > 1.02 ? "have drawn apart" : "are about as far apart as at first";
    const change = `spread ${three(first.spread)} → ${three(last.spread)}`;
    const sentence = `Finished: the tokens ${way}, ${change}, in ${o.L} layers, time ${three(o.L * o.dt)}.`;
    return { word: "finished", sentence };
  };

  /** One cell of a phase diagram, from its settings alone: {word, ratio}, ratio the last diameter over the first.

      together: the tokens are closer than at the start; apart: farther; oscillates and diverged as in `status`. */
  const outcome = (o, moved = {}) => {
    const ran = run(o, start(o, moved));
    const [first, last] = [ran.states[0], ran.states[ran.states.length - 1]].map((u) => diameter(u, o.N, o.d));
    const ratio = last / first;
    if (ran.status === "diverged") return { word: "diverged", ratio: Infinity };
    return { word: jumps(o, ran) ? "oscillates" : ratio < 1 ? "together" : "apart", ratio };
  };

  // ---------------------------------------------------------------- the crowd on the circle

  /** ∂ρ/∂t + ∂(ρX)/∂θ = 0 on the circle by finite volumes: `pdelab.solve_density`, the scheme "limited".

      rho0: the means of ρ over M equal cells; X is the field of attention with sharpness β and values v. Gives
      {states, status, stoppedAt} with `states` densities after the first, at even times up to `time`. */
  const density = (rho0, { beta, v = 1, time, states: count = 1 }) => {
    const M = rho0.length;
    const longestStep = Math.PI / M / Math.max(Math.abs(v), 1e-3);
    const each = Math.ceil((time / count / longestStep) * (1 - 1e-12));
    const dt = time / count / each;
    const lens = circleLens(M, beta, v);
    const scratch = { faces: new Float64Array(M), slopes: new Float64Array(M) };
    const [k1, k2, guess, after] = Array.from({ length: 4 }, () => new Float64Array(M));
    const rho = Float64Array.from(rho0);
    const states = [Float64Array.from(rho0)];

    for (let step = 1; step <= each * count; step++) {
      transport(rho, lens, scratch, k1);
      transport(ahead(rho, dt, k1, guess), lens, scratch, k2);
      for (let i = 0; i < M; i++) after[i] = (rho[i] + guess[i] + dt * k2[i]) / 2; // Heun's step
      if (!isDensity(after)) return { states, status: "diverged", stoppedAt: step };
      rho.set(after);
      if (step % each === 0) states.push(Float64Array.from(rho));
    }
    return { states, status: "finished", stoppedAt: null };
  };

  /** e^{β(cos s − 1)} and v sin s times that, s the way from a cell's right face to the centre of the cell n later. */
  const circleLens = (M, beta, v) => {
    const weight = new Float64Array(2 * M); // twice around, so that no index has to be wrapped
    const pull = new Float64Array(2 * M);
    for (let n = 0; n < 2 * M; n++) {
      const s = ((n - 0.5) * 2 * Math.PI) / M;
      weight[n] = Math.exp(beta * (Math.cos(s) - 1));
      pull[n] = v * weight[n] * Math.sin(s);
    }
    return { weight, pull };
  };

  /** −(F_{i+½} − F_{i−½})/Δθ: each face takes ρ from the side that the flow comes from, with van Leer's slopes. */
  const transport = (rho, { weight, pull }, { faces, slopes }, out) => {
    const M = rho.length;
    for (let i = 0; i < M; i++) {
      const right = rho[(i + 1) % M] - rho[i];
      const left = rho[i] - rho[(i + M - 1) % M];
      slopes[i] = right * left > 0 ? (right * left) / (right + left) : 0;
    }
    for (let i = 0; i < M; i++) {
      let pulled = 0;
      let seen = 0;
      for (let j = 0, n = M - i; j < M; j++, n++) {
        pulled += rho[j] * pull[n];
        seen += rho[j] * weight[n];
      }
      const speed = pulled / seen;
      const next = (i + 1) % M;
      faces[i] = speed > 0 ? speed * (rho[i] + slopes[i]) : speed * (rho[next] - slopes[next]);
    }
    for (let i = 0; i < M; i++) out[i] = ((faces[(i + M - 1) % M] - faces[i]) * M) / (2 * Math.PI);
  };

  /** Finite, and not negative by more than rounding. */
  const isDensity = (rho) => {
    const high = Math.max(...rho);
    return isFinite(rho) && Math.min(...rho) >= -Math.sqrt(Number.EPSILON) * high;
  };

  /** The density that a ring of tokens follows, one for each layer, over M cells; null where the settings are others.

      It is the flow on the circle: layers with short steps follow it. */
  const crowd = (o, M = 120) => {
    const ring = o.start === "ring" && o.size === 1 && !o.poke && o.d === 2;
    if (!ring || !onCircle(o) || o.causal !== "no") return null;
    const waves = ripple(o);
    const edges = Array.from({ length: M + 1 }, (_, i) => share(waves, (2 * Math.PI * i) / M).below);
    const rho0 = Float64Array.from({ length: M }, (_, i) => ((edges[i + 1] - edges[i]) * M) / (2 * Math.PI));
    return density(rho0, { beta: o.beta, v: o.v, time: o.L * o.dt, states: o.L });
  };

  // ---------------------------------------------------------------- what the book's theorems say of these settings

  /** Whether just these letters of A, R, D, S act. */
  const only = (o, letters) => {
    const acts = { A: o.v !== 0, R: o.r !== 0, D: o.D !== 0, S: o.gamma !== 0 };
    return Object.keys(acts).every((letter) => acts[letter] === letters.includes(letter));
  };

  /** Attention alone, multiples of the identity, on the unit sphere, by a sweep: the model of clusters and crowd. */
  const onCircle = (o) =>
    o.norm === "circle" && only(o, "A") && o.matrices === "identity" && o.scheme === "lie" && o.leak === 0;

  /** Whether a layer is one Euler step of the sum, without a norm; a sweep of a single term is one. */
  const isEuler = (o) => {
    const acting = ["v", "r", "D", "gamma"].filter((key) => o[key] !== 0).length;
    return o.norm === "none" && (o.scheme === "euler" || (o.scheme === "lie" && acting <= 1));
  };

  /** The leak of all branches together: κ. */
  const leakOf = (o) => o.leak * ((o.v !== 0) + (o.r !== 0));

  /** x_0 = first, x_{n+1} = f(x_n), for n = 0 … L. */
  const iterate = (o, first, f) => {
    const values = [first];
    while (values.length <= o.L) values.push(f(values[values.length - 1]));
    return values;
  };

  const entry = (curve, relation, values, words, page, statement) => {
    return { curve, relation, values, words, page, statement };
  };

  /** What theorems of the book say of these settings: a list of {curve, relation, values, words, page, statement}.

      `values` are one for each layer, or a single level. Each entry stands only where its hypotheses hold. relation:
      "equal", what happens; "at most" and "at least", bounds; "near", what short steps or wide layers come close to;
      "edge", the level that parts two fates of a start; "cycle", the level that jumping tokens tend to. */
  const theory = (o, u0, ran = run(o, u0)) => {
    const [first] = measure(o, { states: [u0] });
    return [collapse, pullAndPush, basin, heat, growth, mean, sphere, meeting, ripples, turning, dial]
      .flatMap((law) => law(o, first, u0, ran))
      .filter(({ values }) => [values].flat().every(Number.isFinite));
  };

  /** Attention alone: how fast the largest distance may shrink, with −u, or must not, with a skip. */
  const collapse = (o, { diameter: apart0 }) => {
    if (!isEuler(o) || !only(o, "A") || o.matrices !== "identity" || o.causal !== "no") return [];
    const v = Math.abs(o.v);
    const share = (apart) => v * Math.tanh((o.beta * apart ** 2) / 4);
    if (o.leak > 0 && o.leak * o.dt <= 1 && share(apart0) < o.leak) {
      const bound = iterate(o, apart0, (apart) => (1 - o.dt * (o.leak - share(apart))) * apart);
      const words = "Attention with a leak: the largest distance is at most this.";
      if (o.leak * o.dt === 1) return [entry("diameter", "at most", bound, words, "interaction", "thm-in-collapse")];
      return [entry("diameter", "at most", bound, words, "evidence/interaction", "thm-ev-in-collapse")];
    }
    if (o.leak === 0 && o.dt * v < 1) {
      const slow = (0.5 * o.beta * v * apart0 ** 2 * o.dt) / (1 - o.dt * v) ** 2;
      const bound = Array.from({ length: o.L + 1 }, (_, n) => apart0 / Math.sqrt(1 + slow * n));
      const words = "Attention with a skip: the largest distance is at least this, so tokens crawl together at best.";
      return [entry("diameter", "at least", bound, words, "evidence/interaction", "thm-ev-in-collapse")];
    }
    return [];
  };

  /** A push r and a pull γ alone: the spread obeys a rule in one number. */
  const pullAndPush = (o, { spread: spread0 }) => {
    const plain = isEuler(o) && o.kind === "push" && (only(o, "S") || only(o, "RS"));
    if (!plain || o.eps === 0) return [];
    const rate = o.r - leakOf(o);
    const s = (o.dt * o.gamma) / (2 + o.dt * rate);
    const found = [];
    const cycles = s * s > o.eps;
    const attracts = rate <= 0 || s * s < (o.eps * (2 + o.dt * rate)) / (o.dt * rate);
    if (!cycles || attracts) { // else rounding decides where it goes
      const path = iterate(o, spread0, (a) => (1 + o.dt * rate - (o.dt * o.gamma) / Math.sqrt(a * a + o.eps)) * a);
      const words = "The spread, by the rule of pull and push.";
      found.push(entry("spread", "equal", path.map(Math.abs), words, "evidence/stability", "prop-sb-cycle"));
    }
    if (cycles && attracts) {
      const words = "The tokens can jump from side to side for ever with this spread.";
      found.push(entry("spread", "cycle", Math.sqrt(s * s - o.eps), words, "evidence/stability", "prop-sb-cycle"));
    }
    const edge = (o.gamma / rate) ** 2 - o.eps;
    if (rate > 0 && edge > 0) {
      const words = "The edge of the basin: from a wider start the push wins.";
      found.push(entry("spread", "edge", Math.sqrt(edge), words, "evidence/stability", "thm-sb-spread"));
    }
    return found;
  };

  /** Attention, a push and a pull: inside the basin the largest distance falls by a fixed factor per layer. */
  const basin = (o, { diameter: apart0 }) => {
    const known = isEuler(o) && (only(o, "AS") || only(o, "ARS")) && o.kind === "push" && o.matrices === "identity";
    if (!known || o.eps === 0) return [];
    const chi = Math.min(1 - 1 / o.N, o.d / (o.d + 1)) / 2;
    const [K, kappa] = [Math.abs(o.v) + o.r, leakOf(o)];
    const atStart = o.gamma / Math.sqrt(chi * apart0 ** 2 + o.eps);
    const overshoot = o.dt * (o.gamma / Math.sqrt(o.eps) + kappa + K) - 1;
    if (overshoot >= 1) return [];
    const found = [];
    const edge = ((o.gamma / (K - kappa)) ** 2 - o.eps) / chi;
    if (K > kappa && edge > 0) {
      const words = "The edge of the basin: from below this distance all tokens come together.";
      found.push(entry("diameter", "edge", Math.sqrt(edge), words, "stability", "thm-sb-basin"));
    }
    if (atStart + kappa > K) {
      const q = Math.max(1 - o.dt * (atStart + kappa - K), overshoot);
      const words = "Inside the basin: the largest distance is at most this.";
      const bound = iterate(o, apart0, (apart) => q * apart);
      found.push(entry("diameter", "at most", bound, words, "evidence/stability", "thm-ev-stability-diameter"));
    }
    return found;
  };

  /** λ_k of the second difference on N tokens, from the slowest wave to the fastest: `laplacian_eigenvalues`. */
  const eigenvalue = (o, k) => {
    const turn = { reflecting: k, absorbing: k + 1, periodic: 2 * Math.ceil(k / 2) }[o.ends];
    return -4 * o.N ** 2 * Math.sin((turn * Math.PI) / o.N / 2) ** 2;
  };

  /** Wave k at token i, not yet of length 1: `laplacian_modes`. */
  const waveAt = (o, k, i) => {
    const x = (Math.PI * (i + 0.5)) / o.N;
    if (o.ends === "reflecting") return Math.cos(k * x);
    if (o.ends === "absorbing") return Math.sin((k + 1) * x);
    return k % 2 ? Math.sin(2 * Math.ceil(k / 2) * x) : Math.cos(2 * Math.ceil(k / 2) * x);
  };

  /** What each scheme multiplies a wave by whose rate is z per step. */
  const FACTORS = {
    euler: (z) => 1 + z,
    lie: (z) => 1 + z,
    strang: (z) => 1 + z + z ** 2 / 2,
    rk4: (z) => 1 + z + z ** 2 / 2 + z ** 3 / 6 + z ** 4 / 24,
  };

  /** Heat alone: every wave in the start is multiplied by its own factor in each layer. */
  const heat = (o, first, u0) => {
    if (!only(o, "D")) return [];
    const flowsOut = o.ends === "absorbing"; // then the mean is no wave, and the energy is the sum over all of them
    const squares = new Float64Array(o.L + 1);
    for (let k = flowsOut ? 0 : 1; k < o.N; k++) {
      const factor = FACTORS[o.scheme](o.dt * (o.D / 1000) * eigenvalue(o, k));
      let share = amplitude(o, u0, k);
      for (let n = 0; n <= o.L; n++, share *= factor ** 2) squares[n] += share / o.N;
    }
    const limit = 2 / ((o.D / 1000) * -eigenvalue(o, o.N - 1));
    const words = `Heat, wave by wave. With Euler's steps the fastest wave grows if Δt is above ${three(limit)}.`;
    const values = Array.from(squares, (x) => (flowsOut ? x / 2 : Math.sqrt(x)));
    const curve = flowsOut ? "energy" : "spread";
    return [entry(curve, "equal", values, words, "evidence/diffusion", "prop-ev-diffusion-powers")];
  };

  /** |⟨wave k, u⟩|², over all features, for the wave of length 1. */
  const amplitude = (o, u, k) => {
    let length = 0;
    const sums = new Float64Array(o.d);
    for (let i = 0; i < o.N; i++) {
      const wave = waveAt(o, k, i);
      length += wave * wave;
      for (let c = 0; c < o.d; c++) sums[c] += wave * u[i * o.d + c];
    }
    return sums.reduce((total, x) => total + x * x, 0) / length;
  };

  /** A push alone moves any two tokens apart at one rate; averages and heat make no token longer. */
  const growth = (o, { spread: spread0, longest: longest0 }) => {
    if (!isEuler(o) || (o.r !== 0 && o.kind !== "push") || o.gamma !== 0) return [];
    if (only(o, "R")) {
      const path = iterate(o, spread0, (spread) => Math.abs(1 + o.dt * (o.r - o.leak)) * spread);
      const words = "A push moves any two tokens apart at the same rate.";
      return [entry("spread", "equal", path, words, "reaction", "thm-re-rates")];
    }
    const short = 2 * (o.D / 1000) * o.dt * o.N ** 2 + o.dt * leakOf(o) <= 1;
    if (!short || o.matrices !== "identity" || only(o, "")) return [];
    const rate = Math.abs(o.v) + o.r - leakOf(o);
    if (rate > 0) return []; // a bound that grows says little
    const bound = iterate(o, longest0, (length) => (1 + o.dt * rate) * length);
    return [entry("longest", "at most", bound, "No token is ever longer than this.", "scheme", "thm-sb-step")];
  };

  /** The pull to the mean, and heat that does not leave, keep the mean where it is. */
  const mean = (o, { mean: mean0 }) => {
    if (!only(o, "S") && !(only(o, "DS") && o.ends !== "absorbing")) return [];
    return [entry("mean", "equal", mean0, "The pull never moves the mean.", "evidence/stability", "lem-sb-pull")];
  };

  /** After LayerNorm every token has the length √d. */
  const sphere = (o) => {
    const last = o.norm === "post" && o.scheme === "lie" && (only(o, "A") || only(o, "R") || only(o, "AR"));
    if (!last || o.d < 3) return [];
    const words = "LayerNorm puts every token on the sphere of radius √d.";
    return [entry("energy", "near", o.d / 2, words, "stabilization", "thm-st-projection")];
  };

  /** Tokens of length 1 with equal angles between all pairs turn towards each other along one curve. */
  const meeting = (o, first, u0) => {
    if (!onCircle(o) || Math.abs(o.v) !== 1 || o.causal !== "no" || !isSimplex(o, u0, first.cosine)) return [];
    const others = o.N - 1;
    const rate = (xi) => {
      const weight = Math.exp(o.beta * (xi - 1));
      return (o.v * 2 * weight * (1 - xi) * (1 + others * xi)) / (1 + others * weight);
    };
    const small = o.dt / 16;
    const kutta = (xi) => {
      const k1 = rate(xi);
      const k2 = rate(xi + (small / 2) * k1);
      const k3 = rate(xi + (small / 2) * k2);
      return xi + (small / 6) * (k1 + 2 * k2 + 2 * k3 + rate(xi + small * k3));
    };
    const layer = (xi) => {
      for (let n = 0; n < 16; n++) xi = kutta(xi);
      return xi;
    };
    const words = "The cosine of any two tokens, for short steps.";
    return [entry("cosine", "near", iterate(o, first.cosine, layer), words, "clusters", "prop-in-angles")];
  };

  /** Whether all tokens have length 1 and all pairs the same cosine. */
  const isSimplex = (o, u, cosine) => {
    const { N, d } = o;
    for (let i = 0; i < N; i++) {
      for (let j = 0; j <= i; j++) {
        let dot = 0;
        for (let c = 0; c < d; c++) dot += u[i * d + c] * u[j * d + c];
        if (Math.abs(dot - (i === j ? 1 : cosine)) > 1e-9) return false;
      }
    }
    return true;
  };

  /** The rate at which a ripple with k crests grows on the even crowd: v k² I_k(β)/(β I_0(β)). */
  const rippleRate = (beta, v, k) => {
    const points = 256;
    let [waves, even] = [0, 0]; // I_k and I_0, by a sum over the circle that is exact to rounding
    for (let n = 0; n < points; n++) {
      const angle = (2 * Math.PI * n) / points;
      const weight = Math.exp(beta * (Math.cos(angle) - 1));
      waves += weight * Math.cos(k * angle);
      even += weight;
    }
    return (v * k * k * waves) / (beta * even);
  };

  /** A nearly even ring: the ripple that grows fastest. */
  const ripples = (o) => {
    if (!onCircle(o) || o.start !== "ring" || o.beta === 0 || o.v <= 0 || o.causal !== "no") return [];
    let best = 1;
    for (let k = 2; k <= 40; k++) if (rippleRate(o.beta, o.v, k) > rippleRate(o.beta, o.v, best)) best = k;
    const words = `On the even ring the ripple with ${best} crests grows fastest; chance may favour a neighbour.`;
    return [entry("groups", "near", best, words, "crowd", "thm-crowd-growth")];
  };

  /** However the layers are made, the state turns no faster than their steps are long. */
  const turning = (o, first, u0, { states }) => {
    const values = [1];
    let budget = 0;
    for (let n = 1; n < states.length; n++) {
      const length = apart(states[n], states[n - 1], 1) / Math.sqrt(squaresOf(states[n - 1]));
      if (!(length < 1)) return [];
      budget += Math.asin(length);
      values.push(Math.cos(Math.min(budget, Math.PI)));
    }
    const words = "The fidelity is at least this, by the length of the steps.";
    return states.length > o.L ? [entry("fidelity", "at least", values, words, "residual", "thm-rs-budget")] : [];
  };

  /** Fresh random branches stand at right angles to all that was: each layer turns the state by a known angle. */
  const dial = (o, first, u0, { states }) => {
    const drawn = (only(o, "A") && o.matrices === "random") || (only(o, "R") && o.kind !== "push");
    if (!drawn || o.fresh === "no" || !isEuler(o) || o.d < 16 || states.length <= o.L) return [];
    const keep = 1 - o.dt * o.leak;
    const values = [1];
    for (let n = 1; n < states.length; n++) {
      const branch = ahead(states[n], -keep, states[n - 1], new Float64Array(u0.length)); // u⁺ − (1 − θΔt)u = ΔtG
      const length = squaresOf(branch) / squaresOf(states[n - 1]);
      values.push((values[n - 1] * keep) / Math.sqrt(keep ** 2 + length));
    }
    const words = "What wide random layers keep, with branches as long as here; a few features scatter about it.";
    return [entry("fidelity", "near", values, words, "dial", "thm-me-dial")];
  };

  // ---------------------------------------------------------------- layers for others

  /** Att(u) with weights of one's own; see `interaction`. */
  const attend = (u, spec) => interaction(spec)(u, new Float64Array(u.length), spec.maps);

  /** FFN(u) with weights of one's own; see `reaction`. */
  const feedForward = (u, spec) => reaction(spec)(u, new Float64Array(u.length));

  pdelab.engine = {
    complete, address, fromAddress, start, run, steps, undo, attention, measure, status, outcome, theory, density,
    crowd, weights, only, apart, speed, jumps,
    linear, layerNorm, attend, feedForward, random, normals, NEAR,
  };
})();
