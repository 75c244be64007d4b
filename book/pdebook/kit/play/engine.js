/* The playground's mathematics: u' = A[u] + R[u] + D[u] + S[u] for one sequence, as pdelab computes it.

   u is a Float64Array of N tokens × d features, token after token; o is a complete settings object, whose keys, ranges
   and words are those of settings.json, in `pdelab.settings` before anything here is called. A plain script: it
   defines `pdelab.engine` and touches no page. A test compares runs, measures and predictions with pdelab. */
(() => {
  "use strict";

  const pdelab = (globalThis.pdelab = globalThis.pdelab || {});

  // ---------------------------------------------------------------- settings and addresses

  /** One value as its setting allows: a number within its range and on its grid, a word that is known, or the default. */
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

  /** What stands behind the # of an address: every setting that is not at its default, and the moved tokens. */
  const address = (o, moved = {}) => {
    const parts = [];
    for (const [key, setting] of Object.entries(pdelab.settings)) {
      if (o[key] !== setting.default) parts.push(`${key}=${encodeURIComponent(o[key])}`);
    }
    const places = Object.entries(sensible(moved)).map(([token, place]) => [token, ...place].join(","));
    if (places.length) parts.push(`u=${places.join(";")}`);
    return parts.join("&");
  };

  /** {o, moved} of an address: whatever it holds, the settings are complete and allowed. */
  const fromAddress = (hash) => {
    const given = new URLSearchParams(String(hash).replace(/^#/, ""));
    const moved = {};
    for (const part of (given.get("u") || "").split(";").slice(0, pdelab.settings.N.max)) {
      const [token, ...place] = part.split(",");
      moved[token] = place.map((x) => (x.trim() === "" ? NaN : Number(x)));
    }
    return { o: complete(Object.fromEntries(given)), moved: sensible(moved) };
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

  /** out_i = W x_i + b for each of `count` rows x_i of width `from`; W is `to` × `from`, row after row; b may be missing. */
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

  /** Attention, A[u]_i = W_O Σ_j p_ij W_V u_j with p_i = softmax_j(⟨W_Q u_i, W_K u_j⟩/√d_h): `pdelab.Interaction`.

      qkv: {W, b} with the rows of W_Q, W_K and W_V, as in torch; out: {W, b} is W_O. Each head has its d/heads
      features. `maps`, if given, is filled with the weights p: heads × N × N. */
  const interaction = ({ N, d, heads = 1, causal = false, qkv, out: join }) => {
    const width = d / heads;
    const root = Math.sqrt(width);
    const x = new Float64Array(N * 3 * d);
    const mixed = new Float64Array(N * d);
    const p = new Float64Array(N);

    return (u, out, maps = null) => {
      linear(u, N, qkv, 3 * d, d, x);
      mixed.fill(0);
      for (let h = 0; h < heads; h++) {
        for (let i = 0; i < N; i++) {
          const seen = causal ? i + 1 : N;
          const query = i * 3 * d + h * width;
          let top = -Infinity;
          for (let j = 0; j < seen; j++) {
            let score = 0;
            for (let c = 0, key = j * 3 * d + d + h * width; c < width; c++) score += x[query + c] * x[key + c];
            p[j] = score / root;
            if (p[j] > top) top = p[j];
          }
          let sum = 0;
          for (let j = 0; j < seen; j++) sum += p[j] = Math.exp(p[j] - top);
          for (let j = 0; j < seen; j++) {
            p[j] /= sum;
            for (let c = 0, value = j * 3 * d + 2 * d + h * width, at = i * d + h * width; c < width; c++) {
              mixed[at + c] += p[j] * x[value + c];
            }
          }
          if (maps) for (let j = 0; j < N; j++) maps[(h * N + i) * N + j] = j < seen ? p[j] : 0;
        }
      }
      return linear(mixed, N, join, d, d, out);
    };
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

  /** The weights of a layer, in the shapes of torch: {qkv, out, inner, outer, hidden}; random ones are drawn from the seed.

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
    const inner = { W: new Float64Array(hidden * d), b: new Float64Array(hidden) };
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
    const inner = { W: normals(hidden * d, uniform, 1 / Math.sqrt(d)), b: normals(hidden, uniform, 0.3) };
    return { hidden, inner, outer: { W: normals(d * hidden, uniform, r / Math.sqrt(hidden)) } };
  };

  /** The norm of these settings, or null; "circle" is RMSNorm with the gain 1/√d, which gives every token length 1. */
  const normOf = (o) => {
    if (o.norm === "none") return null;
    return o.norm === "circle" ? { centred: false, gain: new Float64Array(o.d).fill(1 / Math.sqrt(o.d)) } : {};
  };

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
    if (o.v) add(branch(interaction({ N, d, causal: o.causal === "yes", ...w })));
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

  /** One step u(t) → u(t + Δt), in place; s holds six arrays to write to. `pdelab.integrators` has the same four. */
  const SCHEMES = {
    euler: (list, u, dt, s) => advance(u, dt, total(list, u, s[0], s[1])),

    lie: (list, u, dt, s) => {
      for (const term of list) advance(u, dt, term(u, s[0]));
    },

    rk4: (list, u, dt, [k1, k2, k3, k4, v, scratch]) => {
      total(list, u, k1, scratch);
      total(list, ahead(u, dt / 2, k1, v), k2, scratch);
      total(list, ahead(u, dt / 2, k2, v), k3, scratch);
      total(list, ahead(u, dt, k3, v), k4, scratch);
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
    const shared = o.fresh === "yes" ? null : terms(o, weights(o));

    for (let n = 1; n <= o.L; n++) {
      step(shared || terms(o, weights(o, n - 1)), u, o.dt, scratch);
      if (!isFinite(u)) return { states, status: "diverged", stoppedAt: n };
      states.push(Float64Array.from(u));
      yield;
    }
    return { states, status: "finished", stoppedAt: null };
  };

  /** The weights p of attention in a layer that reads the state u: N × N, row i what token i sees. */
  const attention = (o, u, layer = 0) => {
    const { N, d } = o;
    const maps = new Float64Array(N * N);
    const read = o.norm === "pre" ? layerNorm(u, N, d, normOf(o)) : u;
    interaction({ N, d, causal: o.causal === "yes", ...weights(o, layer) })(read, new Float64Array(N * d), maps);
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

  /** How many half waves the start "wave" has on these tokens: a ring takes whole waves, a grid no more than it carries. */
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

  /** How many groups stand apart: tokens closer than 0.2 of the longest token's length are in one group, and so are
      their friends. On the unit circle it is `sphere.groups` of the book. */
  const groups = (u, N, d) => {
    const near = (0.2 * longest(u, N, d)) ** 2;
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
    let [dot, uu, vv] = [0, 0, 0];
    for (let k = 0; k < u.length; k++) {
      dot += u[k] * v[k];
      uu += u[k] * u[k];
      vv += v[k] * v[k];
    }
    return dot / Math.sqrt(uu) / Math.sqrt(vv);
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

  /** What the curves show, for each state: {spread, diameter, energy, mean, nonuniformity, fidelity, cosine, groups}.

      σ = `metrics.stability.spread`, δ = `diameter`, E = ½ mean |u_i|² = `energy`, |μ| = √(2 `mean_energy`),
      `nonuniformity`; ρ = `metrics.similarity.fidelity(over="state")`; cosine and groups: see there. */
  const measure = (o, { states }) => {
    const { N, d } = o;
    const rest = new Float64Array(N * d);
    return states.map((u) => {
      const variance = centre(u, N, d, rest);
      let squares = 0;
      for (let k = 0; k < u.length; k++) squares += u[k] * u[k];
      let mean = 0;
      for (let c = 0; c < d; c++) mean += (u[c] - rest[c]) ** 2; // u − (u − μ) = μ
      return {
        spread: Math.sqrt(variance),
        diameter: diameter(u, N, d),
        energy: squares / N / 2,
        mean: Math.sqrt(mean),
        nonuniformity: Math.sqrt((variance * N) / squares),
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
    const resting = speed(o, ran) < 0.02 * Math.sqrt(2 * last.energy);

    if (ran.status === "diverged") {
      return { word: "diverged", sentence: `Diverged: in layer ${ran.stoppedAt} a number is too large for the computer.` };
    }
    if (far > 0) return { word: "escaped", sentence: `Escaped: the energy is above 10⁸ from layer ${far} on.` };
    if (met > 0 && last.spread < 1e-3 * first.spread) {
      return { word: "collapsed", sentence: `Collapsed: from layer ${met} on all tokens agree to 0.1 % of their first spread.` };
    }
    if (jumps(o, ran)) return { word: "oscillates", sentence: "Oscillates: every second layer the tokens are back." };
    if (resting && last.groups > 1 && last.groups <= o.N / 2) {
      return { word: "clustered", sentence: `Clustered: the tokens stand in ${last.groups} groups and hardly move.` };
    }
    const change = `spread ${three(first.spread)} → ${three(last.spread)}`;
    return { word: "finished", sentence: `Finished: ${o.L} layers, time ${three(o.L * o.dt)}, ${change}.` };
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

  // ---------------------------------------------------------------- what the book's theorems say of these settings

  const theory = () => [];

  // ---------------------------------------------------------------- layers for others

  /** Att(u) with weights of one's own; see `interaction`. */
  const attend = (u, spec) => interaction(spec)(u, new Float64Array(u.length), spec.maps);

  /** FFN(u) with weights of one's own; see `reaction`. */
  const feedForward = (u, spec) => reaction(spec)(u, new Float64Array(u.length));

  pdelab.engine = {
    complete, address, fromAddress, start, run, steps, attention, measure, status, outcome, theory, weights, groups, jumps,
    linear, layerNorm, attend, feedForward, random, normals,
  };
})();
