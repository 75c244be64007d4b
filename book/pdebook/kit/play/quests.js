/* Quests: goals that a small function judges. quests.json has their words, starts and recorded solutions.

   A rule gets the numbers of its quest and what happened, {o, run, measured, u0}, and gives {allowed, now, wanted, met}:
   whether the quest allows these settings and this start, what is measured, what it should be, both in words, and
   whether it is. `allowed` and `met` together reach the goal. Each rule asks for a crowd and some depth, so that two tokens or one
   layer are no way around it. A plain script, after engine.js: it defines `pdelab.quests`. */
(() => {
  "use strict";

  const { engine } = pdelab;

  const last = (list) => list[list.length - 1];

  /** Three digits, with a real minus sign. */
  const short = (x) => {
    if (!Number.isFinite(x)) return "∞";
    const size = Math.abs(x);
    const text = x === 0 ? "0" : size >= 1e4 || size < 1e-3 ? x.toExponential(1) : String(+x.toPrecision(3));
    return text.replace("-", "−");
  };

  /** Enough tokens, and enough layers, for the goal to mean something. */
  const inEarnest = (o, tokens = 8, layers = 8) => o.N >= tokens && o.L >= layers;

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

  /** What there is to say of lengths that should all be 1 up to `gap`. */
  const ones = (all, gap) => {
    const now = Math.max(...all.map((length) => Math.abs(length - 1)));
    return { now: `a length is up to ${short(now)} away from 1`, wanted: `at most ${gap}`, met: now <= gap };
  };

  const RULES = {
    /** Attention alone, and the spread falls below `share` of the first. */
    agree: ({ share }, happened) => {
      const { o, measured } = happened;
      const allowed = engine.only(o, "A") && o.norm === "none" && o.beta >= 1 && inEarnest(o) && isApart(happened);
      const now = last(measured).spread / measured[0].spread;
      return { allowed, now: `spread ${short(now)} of the first`, wanted: `below ${share}`, met: now < share };
    },

    /** All tokens end within the cosine `near` of the first, which never moved; some looked away from it at first. */
    leader: ({ near }, { o, run, u0 }) => {
      const toFirst = (u) => Array.from({ length: o.N }, (_, i) => cosine(token(u, o.d, i), token(u0, o.d, 0)));
      const end = toFirst(last(run.states));
      const model = engine.only(o, "A") && o.norm === "circle" && inEarnest(o);
      const allowed = model && end[0] > 1 - 1e-9 && Math.min(...toFirst(u0)) < 0;
      const now = Math.min(...end);
      return { allowed, now: `least cosine ${short(now)} with the first one's start`, wanted: `at least ${near}`, met: now >= near };
    },

    /** The tokens stand in `count` groups at time `time` and later, half of the way already, and hardly move. */
    groups: ({ count, time, ring }, { o, run, measured }) => {
      const model = engine.only(o, "A") && o.norm === "circle" && o.L * o.dt >= time && inEarnest(o, ring ? 60 : 12);
      const even = !ring || (o.start === "ring" && measured[0].groups === 1);
      const second = (ring ? measured.slice(-4) : measured.slice(Math.floor(measured.length / 2))).map((m) => m.groups);
      const [least, most, speed] = [Math.min(...second), Math.max(...second), engine.speed(o, run)];
      return {
        allowed: model && even,
        now: `${least === most ? least : `${least} to ${most}`} groups in the ${ring ? "last layers" : "second half"}, speed ${short(speed)}`,
        wanted: `${count}, below 0.02`,
        met: least === count && most === count && speed < 0.02,
      };
    },

    /** Over `time` at least, half the step and twice the layers lead through the same states, to `gap` of the way. */
    finer: ({ time, gap }, { o, run, u0, measured }) => {
      const way = engine.apart(last(run.states), u0, o.N);
      const model = inEarnest(o, 8, 1) && o.fresh !== "yes" && o.L * o.dt >= time - 1e-9;
      const allowed = model && way > 0.3 * Math.sqrt(2 * measured[0].energy);
      const fine = allowed && engine.run({ ...o, dt: o.dt / 2, L: 2 * o.L }, u0);
      const ran = allowed && fine.status === "finished" && run.status === "finished";
      const now = ran ? Math.max(...run.states.map((u, n) => engine.apart(u, fine.states[2 * n], o.N))) / way : NaN;
      return { allowed, now: `half the step changes ${ran ? short(now) : "?"} of the way`, wanted: `at most ${gap}`, met: now <= gap };
    },

    /** Attention moves the tokens, and every one of them has length 1 up to `gap`. */
    sphere: ({ gap }, { o, run }) => {
      const allowed = o.norm === "circle" && Math.abs(o.v) >= 0.5 && inEarnest(o, 8, 16);
      return { allowed, ...ones(lengths(last(run.states), o), gap) };
    },

    /** The network alone makes any two tokens `factor` times as far apart, up to a share of `tolerance`. */
    times: ({ factor, tolerance }, happened) => {
      const { o, run, u0, measured } = happened;
      const alone = engine.only(o, "R") && o.norm === "none" && inEarnest(o) && isApart(happened);
      const allowed = alone && cosine(centred(last(run.states), o), centred(u0, o)) > 0.999;
      const now = last(measured).spread / measured[0].spread;
      const met = Math.abs(now / factor - 1) <= tolerance;
      return { allowed, now: `${short(now)} times as far`, wanted: `${factor}, to ${100 * tolerance} %`, met };
    },

    /** Heat alone makes of one poked token a spot at least `width` tokens wide, nothing lost and nowhere below 0. */
    spot: ({ width }, { o, run, u0 }) => {
      const poked = lengths(u0, o).filter((length) => length > 0).length === 1;
      const field = (u) => Array.from({ length: o.N }, (_, i) => u[i * o.d]);
      const [before, after] = [field(u0), field(last(run.states))];
      const sum = (f, of = () => 1) => f.reduce((total, value, i) => total + value * of(i), 0);
      const middle = sum(after, (i) => i) / sum(after);
      const variance = sum(after, (i) => (i - middle) ** 2) / sum(after);
      const [kept, least, now] = [sum(after) / sum(before), Math.min(...after), Math.sqrt(variance)];
      return {
        allowed: engine.only(o, "D") && poked && inEarnest(o, 16),
        now: `${short(now)} tokens wide (the typical way from its middle), ${short(100 * kept)} % kept, lowest ${Math.abs(least) < 1e-9 ? 0 : short(least)}`,
        wanted: `at least ${width}, 100 %, not below 0`,
        met: Math.abs(kept - 1) < 0.01 && least > -1e-9 && now >= width,
      };
    },

    /** Heat alone, with this D, makes the spread ten times as large. */
    explode: ({ D }, happened) => {
      const { o, run, measured } = happened;
      const allowed = engine.only(o, "D") && o.D === D && inEarnest(o) && isApart(happened);
      const now = run.status === "diverged" ? Infinity : last(measured).spread / measured[0].spread;
      return { allowed, now: `spread ${short(now)} times the first`, wanted: "above 10", met: now > 10, diverges: true };
    },

    /** The pull is stronger than the push, the steps are short, and the tokens part. */
    part: ({ factor }, happened) => {
      const { o, measured } = happened;
      const stronger = engine.only(o, "RS") && o.kind === "push" && o.norm === "none" && o.gamma > o.r && o.leak === 0;
      const small = o.dt * (o.gamma / Math.sqrt(o.eps) + o.r) < 2; // no overshooting
      const allowed = stronger && small && inEarnest(o) && isApart(happened);
      const now = last(measured).spread / measured[0].spread;
      return { allowed, now: `spread ${short(now)} times the first`, wanted: `above ${factor}`, met: now > factor };
    },

    /** The tokens agree, and their energy is `factor` times the first. */
    mean: ({ factor }, happened) => {
      const { o, measured } = happened;
      const [spread, energy] = ["spread", "energy"].map((name) => last(measured)[name] / measured[0][name]);
      return {
        allowed: o.gamma > 0 && inEarnest(o) && isApart(happened),
        now: `spread ${short(spread)} times, energy ${short(energy)} times the first`,
        wanted: `below 0.001, above ${factor}`,
        met: spread < 1e-3 && energy > factor,
      };
    },

    /** The pull makes the tokens jump to and fro. */
    jump: (_, happened) => {
      const { o, run, measured } = happened;
      const now = last(measured).spread;
      const [allowed, jumps] = [engine.only(o, "S") && inEarnest(o) && isApart(happened), engine.jumps(o, run)];
      return { allowed, now: `${jumps ? "jumps" : "no jumps"}, spread ${short(now)}`, wanted: "jumps, above 0.001", met: jumps && now > 1e-3 };
    },

    /** Random weights, a whole skip connection, no norm, and a fidelity below `fidelity`. */
    forget: ({ fidelity }, { o, measured }) => {
      const drawn = (o.v !== 0 && o.matrices === "random") || (o.r !== 0 && o.kind !== "push");
      const allowed = o.leak === 0 && o.norm === "none" && drawn && inEarnest(o);
      const now = last(measured).fidelity;
      return { allowed, now: `fidelity ${short(now)}`, wanted: `−${fidelity} to ${fidelity}`, met: Math.abs(now) < fidelity };
    },

    /** Attention without any skip for `layers` layers, and a fidelity above `fidelity`. */
    keep: ({ fidelity, layers }, happened) => {
      const { o, measured } = happened;
      const bare = o.leak === 1 && o.dt === 1 && Math.abs(o.v) >= 0.5 && inEarnest(o, 4, layers);
      const now = last(measured).fidelity;
      return { allowed: bare && isApart(happened), now: `fidelity ${short(now)}`, wanted: `above ${fidelity}`, met: now > fidelity };
    },

    /** Fresh random layers with the whole leak, and a fidelity between `low` and `high` after `layers` of them. */
    half: ({ low, high, layers }, { o, measured }) => {
      const drawn = (engine.only(o, "A") && o.matrices === "random") || (engine.only(o, "R") && o.kind !== "push");
      const wide = drawn && o.fresh === "yes" && o.d >= 16 && inEarnest(o, 8, layers);
      const now = last(measured).fidelity;
      const allowed = wide && o.leak === 1 && o.norm === "none";
      return { allowed, now: `fidelity ${short(now)}`, wanted: `${low} to ${high}`, met: low <= now && now <= high };
    },

    /** Tokens of unlike lengths all end with length 1 up to `gap`, each in its own direction. */
    length: ({ gap }, { o, run, u0 }) => {
      const [before, after] = [lengths(u0, o), lengths(last(run.states), o)];
      const kept = (_, i) => cosine(token(u0, o.d, i), token(last(run.states), o.d, i)) > 0.999;
      const allowed = Math.max(...before) > 3 * Math.min(...before) && inEarnest(o) && after.every(kept);
      return { allowed, ...ones(after, gap) };
    },

    /** Seen through cells of this width all tokens end in one, and yet the layers, run backwards, find the start. */
    compress: ({ cell, gap }, happened) => {
      const { o, run, u0, measured } = happened;
      const cellOf = (u, i) => token(u, o.d, i).map((x) => Math.round(x / cell)).join();
      const cells = (u) => new Set(Array.from({ length: o.N }, (_, i) => cellOf(u, i))).size;
      const model = inEarnest(o) && isApart(happened) && ["none", "pre"].includes(o.norm) && o.fresh !== "yes";
      const allowed = model && cells(u0) >= o.N / 2;
      const found = allowed && run.status === "finished" && engine.undo(o, last(run.states));
      const [seen, missed] = [cells(last(run.states)), found ? engine.apart(found, u0, o.N) / measured[0].spread : NaN];
      return {
        allowed,
        now: `${seen} for the ruler, the way back ${found ? short(missed) : "?"} off`,
        wanted: `1, at most ${gap}`,
        met: seen === 1 && missed <= gap,
      };
    },
  };

  /** {reached, words} of a run, from its settings, its states, their measures and its start. */
  const judge = (quest, o, run, measured, u0) => {
    const { allowed, now, wanted, met, diverges } = RULES[quest.rule.name](quest.rule, { o, run, measured, u0 });
    const counts = allowed && (diverges || run.status === "finished");
    const yet = met && !counts ? "; but the quest asks for other settings or another start" : "";
    return { reached: met && counts, words: `Now ${now}; wanted ${wanted}${yet}.` };
  };

  const reached = (...happened) => judge(...happened).reached;

  pdelab.quests = { judge, reached, short };
})();
