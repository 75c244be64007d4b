/* Quests: goals that a small function judges. quests.json has their words, starts and recorded solutions.

   A rule gets the numbers of its quest and what happened, {o, run, measured, u0}, and says whether the goal is reached.
   Each asks for a crowd and some depth, so that two tokens or one layer are no way around it. A plain script, after
   engine.js: it defines `pdelab.quests`. */
(() => {
  "use strict";

  const { engine } = pdelab;

  const last = (list) => list[list.length - 1];

  /** Enough tokens, and enough layers, for the goal to mean something. */
  const inEarnest = (o, tokens = 8, layers = 8) => o.N >= tokens && o.L >= layers;

  const finished = ({ run }) => run.status === "finished";

  /** The cloud was one at the start: nobody dragged all tokens to one place. */
  const isApart = ({ measured }) => measured[0].spread >= 0.2;

  /** The features of token i. */
  const token = (u, d, i) => u.subarray(i * d, (i + 1) * d);

  const lengths = (u, { N, d }) => Array.from({ length: N }, (_, i) => Math.hypot(...token(u, d, i)));

  const cosine = (x, y) => {
    const dot = x.reduce((sum, value, c) => sum + value * y[c], 0);
    return dot / Math.hypot(...x) / Math.hypot(...y);
  };

  /** u less its mean over the tokens. */
  const centred = (u, { N, d }) => {
    const mean = new Float64Array(d);
    u.forEach((value, k) => (mean[k % d] += value / N));
    return u.map((value, k) => value - mean[k % d]);
  };

  const RULES = {
    /** Attention alone, and the spread falls below `share` of the first. */
    agree: ({ share }, happened) => {
      const { o, measured } = happened;
      const attention = engine.only(o, "A") && o.norm === "none" && o.beta >= 1;
      const agreed = last(measured).spread < share * measured[0].spread;
      return attention && inEarnest(o) && isApart(happened) && finished(happened) && agreed;
    },

    /** All tokens end within the cosine `near` of the first, which never moved; some looked away from it at first. */
    leader: ({ near }, happened) => {
      const { o, run, u0 } = happened;
      const toFirst = (u) => Array.from({ length: o.N }, (_, i) => cosine(token(u, o.d, i), token(u0, o.d, 0)));
      const end = last(run.states);
      const still = toFirst(end)[0] > 1 - 1e-9;
      const followed = Math.min(...toFirst(u0)) < 0 && Math.min(...toFirst(end)) >= near;
      return engine.only(o, "A") && o.norm === "circle" && inEarnest(o) && finished(happened) && still && followed;
    },

    /** The tokens stand in `count` groups at time `time` and later, half of the way already, and hardly move. */
    groups: ({ count, time, ring }, happened) => {
      const { o, run, measured } = happened;
      const model = engine.only(o, "A") && o.norm === "circle" && o.L * o.dt >= time && inEarnest(o, ring ? 60 : 12);
      const even = !ring || (o.start === "ring" && measured[0].groups === 1);
      const second = ring ? measured.slice(-4) : measured.slice(Math.floor(measured.length / 2));
      const resting = engine.speed(o, run) < 0.02;
      return model && even && finished(happened) && resting && second.every((m) => m.groups === count);
    },

    /** Over `time` at least, half the step and twice the layers lead through the same states, to `gap` of the way. */
    finer: ({ time, gap }, happened) => {
      const { o, run, u0 } = happened;
      if (!inEarnest(o, 8, 1) || o.fresh === "yes" || o.L * o.dt < time - 1e-9 || !finished(happened)) return false;
      const way = engine.apart(last(run.states), u0, o.N);
      if (!(way > 0.3 * Math.sqrt(2 * happened.measured[0].energy))) return false;
      const fine = engine.run({ ...o, dt: o.dt / 2, L: 2 * o.L }, u0);
      if (fine.status !== "finished") return false;
      return run.states.every((u, n) => engine.apart(u, fine.states[2 * n], o.N) <= gap * way);
    },

    /** Attention moves the tokens, and every one of them has length 1 up to `gap`. */
    sphere: ({ gap }, happened) => {
      const { o, run } = happened;
      const model = o.norm === "circle" && Math.abs(o.v) >= 0.5 && inEarnest(o, 8, 16) && finished(happened);
      return model && lengths(last(run.states), o).every((length) => Math.abs(length - 1) <= gap);
    },

    /** The network alone makes any two tokens `factor` times as far apart, up to a share of `tolerance`. */
    times: ({ factor, tolerance }, happened) => {
      const { o, run, u0, measured } = happened;
      const alone = engine.only(o, "R") && o.norm === "none" && inEarnest(o);
      if (!alone || !isApart(happened) || !finished(happened)) return false;
      const ratio = last(measured).spread / measured[0].spread;
      const alike = cosine(centred(last(run.states), o), centred(u0, o)) > 0.999;
      return alike && Math.abs(ratio / factor - 1) <= tolerance;
    },

    /** Heat alone makes of one poked token a spot at least `width` tokens wide, nothing lost and nowhere below 0. */
    spot: ({ width }, happened) => {
      const { o, run, u0 } = happened;
      const poked = lengths(u0, o).filter((length) => length > 0).length === 1;
      if (!engine.only(o, "D") || !poked || !inEarnest(o, 16) || !finished(happened)) return false;
      const field = (u) => Array.from({ length: o.N }, (_, i) => u[i * o.d]);
      const [before, after] = [field(u0), field(last(run.states))];
      const sum = (f, of = () => 1) => f.reduce((total, value, i) => total + value * of(i), 0);
      const middle = sum(after, (i) => i) / sum(after);
      const variance = sum(after, (i) => (i - middle) ** 2) / sum(after);
      const whole = Math.abs(sum(after) / sum(before) - 1) < 0.01 && Math.min(...after) > -1e-9;
      return whole && Math.sqrt(variance) >= width;
    },

    /** Heat alone, with this D, makes the spread ten times as large. */
    explode: ({ D }, happened) => {
      const { o, run, measured } = happened;
      const grown = run.status === "diverged" || last(measured).spread > 10 * measured[0].spread;
      return engine.only(o, "D") && o.D === D && inEarnest(o) && isApart(happened) && grown;
    },

    /** The pull is stronger than the push, the steps are short, and the tokens part. */
    part: ({ factor }, happened) => {
      const { o, measured } = happened;
      const stronger = engine.only(o, "RS") && o.kind === "push" && o.norm === "none" && o.gamma > o.r && o.leak === 0;
      const short = o.dt * (o.gamma / Math.sqrt(o.eps) + o.r) < 2; // no overshooting
      const parted = last(measured).spread > factor * measured[0].spread;
      return stronger && short && inEarnest(o) && isApart(happened) && finished(happened) && parted;
    },

    /** The tokens agree, and their energy is `factor` times the first. */
    mean: ({ factor }, happened) => {
      const { o, measured } = happened;
      const agreed = last(measured).spread < 1e-3 * measured[0].spread;
      const grown = last(measured).energy > factor * measured[0].energy;
      return o.gamma > 0 && inEarnest(o) && isApart(happened) && finished(happened) && agreed && grown;
    },

    /** The pull makes the tokens jump to and fro. */
    jump: (_, happened) => {
      const { o, run, measured } = happened;
      const pulled = engine.only(o, "S") && inEarnest(o) && isApart(happened) && finished(happened);
      return pulled && engine.jumps(o, run) && last(measured).spread > 1e-3;
    },

    /** Random weights, a whole skip connection, no norm, and a fidelity below `fidelity`. */
    forget: ({ fidelity }, happened) => {
      const { o, measured } = happened;
      const drawn = (o.v !== 0 && o.matrices === "random") || (o.r !== 0 && o.kind !== "push");
      const skips = o.leak === 0 && o.norm === "none" && drawn && inEarnest(o);
      return skips && finished(happened) && Math.abs(last(measured).fidelity) < fidelity;
    },

    /** Attention without any skip for `layers` layers, and a fidelity above `fidelity`. */
    keep: ({ fidelity, layers }, happened) => {
      const { o, measured } = happened;
      const bare = o.leak === 1 && o.dt === 1 && Math.abs(o.v) >= 0.5 && inEarnest(o, 4, layers);
      return bare && isApart(happened) && finished(happened) && last(measured).fidelity > fidelity;
    },

    /** Fresh random layers with the whole leak, and a fidelity between `low` and `high` after `layers` of them. */
    half: ({ low, high, layers }, happened) => {
      const { o, measured } = happened;
      const drawn = (engine.only(o, "A") && o.matrices === "random") || (engine.only(o, "R") && o.kind !== "push");
      const wide = drawn && o.fresh === "yes" && o.d >= 16 && inEarnest(o, 8, layers);
      const leaks = o.leak === 1 && o.norm === "none";
      const rho = last(measured).fidelity;
      return wide && leaks && finished(happened) && low <= rho && rho <= high;
    },

    /** Tokens of unlike lengths all end with length 1 up to `gap`, each in its own direction. */
    length: ({ gap }, happened) => {
      const { o, run, u0 } = happened;
      const [before, after] = [lengths(u0, o), lengths(last(run.states), o)];
      const unlike = Math.max(...before) > 3 * Math.min(...before) && inEarnest(o);
      const kept = (i) => cosine(token(u0, o.d, i), token(last(run.states), o.d, i)) > 0.999;
      const one = after.every((length, i) => Math.abs(length - 1) <= gap && kept(i));
      return unlike && finished(happened) && one;
    },

    /** Seen through cells of this width all tokens end in one, and yet the layers, run backwards, find the start. */
    compress: ({ cell, gap }, happened) => {
      const { o, run, u0, measured } = happened;
      if (!inEarnest(o) || !isApart(happened) || !finished(happened) || !["none", "pre"].includes(o.norm)) return false;
      const cellOf = (u, i) => token(u, o.d, i).map((x) => Math.round(x / cell)).join();
      const cells = (u) => new Set(Array.from({ length: o.N }, (_, i) => cellOf(u, i))).size;
      if (cells(u0) < o.N / 2 || cells(last(run.states)) > 1 || o.fresh === "yes") return false;
      const found = engine.undo(o, last(run.states));
      return found !== null && engine.apart(found, u0, o.N) <= gap * measured[0].spread;
    },
  };

  /** Whether a quest is reached by a run, from its settings, its states, their measures and its start. */
  const reached = (quest, o, run, measured, u0) => RULES[quest.rule.name](quest.rule, { o, run, measured, u0 });

  pdelab.quests = { reached };
})();
