// The playground on a page: tokens to drag, curves, controls, quests. The mathematics is in engine.js.
// Every word is set as text, never as markup: an address or a quest cannot bring code along.
(() => {
  "use strict";
  performance.mark("play-script");
  const { engine, quests, settings, views, questList, css } = globalThis.pdelab;
  const { short } = quests;

  const GROUPS = {
    A: "Attention", R: "Feed-forward", D: "Diffusion", S: "Stabilisation", layers: "Layers", start: "Start",
  };
  const LEVELS = ["basic", "terms", "all"];
  const CURVES = {
    spread: { title: "spread σ", words: "how far tokens are from their mean; 0: all are equal", low: 0 },
    fidelity: { title: "fidelity", words: "how much the state still points where it began: 1 the same way, 0 not at all", low: -1, high: 1 },
    energy: { title: "energy", words: "how large the tokens are, half the mean of |u|²", low: 0 },
    diameter: { title: "diameter", words: "the largest distance of two tokens", low: 0 },
    longest: { title: "longest", words: "the length of the longest token", low: 0 },
    mean: { title: "mean |μ|", words: "how far the cross is from 0", low: 0 },
    cosine: { title: "cosine", words: "how alike two tokens point, mean over pairs: 1 the same way, 0 unrelated", low: -1, high: 1 },
    groups: { title: "groups", words: "how many stand apart", low: 0 },
  };
  const STORED = "pdelab-quests";
  const SLICE = 8; // ms of computing between two frames
  const FIRST = 100; // ms before the first frame: the page is not yet in anyone's hand
  const CALM = 400; // ms between two sentences of the status
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  // ---- small tools

  // An element with properties (or attributes, where there is no such property) and children.
  const make = (tag, properties = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };

  const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

  // 10⁻⁵ for 1e-5.
  const power = (n) => `10${[...String(n)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;

  // The next round number above x: a scale that does not tremble while a slider moves.
  const round = (x) => {
    const unit = 10 ** Math.floor(Math.log10(x));
    return unit * [1, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 4, 5, 6, 8, 10].find((step) => step * unit >= x * (1 - 1e-9));
  };

  // A context in CSS pixels, sharp on any screen.
  const pen = (canvas) => {
    const ratio = devicePixelRatio || 1;
    const [w, h] = [canvas.clientWidth, canvas.clientHeight];
    const [across, down] = [Math.round(w * ratio), Math.round(h * ratio)];
    if (canvas.width !== across || canvas.height !== down) Object.assign(canvas, { width: across, height: down });
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, w, h);
    c.font = "13px system-ui, sans-serif";
    return { c, w, h };
  };

  // Calls `work` once, a while after the last of many calls.
  const later = (work, wait) => {
    let timer = 0;
    return () => {
      clearTimeout(timer);
      timer = setTimeout(work, wait);
    };
  };

  // The two directions in which the states vary most, found by iteration from `guess`, so that signs do not flip.
  const principal = (states, d, guess) => {
    const every = Math.ceil(states.length / 16);
    const used = states.filter((u, l) => l % every === 0 && u.every(Number.isFinite));
    const centre = new Float64Array(d); // the mean of the start
    states[0].forEach((x, k) => { centre[k % d] += (x * d) / states[0].length; });
    const turn = (axis) => {
      const sum = new Float64Array(d);
      for (const u of used) {
        for (let i = 0; i < u.length; i += d) {
          let along = 0;
          for (let c = 0; c < d; c++) along += (u[i + c] - centre[c]) * axis[c];
          for (let c = 0; c < d; c++) sum[c] += along * (u[i + c] - centre[c]);
        }
      }
      return sum;
    };
    const dot = (a, b) => a.reduce((sum, x, c) => sum + x * b[c], 0);
    const unit = (a, other) => {
      const lean = other ? dot(a, other) : 0;
      const rest = a.map((x, c) => x - lean * (other ? other[c] : 0));
      const length = Math.sqrt(dot(rest, rest));
      return length > 1e-12 ? rest.map((x) => x / length) : null;
    };
    let [first, second] = guess;
    for (let k = 0; k < 12; k++) {
      first = unit(turn(first)) || first;
      second = unit(turn(second), first) || unit(second, first) || second;
    }
    return { axes: [first, second], centre };
  };

  // What a browser keeps of the quests that were reached; in private mode, nothing.
  const memory = {
    read() {
      try { return new Set(JSON.parse(localStorage.getItem(STORED) || "[]")); } catch { return new Set(); }
    },
    write(done) {
      try { localStorage.setItem(STORED, JSON.stringify([...done])); } catch { /* private mode */ }
    },
  };

  // ---- one playground

  class Play {
    constructor(root) {
      this.root = root;
      this.given = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
      this.show = new Set(this.given.show);
      this.full = this.given.full;
      this.link = root.querySelector("a.play-open");
      this.inBook = /\.html(#|$)/.test(this.link.getAttribute("href")); // and not in a notebook
      this.ownPage = this.full && /(^|\/)playground\.html$/.test(location.pathname);
      this.level = this.given.level;
      const goal = questList.find((one) => one.id === this.given.quest);
      if (goal && !this.full) this.given.controls ??= this.needed(goal);
      this.done = memory.read();
      this.chosen = 0;
      this.compared = this.full;
      this.views = [];
      this.judgeSoon = later(() => { this.judge(); this.follow(); }, 150);
      this.writeSoon = later(() => this.writeAddress(), 250);
      this.build();
      this.begin(this.ownPage ? location.hash : "");
      if (this.ownPage) addEventListener("hashchange", () => location.hash !== this.written && this.begin(location.hash));
      new ResizeObserver(() => this.draw()).observe(root);
      for (const kind of ["beforeprint", "afterprint"]) addEventListener(kind, () => this.onPaper(kind === "beforeprint"));
      const seen = new MutationObserver(() => this.draw()); // a page or JupyterLab changed between light and dark
      seen.observe(document.documentElement, { attributeFilter: ["data-theme", "data-mode"] });
      seen.observe(document.body, { attributeFilter: ["data-jp-theme-light", "class"] });
    }

    // ---- settings, from the cell, from a quest or from the address

    begin(hash) {
      const words = hash.replace(/^#/, "");
      const named = new URLSearchParams(words).get("quest") || (words ? "" : this.given.quest);
      const quest = questList.find((one) => one.id === named) || null;
      const bare = words.replace(/&?quest=[^&]*/, "");
      if (bare || quest) Object.assign(this, engine.fromAddress(bare, quest?.start));
      else Object.assign(this, { o: this.first(), moved: this.given.moved || {} });
      this.quest = quest;
      this.armed = this.here = false; // a quest must be seen unreached first: opening a solution is not solving
      this.before = null;
      this.chosen = Math.min(this.chosen, this.o.N - 1);
      this.fitLevel();
      this.fillControls();
      this.showQuest();
      this.stop();
      this.setsOut = (this.given.run || (this.ownPage && !words)) && !this.run && !still.matches;
      this.at = bare || quest ? null : this.given.layer ?? (this.setsOut ? 0 : null);
      this.toEnd = this.at === null;
      this.compute();
    }

    // The settings of the cell, with the first of its cases.
    first() {
      if (!this.menu) return engine.complete(this.given.settings);
      this.menu.selectedIndex = 0;
      return engine.complete({ ...this.given.settings, ...this.given.cases[this.menu.value] });
    }

    // What a quest begins with and what its solution changes: in a chapter no other control is in the way.
    needed({ start, solution }) {
      return Object.keys(settings).filter((key) => key in start || key in (solution.settings || {}));
    }

    // Controls that are off their default must be in sight: a link may need a higher level.
    fitLevel() {
      if (this.given.controls) return;
      for (const [key, setting] of Object.entries(settings)) {
        const wanted = this.o[key] !== setting.default || (this.quest && this.needed(this.quest).includes(key));
        if (wanted) this.level = Math.max(this.level, setting.level);
      }
    }

    change(key, value) {
      this.set({ [key]: value });
    }

    // Several settings at once: a case of a chapter, a mark of its map.
    set(values) {
      const keys = Object.keys(values);
      this.compare(keys.join());
      this.o = engine.complete({ ...this.o, ...values });
      this.chosen = Math.min(this.chosen, this.o.N - 1);
      if (keys.includes("d") || keys.includes("N")) this.moved = {};
      this.fillControls();
      this.compute();
    }

    // The run before this gesture stays as a pale curve; a gesture is all that one control does in a row.
    compare(gesture) {
      if (gesture !== this.gesture) this.before = this.measured;
      this.gesture = gesture;
    }

    // ---- computing, in slices, so that a large run does not hold up the hand

    compute() {
      this.u0 = engine.start(this.o, this.moved);
      if (this.running) {
        this.again = true;
        return this.draw();
      }
      const work = this.work(this.o, this.u0);
      const slice = () => {
        const end = performance.now() + (this.run ? SLICE : FIRST);
        let step = work.next();
        while (!step.done && performance.now() < end) step = work.next();
        if (step.done) return this.finish(step.value);
        this.running = setTimeout(slice, 0);
      };
      slice();
    }

    // A run and what there is to say of it, in small pieces.
    *work(now, u0) {
      const run = yield* engine.steps(now, u0);
      const measured = [];
      for (const u of run.states) {
        measured.push(...engine.measure(now, run, [u]));
        yield;
      }
      return { now, run, measured, theory: engine.theory(now, u0, run) };
    }

    // The density that the equation of the crowd predicts for a ring of tokens, where it does.
    follow() {
      this.crowd = this.show.has("density") ? engine.crowd(this.now) : null;
      if (this.crowd) this.draw();
    }

    // What is shown from now on: the settings `now`, their run and its measures, while `o` may already be ahead.
    finish(done) {
      const first = !this.run;
      const toEnd = this.toEnd || (this.at >= this.last && !this.timer);
      this.toEnd = false;
      this.running = 0;
      Object.assign(this, done);
      this.last = this.run.states.length - 1;
      this.at = toEnd ? this.last : Math.min(this.at, this.last);
      this.crowd = null;
      this.runOthers();
      for (const view of this.views) view.update();
      if (!this.held) this.frame();
      this.say();
      this.showTheory();
      if (first) this.drawNow(); // a page that still loads would let a frame wait
      else this.draw();
      this.judgeSoon();
      this.writeSoon();
      if (this.setsOut) this.whenSeen(() => this.play());
      this.setsOut = false;
      if (this.again) {
        this.again = false;
        this.compute();
      }
    }

    // ---- the parts of the page

    build() {
      const { root } = this;
      root.replaceChildren(...[...root.children].filter((child) => child.matches("script")));
      root.classList.add(this.full ? "play-full" : "play-compact");
      const parts = [this.buildStage(), this.buildViews(), this.buildSettings()];
      if (this.full) {
        parts.splice(1, 0, this.buildTabs());
        root.prepend(this.buildQuests()); // below the body: what is sticky in there ends with it
      }
      root.prepend(make("div", { className: "play-body" }, ...parts));
      for (const one of root.querySelectorAll("canvas, input, select")) {
        one.dataset.lmSuppressShortcuts = ""; // JupyterLab would take its arrow keys
      }
    }

    buildStage() {
      const canvas = make("canvas", { className: "play-stage", tabIndex: 0, role: "application" });
      canvas.setAttribute("aria-label", "tokens: arrow keys move the chosen one, Page Up and Page Down choose another, space plays");
      this.canvas = canvas;
      this.task = make("p", { className: "play-task", hidden: true });
      this.caption = make("p", { className: "play-caption" });
      this.status = make("p", { className: "play-status", role: "status" });
      this.button = make("button", { type: "button", className: "play-run", onclick: () => this.play() });
      this.button.setAttribute("aria-label", "play through the layers");
      this.slider = make("input", { type: "range", min: 0, step: 1, autocomplete: "off" });
      this.slider.setAttribute("aria-label", "layer shown");
      this.slider.addEventListener("input", () => this.showLayer(+this.slider.value));
      this.where = make("span", { className: "play-value" }); // no <output>: a screen reader would say each
      this.setPlaying(false);
      this.listen(canvas);
      const bar = make("div", { className: "play-bar" }, this.button, this.slider, this.where);
      const parts = [this.task, this.show.has("response") ? this.view("response") : canvas, this.caption, bar, this.status];
      return make("section", { className: "play-left", ariaLabel: "tokens" }, ...parts);
    }

    buildViews() {
      const section = make("section", { className: "play-views", ariaLabel: "curves over the layers" });
      const names = Object.keys(CURVES).filter((name) => this.full || this.show.has(name));
      this.charts = names.map((name) => {
        const { title, words } = CURVES[name];
        const canvas = make("canvas", { className: "play-chart", role: "img" });
        canvas.setAttribute("aria-label", CURVES[name].title); // with its numbers once there is a run
        const links = make("p", { className: "play-theory" });
        const head = make("p", { className: "play-head" }, make("b", { textContent: title }), ` ${words}`);
        const box = make("div", { className: "play-curve" }, head, canvas, links);
        section.append(box);
        this.scrub(canvas, ({ x }) => Math.round(((x - 44) / (canvas.clientWidth - 52)) * this.now.L));
        return { name, box, canvas, links, head };
      });
      if (this.show.has("map")) section.append(this.view("map"));
      if (this.show.has("heat")) {
        this.heat = make("canvas", { className: "play-heat", role: "img" });
        this.heat.setAttribute("aria-label", "state of the tokens over the layers");
        this.heatHead = make("p", { className: "play-head" });
        section.append(make("div", { className: "play-curve" }, this.heatHead, this.heat));
        this.scrub(this.heat, ({ y }) => Math.round((y / this.heat.clientHeight) * (this.last + 1) - 0.5));
      }
      return section;
    }

    // A picture of views.js.
    view(name) {
      const view = views[name](this, { make, pen, clamp });
      this.views.push(view);
      return view.element;
    }

    // A press on a picture over the layers shows the layer under it.
    scrub(canvas, layer) {
      const go = (event) => {
        const box = canvas.getBoundingClientRect();
        this.showLayer(clamp(layer({ x: event.clientX - box.left, y: event.clientY - box.top }), 0, this.last));
      };
      canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); go(event); });
      canvas.addEventListener("pointermove", (event) => canvas.hasPointerCapture(event.pointerId) && go(event));
    }

    buildSettings() {
      const section = make("section", { className: "play-settings", ariaLabel: "settings" });
      if (!this.given.controls) section.append(this.buildLevels());
      if (this.given.cases) section.append(this.buildCases());
      this.controls = {};
      const keys = this.given.controls || Object.keys(settings);
      for (const [group, title] of Object.entries(GROUPS)) {
        const rows = keys.filter((key) => settings[key].group === group).map((key) => this.buildControl(key));
        if (!rows.length) continue;
        const box = make("div", { className: `play-group play-${group}` }, ...rows);
        if (!this.given.controls) box.prepend(make("p", { className: "play-title", textContent: title }));
        section.append(box);
      }
      this.reset = make("button", { type: "button", textContent: "Reset", onclick: () => this.beginAgain() });
      this.copy = make("button", { type: "button", textContent: "Copy link", onclick: () => this.copyLink() });
      const bar = make("div", { className: "play-bar play-doors" }, this.reset);
      if (this.full) {
        const box = make("input", { type: "checkbox", checked: this.compared });
        box.addEventListener("input", () => { this.compared = box.checked; this.draw(); });
        if (this.inBook) bar.append(this.copy);
        bar.append(make("label", { className: "play-check" }, box, "compare with the run before"));
      }
      if (this.inBook && !this.ownPage) bar.append(this.link);
      // a control that lost the focus would close its words, and move the button away from the press
      bar.addEventListener("mousedown", (event) => event.target.matches("button") && event.preventDefault());
      this.address = make("p", { className: "play-address" });
      section.append(bar, this.address);
      return section;
    }

    buildLevels() {
      const name = `play-level-${Play.count = (Play.count || 0) + 1}`;
      const box = make("fieldset", { className: "play-levels" }, make("legend", { textContent: "controls" }));
      this.levels = LEVELS.map((words, k) => {
        const radio = make("input", { type: "radio", name, value: k + 1 });
        radio.addEventListener("input", () => { this.level = k + 1; this.fillControls(); });
        box.append(make("label", {}, radio, make("span", { textContent: words })));
        return radio;
      });
      return box;
    }

    // A menu of what a chapter compares; the curves of the others stay as pale lines.
    buildCases() {
      const { cases, controls } = this.given;
      const options = Object.keys(cases).map((name) => make("option", { textContent: name }));
      this.menu = make("select", { autocomplete: "off" }, ...options);
      this.menu.addEventListener("input", () => this.set(this.case(this.menu.value)));
      this.kept = controls || [];
      return make("label", { className: "play-row" }, make("span", { textContent: this.given.what }), this.menu);
    }

    // The settings of a case; what has a control of its own stays as the reader set it.
    case(name) {
      const mine = Object.fromEntries(this.kept.map((key) => [key, this.o[key]]));
      return { ...engine.complete(this.given.settings), ...mine, ...this.given.cases[name] };
    }

    // The other cases from the same start, for their pale curves.
    runOthers() {
      if (!this.menu || !this.charts.length) return;
      const names = Object.keys(this.given.cases).filter((name) => name !== this.menu.value);
      this.others = names.map((name) => {
        const o = engine.complete(this.case(name));
        return { name, measured: engine.measure(o, engine.run(o, engine.start(o, this.moved))) };
      });
    }

    buildControl(key) {
      const setting = settings[key];
      const name = make("span", { className: "play-word", textContent: setting.label });
      const row = make("label", { className: "play-row" }, name);
      const words = make("p", { className: "play-says", id: `play-says-${Play.said = (Play.said || 0) + 1}`, textContent: `${setting.words}.` });
      const box = make("div", { className: "play-control" }, row, words);
      let input;
      if (setting.choices) {
        const options = Object.entries(setting.choices).map(([value, words]) => make("option", { value, textContent: words }));
        input = make("select", { autocomplete: "off" }, ...options);
        row.append(input);
      } else {
        const { min, max, step } = setting;
        input = make("input", { type: "range", min, max, step, autocomplete: "off" });
        row.append(input, make("span", { className: "play-value" }));
      }
      input.addEventListener("input", () => this.change(key, setting.choices ? input.value : +input.value));
      input.setAttribute("aria-describedby", words.id);
      name.addEventListener("click", (event) => {
        event.preventDefault(); // a press on the name asks what it means and leaves the control alone
        box.classList.toggle("play-asked");
      });
      this.controls[key] = { box, input };
      return box;
    }

    fillControls() {
      for (const [key, { box, input }] of Object.entries(this.controls)) {
        input.value = this.o[key];
        if (input.nextElementSibling) input.nextElementSibling.textContent = short(this.o[key]);
        box.hidden = !this.given.controls && settings[key].level > this.level;
      }
      for (const group of this.root.querySelectorAll(".play-group")) {
        group.hidden = [...group.querySelectorAll(".play-control")].every((box) => box.hidden);
      }
      if (this.levels) this.levels[this.level - 1].checked = true;
    }

    // On a phone one of three parts stands under the tokens.
    buildTabs() {
      const names = { views: "Curves", settings: "Settings", quests: "Quests" };
      const buttons = Object.entries(names).map(([part, words]) => {
        const open = () => {
          this.root.dataset.tab = part;
          buttons.forEach((one) => one.setAttribute("aria-pressed", one === button));
          this.draw();
        };
        if (part === "settings") this.openSettings = open;
        const button = make("button", { type: "button", textContent: words, onclick: open });
        button.setAttribute("aria-pressed", part === "settings");
        return button;
      });
      this.root.dataset.tab = "settings";
      return make("div", { className: "play-tabs", role: "group", ariaLabel: "shown under the tokens" }, ...buttons);
    }

    // ---- quests

    buildQuests() {
      const list = make("ol", { className: "play-quests" });
      this.items = Object.fromEntries(questList.map((quest) => {
        const start = make("button", { type: "button", textContent: "Start here", onclick: () => this.startQuest(quest) });
        start.setAttribute("aria-label", `Start here: ${quest.title}`);
        const mark = make("b", { className: "play-mark" });
        const says = make("p", { className: "play-law", textContent: quest.says });
        const foot = make("p", { className: "play-foot" }, start, this.statement(quest), mark);
        const title = make("b", { textContent: quest.title });
        const item = make("li", {}, make("p", {}, title, make("br"), quest.words), says, foot);
        list.append(item);
        return [quest.id, { item, mark }];
      }));
      this.count = make("span", { className: "play-count" });
      const head = make("p", { className: "play-title" }, "Quests ", this.count);
      return make("section", { className: "play-questbox", ariaLabel: "quests" }, head, list);
    }

    // A link to a statement of the book, page and anchor as the build names them; from the list of quests to a section
    // that says it in words: `read`, or the chapter's idea. In a notebook the words alone.
    statement({ page, statement, read, title }, text) {
      if (!this.inBook) return make("span", { textContent: text || "" });
      const [base, end] = this.link.href.split(/playground(?=\.html)/);
      const [place, anchor] = read?.split("#") ?? [page, text || !this.full ? statement : "the-idea"];
      const href = `${base}${place}${end.replace(/#.*/, "")}#${anchor}`;
      const link = make("a", { href, textContent: text || "What is behind it" });
      if (!text) link.setAttribute("aria-label", `What is behind it: ${title}`);
      return link;
    }

    startQuest(quest) {
      this.begin(`#quest=${quest.id}`);
      this.openSettings();
      this.picked = false; // no token is chosen by this
      this.root.scrollIntoView({ block: "start", behavior: still.matches ? "auto" : "smooth" });
      this.canvas.focus({ preventScroll: true });
    }

    showQuest() {
      const { quest, task } = this;
      task.hidden = !quest;
      if (quest) {
        const mark = make("b", { className: "play-mark" });
        const says = make("span", { className: "play-law", textContent: `${quest.says} ` });
        const leave = make("button", { type: "button", className: "play-leave", textContent: "Leave", onclick: () => this.leave() });
        leave.setAttribute("aria-label", "Leave the quest");
        this.goal = make("span", { className: "play-goal" });
        const parts = [make("b", { textContent: `${quest.title}. ` }), quest.words, " ", this.goal, says, this.statement(quest), " "];
        task.replaceChildren(...parts, ...(this.full ? [leave, " "] : []), mark);
        this.taskMark = mark;
      }
      this.markQuests();
    }

    // The tokens stay as they are, and nothing is asked of them any more.
    leave() {
      this.quest = null;
      this.showQuest();
      this.say();
      this.writeSoon();
      this.canvas.focus({ preventScroll: true });
    }

    // A quest counts once it was seen unreached and then reached.
    judge() {
      const { quest } = this;
      if (!quest) return;
      const { reached, words } = quests.judge(quest, this.now, this.run, this.measured, this.run.states[0]);
      const solved = reached && !this.armed && !this.done.has(quest.id);
      this.goal.textContent = words + (solved ? " This link already solves it: change something and come back." : "");
      this.here = reached && this.armed;
      this.armed ||= !reached;
      if (this.here && !this.done.has(quest.id)) {
        this.done = memory.read().add(quest.id); // another page may have reached others since
        memory.write(this.done);
      }
      this.markQuests();
      this.say();
    }

    markQuests() {
      for (const [id, { item, mark }] of Object.entries(this.items || {})) {
        item.classList.toggle("play-done", this.done.has(id));
        item.classList.toggle("play-now", this.quest?.id === id);
        mark.textContent = this.done.has(id) ? "✓ reached" : "";
      }
      if (this.count) this.count.textContent = `${questList.filter((one) => this.done.has(one.id)).length} of ${questList.length} reached`;
      if (!this.quest) return;
      this.task.classList.toggle("play-done", this.here || this.done.has(this.quest.id));
      this.taskMark.textContent = this.here ? "✓ reached" : this.done.has(this.quest.id) ? "✓ reached before" : "";
    }

    // ---- words

    // One sentence about the run; not more often than a screen reader can say it.
    say() {
      const wait = (this.said || 0) + CALM - performance.now();
      clearTimeout(this.saying);
      if (wait > 0) {
        this.saying = setTimeout(() => this.say(), wait);
        return;
      }
      this.said = performance.now();
      const { word, sentence } = engine.status(this.now, this.run, this.measured);
      this.status.dataset.word = word;
      this.early = this.at < this.last; // the sentence is about the last layer, whichever is shown
      const hand = this.held ? `You move where token ${this.chosen + 1} starts. ` : "";
      const tick = this.quest && this.here ? "✓ Quest reached. " : "";
      const text = hand + (this.early ? `In the end: ${sentence[0].toLowerCase()}${sentence.slice(1)}` : sentence);
      if (this.status.textContent !== tick + text) {
        this.status.replaceChildren(make("b", { className: "play-mark", textContent: tick }), text);
      }
      for (const { name, canvas } of this.charts) {
        const values = this.measured.map((one) => one[name]);
        canvas.setAttribute("aria-label", `${CURVES[name].title}: ${short(values[0])} at layer 0, ${short(values.at(-1))} at layer ${this.last}`);
      }
      this.heat?.setAttribute("aria-label", `state of ${this.now.N} tokens over ${this.last} layers`);
    }

    // Words for the dashes, each a link; on the page of its own a curve more where a theorem speaks of it.
    showTheory() {
      for (const { name, box, links } of this.charts) {
        const found = this.theory.filter((one) => one.curve === name);
        box.hidden = !this.show.has(name) && !found.length;
        const key = JSON.stringify(found.map((one) => [one.words, one.page, one.statement]));
        if (links.dataset.key === key) continue; // or a link would lose the focus
        links.dataset.key = key;
        links.replaceChildren(...found.map((one, k) => {
          const dash = make("i", { className: k ? "play-dash play-dots" : "play-dash" });
          return make("span", {}, dash, this.statement(one, one.words));
        }));
      }
    }

    // ---- the address

    state() {
      const words = engine.address(this.o, this.moved, this.quest?.start);
      return [words, this.quest ? `quest=${this.quest.id}` : ""].filter(Boolean).join("&");
    }

    // The address of this state; in a notebook, what stands behind the # of it.
    href() {
      const page = this.ownPage ? location.href : this.inBook ? this.link.href : "playground.html";
      return page.replace(/#.*/, "") + (this.state() && `#${this.state()}`);
    }

    writeAddress() {
      const whole = location.protocol !== "file:" || this.address.matches(".play-seen");
      const changed = Object.keys(settings).filter((key) => this.o[key] !== settings[key].default);
      const said = (key) => `${settings[key].label}: ${settings[key].choices?.[this.o[key]] ?? short(this.o[key])}`;
      this.address.dataset.settings = changed.map(said).join("; ");
      this.address.textContent = whole ? this.href() : this.href().split("/").pop(); // a place on this disk is no address
      if (!this.ownPage) {
        if (this.inBook) this.link.href = this.href();
        return;
      }
      this.written = this.state() ? `#${this.state()}` : "";
      history.replaceState(history.state, "", this.written || location.pathname + location.search);
    }

    beginAgain() {
      this.begin(this.quest ? `#quest=${this.quest.id}` : "");
    }

    async copyLink() {
      const { copy } = this;
      try {
        await navigator.clipboard.writeText(this.href());
        copy.textContent = "Copied";
      } catch {
        this.address.classList.add("play-seen"); // no clipboard here: show it, to be copied by hand
        this.writeAddress();
        getSelection().selectAllChildren(this.address);
        copy.textContent = "Copy it below";
      }
      setTimeout(() => { copy.textContent = "Copy link"; }, 2000);
    }

    // ---- through the layers

    showLayer(layer) {
      this.stop();
      this.at = layer;
      this.draw();
    }

    setPlaying(playing) {
      this.button.textContent = playing ? "❚❚ Pause" : "▶ Play";
    }

    stop() {
      cancelAnimationFrame(this.timer);
      this.timer = 0;
      this.setPlaying(false);
    }

    // Forward from the layer shown; who asked for less motion sees a dozen still layers.
    play() {
      if (this.timer) return this.stop();
      if (this.at >= this.last) this.at = 0;
      this.setPlaying(true);
      const from = this.at;
      const duration = clamp(60 * this.last, 1500, 5000);
      const begun = performance.now();
      const tick = (now) => {
        const share = Math.max(0, now - begun) / duration;
        const moved = still.matches ? Math.floor(share * 12) / 12 : share;
        this.at = Math.min(this.last, from + moved * this.last);
        this.draw();
        if (this.at >= this.last) this.stop();
        else this.timer = requestAnimationFrame(tick);
      };
      this.timer = requestAnimationFrame(tick);
    }

    whenSeen(work) {
      const watch = new IntersectionObserver((entries) => {
        if (!entries.some((one) => one.isIntersecting)) return;
        watch.disconnect();
        work();
      }, { threshold: 0.5 });
      watch.observe(this.canvas);
    }

    // ---- hand and keys on the tokens

    listen(canvas) {
      const place = (event) => {
        const box = canvas.getBoundingClientRect();
        return this.fromScreen(event.clientX - box.left, event.clientY - box.top);
      };
      canvas.addEventListener("pointerdown", (event) => {
        const within = event.pointerType === "mouse" ? 16 : 26;
        const found = this.nearest(event, within);
        if (found === null) return;
        event.preventDefault();
        canvas.focus({ preventScroll: true });
        this.stop();
        [this.chosen, this.picked] = [found, true];
        const [x, y] = this.inside(this.toScreen(this.project(this.begun(), found)));
        const box = canvas.getBoundingClientRect();
        const onStart = Math.hypot(event.clientX - box.left - x, event.clientY - box.top - y) < within;
        this.held = { at: place(event), from: [...this.u0.slice(found * this.now.d, (found + 1) * this.now.d)] };
        if (!onStart) [this.held.back, this.at] = [this.at, 0]; // a later dot follows its start: show what the hand moves
        canvas.setPointerCapture(event.pointerId);
        this.say();
        this.draw();
      });
      canvas.addEventListener("pointermove", (event) => {
        if (!this.held) {
          const found = this.nearest(event, 16);
          canvas.style.cursor = found === null ? "" : "grab";
          if (found !== this.hover) { this.hover = found; this.draw(); }
          return;
        }
        const [x, y] = place(event);
        this.move(x - this.held.at[0], y - this.held.at[1], this.held.from);
      });
      const release = () => {
        if (!this.held) return;
        this.at = Math.min(this.held.back ?? this.at, this.last);
        this.held = null;
        this.gesture = null;
        this.frame();
        this.say();
        this.draw();
      };
      canvas.addEventListener("pointerup", release);
      canvas.addEventListener("pointercancel", release);
      canvas.addEventListener("pointerleave", () => { this.hover = null; this.draw(); });
      // a finger on a token drags it; elsewhere it scrolls the page
      canvas.addEventListener("touchstart", (event) => this.held && event.preventDefault(), { passive: false });
      canvas.addEventListener("keydown", (event) => this.key(event));
      for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => this.draw());
    }

    key(event) {
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      const step = steps[event.key];
      if (step) {
        const size = this.reach / (event.shiftKey ? 100 : 20);
        const from = [...this.u0.slice(this.chosen * this.now.d, (this.chosen + 1) * this.now.d)];
        this.move(size * step[0], size * step[1], from);
      } else if (event.key === "PageDown" || event.key === "PageUp") {
        this.chosen = (this.chosen + (event.key === "PageDown" ? 1 : this.now.N - 1)) % this.now.N;
        this.draw();
      } else if (event.key === " ") this.play();
      else if (event.key === "Escape" && this.full && this.quest) this.leave();
      else return;
      this.picked ||= event.key !== " ";
      event.preventDefault();
    }

    // Moves the chosen token's start, in the plane that is shown; kept to 1/100, so that a link is exact.
    move(dx, dy, from) {
      this.compare(`token ${this.chosen}`);
      const { axes } = this.plane;
      this.moved[this.chosen] = from.map((x, c) => Math.round(100 * (x + dx * axes[0][c] + dy * axes[1][c])) / 100);
      this.compute();
    }

    // The token whose dot or, where no dot is, whose start is under the pointer, if one is.
    nearest(event, within) {
      const box = this.canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      let [best, found] = [within, null];
      for (const u of [this.stateAt(this.at), this.begun()]) {
        if (best < 8) break;
        for (let i = 0; i < this.now.N; i++) {
          const [a, b] = this.inside(this.toScreen(this.project(u, i)));
          const far = Math.hypot(a - x, b - y);
          if (far < best) [best, found] = [far, i];
        }
      }
      return found;
    }

    // ---- from states to pixels

    // Where the tokens start: as the hand has them, even before their run is computed.
    begun() {
      return this.u0.length === this.run.states[0].length ? this.u0 : this.run.states[0];
    }

    // The plane that is shown and how far it reaches; held still while a token is dragged. Two features are the plane
    // itself, more are seen along the two directions in which they vary most, and a wave is drawn along its tokens.
    frame() {
      const { d, start: shape } = this.now;
      const unit = (k) => Float64Array.from({ length: d }, (_, c) => (c === k ? 1 : 0));
      const origin = new Float64Array(d);
      const before = this.plane;
      if (shape === "wave" || shape === "flat") this.plane = { line: true, axes: [origin, unit(0)], centre: origin };
      else if (d === 2) this.plane = { axes: [unit(0), unit(1)], centre: origin };
      else {
        const same = before && !before.line && before.centre.length === d;
        this.plane = principal(this.run.states, d, same ? before.axes : [unit(0), unit(1)]);
      }
      const extent = (u) => {
        let far = 0;
        for (let i = 0; i < this.now.N; i++) {
          const [x, y] = this.project(u, i);
          far = Math.max(far, this.plane.line ? 0 : Math.abs(x), Math.abs(y));
        }
        return far;
      };
      const start = Math.max(0.3, extent(this.run.states[0]));
      const whole = Math.max(start, ...this.run.states.map(extent).filter(Number.isFinite));
      this.reach = Math.max(this.show.has("density") ? 1.8 : 0, round(1.12 * Math.min(whole, 4 * start)));
    }

    // A token's place in the plane that is shown; of a wave, the place along the tokens and the first feature.
    project(u, i) {
      const { axes, centre, line } = this.plane;
      const d = centre.length;
      let [x, y] = [0, 0];
      for (let c = 0; c < d; c++) {
        const away = u[i * d + c] - centre[c];
        x += away * axes[0][c];
        y += away * axes[1][c];
      }
      return [line ? ((2 * i + 1) / this.now.N - 1) * 0.95 * this.reach : x, y];
    }

    toScreen([x, y]) {
      const { w, h, scale } = this.size;
      return [w / 2 + x * scale, h / 2 - y * scale];
    }

    fromScreen(x, y) {
      const { w, h, scale } = this.size;
      return [(x - w / 2) / scale, (h / 2 - y) / scale];
    }

    // A dot that is farther out stands at the edge.
    inside([x, y]) {
      const { w, h } = this.size;
      return [clamp(Number.isFinite(x) ? x : w, 6, w - 6), clamp(Number.isFinite(y) ? y : 0, 6, h - 6)];
    }

    // The state at a layer, and on the straight line between two of them while the layers play.
    stateAt(at) {
      const low = Math.floor(Math.min(at, this.last));
      const high = Math.min(low + 1, this.last);
      const share = at - low;
      if (!(share > 0) || high === low) return this.run.states[low];
      return this.run.states[low].map((x, k) => x + share * (this.run.states[high][k] - x));
    }

    // ---- drawing

    draw() {
      if (this.drawing) return;
      this.drawing = requestAnimationFrame(() => {
        this.drawing = 0;
        this.drawNow();
      });
    }

    // Paper is white, and what is on a canvas does not follow by itself.
    onPaper(is) {
      this.root.classList.toggle("play-paper", is);
      this.drawNow();
    }

    drawNow() {
      if (!this.run || !this.root.clientWidth) return;
      const style = getComputedStyle(this.root);
      const colour = (name) => style.getPropertyValue(`--play-${name}`).trim();
      this.colour = Object.fromEntries(["fg", "soft", "line", "bg", "hit", "light"].map((name) => [name, colour(name)]));
      this.drawStage();
      if (!performance.getEntriesByName("play-frame").length) performance.mark("play-frame");
      for (const chart of this.charts) this.drawChart(chart);
      for (const view of this.views) view.draw(this.colour);
      if (this.heat) this.drawHeat();
      const layer = Math.floor(this.at);
      this.slider.max = this.last;
      this.slider.value = layer;
      this.where.textContent = `layer ${layer}`;
      if (this.early !== this.at < this.last) this.say();
      this.slider.setAttribute("aria-valuetext", `layer ${layer} of ${this.last}, spread ${short(this.measured[layer].spread)}`);
    }

    tokenColour(i) {
      return `oklch(${this.colour.light} 0.14 ${250 + (175 * i) / Math.max(1, this.now.N - 1)})`;
    }

    drawStage() {
      if (!this.canvas.clientWidth) return; // another picture stands in its place
      const { c, w, h } = pen(this.canvas);
      this.size = { w, h, scale: Math.min(w, h) / 2 / this.reach };
      const { N, d } = this.now;
      const u = this.stateAt(this.at);
      const small = N > 64 ? 0.7 : 1;
      this.drawGround(c, w, h);
      const onIt = this.canvas.matches(this.picked ? ":focus" : ":focus-visible");
      const eye = this.held ? this.chosen : this.hover ?? (onIt ? this.chosen : null);
      c.lineWidth = 1.1;
      c.lineJoin = "round";
      for (let i = 0; i < N; i++) this.drawTrail(c, u, i, i === eye ? 0.9 : eye === null ? 0.3 : 0.15);
      if (eye !== null) this.drawAttention(c, u, eye);
      let beyond = 0;
      for (let i = 0; i < N; i++) {
        const place = this.toScreen(this.project(u, i));
        const [x, y] = this.inside(place);
        const away = x !== place[0] || y !== place[1];
        beyond += away;
        c.beginPath();
        c.arc(x, y, (i === eye ? 8 : 5) * small, 0, 7);
        c.fillStyle = away ? this.colour.bg : this.tokenColour(i);
        c.fill();
        c.lineWidth = away ? 1.5 : 1;
        c.strokeStyle = away ? this.tokenColour(i) : this.colour.bg;
        c.stroke();
      }
      if (eye !== null) this.drawStart(c, eye);
      if (this.leads()) this.drawStart(c, 0, u, 10);
      this.drawMean(c, u);
      this.caption.textContent = this.captionWords(eye, beyond, d);
    }

    captionWords(eye, beyond, d) {
      const what = this.plane.line ? "Token across, first feature up, " : d > 2 ? `The plane of largest variance (PCA) of ${d} features, ` : "";
      const words = [`${what}±${short(this.reach)}`, this.outside ? "the mean is outside" : this.plane.line ? "the line is the mean" : "+ is the mean"];
      if (this.crowd) words.push("dashes are the density that the PDE predicts for endlessly many tokens and short steps; its groups may meet earlier or later");
      if (this.leads()) words.push("the ring is around the first token");
      if (beyond) words.push(`${beyond} at the edge ${beyond > 1 ? "are" : "is"} farther out`);
      if (this.held?.back) words.unshift("You move the start");
      if (eye !== null) {
        const place = [...this.begun().slice(eye * d, eye * d + 2)].map(short).join(", ");
        words.push(`token ${eye + 1} starts at (${place}${d > 2 ? ", …" : ""})${this.heard || ""}`);
      }
      return `${words.join(" · ")}.`;
    }

    drawGround(c, w, h) {
      const [x, y] = this.toScreen(this.plane.line ? [-2 * this.reach, 0] : this.project(new Float64Array(this.now.d), 0));
      c.strokeStyle = this.colour.line;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(0, y);
      c.lineTo(w, y);
      c.moveTo(x, 0);
      c.lineTo(x, h);
      c.stroke();
      if (this.now.norm !== "circle" || this.now.d > 2) return;
      c.beginPath();
      c.arc(x, y, this.toScreen([1, 0])[0] - x, 0, 7);
      c.stroke();
      if (this.crowd) this.drawCrowd(c);
    }

    // The predicted density as dashes around the circle, the farther out the denser.
    drawCrowd(c) {
      const rho = this.crowd.states[Math.min(Math.floor(this.at), this.crowd.states.length - 1)];
      c.strokeStyle = this.colour.fg;
      c.setLineDash([5, 4]);
      c.beginPath();
      for (let i = 0; i <= rho.length; i++) {
        const angle = (2 * Math.PI * (i + 0.5)) / rho.length;
        const far = Math.min(this.reach, 1.05 + 0.3 * rho[i % rho.length]);
        c.lineTo(...this.toScreen([far * Math.cos(angle), far * Math.sin(angle)]));
      }
      c.stroke();
      c.setLineDash([]);
    }

    drawTrail(c, u, i, strength) {
      c.globalAlpha = strength;
      c.strokeStyle = this.tokenColour(i);
      c.fillStyle = c.strokeStyle;
      c.beginPath();
      c.arc(...this.toScreen(this.project(this.begun(), i)), 2.2, 0, 7);
      c.fill();
      c.beginPath();
      for (let l = 0; l <= this.at; l++) {
        const [x, y] = this.toScreen(this.project(this.run.states[l], i));
        if (!Number.isFinite(x + y) || Math.abs(x) + Math.abs(y) > 1e5) break;
        if (l) c.lineTo(x, y);
        else c.moveTo(x, y);
      }
      c.lineTo(...this.inside(this.toScreen(this.project(u, i))));
      c.stroke();
      c.globalAlpha = 1;
    }

    // Behind a causal mask the first token sees itself alone: it gets a ring.
    leads() {
      return this.now.causal === "yes" && this.now.v !== 0;
    }

    drawStart(c, i, u = this.begun(), radius = 6) {
      const [x, y] = this.toScreen(this.project(u, i));
      c.beginPath();
      c.arc(x, y, radius, 0, 7);
      c.strokeStyle = this.colour.fg;
      c.lineWidth = 1.5;
      c.stroke();
    }

    // To whom a token listens: a line's weight is the share.
    drawAttention(c, u, i) {
      const { N } = this.now;
      this.heard = "";
      if (this.now.v === 0 || !u.every(Number.isFinite)) return;
      const shares = engine.attention(this.now, u, Math.min(Math.floor(this.at), this.now.L - 1)).subarray(i * N, (i + 1) * N);
      const most = shares.reduce((a, b) => Math.max(a, b), 0);
      if (shares.every((share) => share === 0 || share > 0.999 * most)) return; // to all that it sees alike
      const here = this.inside(this.toScreen(this.project(u, i)));
      c.strokeStyle = this.colour.fg;
      shares.forEach((share, j) => {
        if (share < 0.02 * most || j === i) return;
        const there = this.inside(this.toScreen(this.project(u, j)));
        c.globalAlpha = 0.15 + 0.45 * (share / most);
        c.lineWidth = 0.5 + 4 * share ** 0.5 * (share / most);
        c.beginPath();
        c.moveTo(...here);
        c.lineTo(...there);
        c.stroke();
      });
      c.globalAlpha = 1;
      this.heard = ` and listens most to token ${shares.indexOf(most) + 1} (${Math.round(100 * most)} %)`;
    }

    drawMean(c, u) {
      const { N, d } = this.now;
      const mean = new Float64Array(d);
      for (let k = 0; k < u.length; k++) mean[k % d] += u[k] / N;
      const [x, y] = this.toScreen(this.project(mean, 0));
      const across = this.plane.line || (x >= 0 && x <= this.size.w);
      this.outside = !(across && y >= 0 && y <= this.size.h);
      if (this.outside) return;
      if (this.plane.line) {
        c.strokeStyle = this.colour.fg;
        c.lineWidth = 1;
        c.strokeRect(-1, y, this.size.w + 2, 0);
        return;
      }
      c.strokeStyle = this.colour.fg;
      c.lineWidth = 2;
      c.beginPath();
      c.moveTo(x - 9, y);
      c.lineTo(x + 9, y);
      c.moveTo(x, y - 9);
      c.lineTo(x, y + 9);
      c.stroke();
    }

    drawChart({ name, canvas, head }) {
      const { c, w, h } = pen(canvas);
      if (!w) return;
      const values = this.measured.map((one) => one[name]);
      const before = this.compared && this.before ? [{ name: "", measured: this.before }] : [];
      const pale = [...before, ...(this.others || [])].map((one) => ({ name: one.name, points: one.measured.map((m) => m[name]) }));
      const theory = this.theory.filter((one) => one.curve === name).map((one) => one.values);
      const lines = theory.map((one) => (typeof one === "number" ? values.map(() => one) : one));
      const scale = this.scale(CURVES[name], [values, ...lines], pale.flatMap((one) => one.points));
      const layer = Math.floor(this.at);
      head.firstChild.textContent = `${CURVES[name].title} ${short(values[layer])}`;
      head.lastChild.textContent = ` in layer ${layer}; ${CURVES[name].words}${scale.log ? "; logarithmic" : ""}`;
      const [left, right, top, bottom] = [44, w - 8, 8, h - 18];
      const across = (l) => left + (l / Math.max(1, this.now.L)) * (right - left);
      const up = (x) => bottom - clamp(scale.share(x), -0.05, 1.05) * (bottom - top);
      this.drawAxes(c, scale, { left, right, top, bottom });
      const line = (points, ink, width, dash = []) => {
        c.strokeStyle = ink;
        c.lineWidth = width;
        c.setLineDash(dash);
        c.beginPath();
        let pen = false;
        points.forEach((x, l) => {
          if (!Number.isFinite(x) || l > this.now.L) { pen = false; return; }
          c[pen ? "lineTo" : "moveTo"](across(l), up(x));
          pen = true;
        });
        c.stroke();
        c.setLineDash([]);
      };
      c.save();
      c.beginPath();
      c.rect(left, top - 4, right - left + 6, bottom - top + 8);
      c.clip();
      pale.forEach((one, k) => this.drawPale(c, one, [0.5, 0.25, 0.75][k % 3], { line, across, up, top, values }));
      line(values, this.colour.hit, 2);
      lines.forEach((points, k) => line(points, this.colour.fg, k ? 2 : 1.5, k ? [2, 4] : [5, 4])); // dots for a second one
      if (Number.isFinite(values[layer])) {
        c.fillStyle = this.colour.hit;
        c.beginPath();
        c.arc(across(layer), up(values[layer]), 4.5, 0, 7);
        c.fill();
      }
      c.restore();
    }

    // The run before, or another case with its name beside its curve; under the other curve it would seem to name that.
    drawPale(c, { name, points }, share, { line, across, up, top, values }) {
      c.globalAlpha = 0.55;
      line(points, this.colour.soft, 1.5);
      c.globalAlpha = 1;
      const at = Math.floor(share * points.length);
      if (Math.abs(up(points[at]) - up(values[at])) < 4) return;
      c.fillStyle = this.colour.soft;
      c.fillText(name, across(at), Math.max(top + 14, up(points[at]) - 5));
    }

    // Linear; logarithmic where the values span more than three powers of ten.
    scale({ low, high }, curves, ghost) {
      const all = [...curves.flat(), ...ghost].filter(Number.isFinite);
      const top = high ?? Math.max(1e-9, ...all.filter((x) => x < 1e12));
      const least = Math.min(top, ...all.filter((x) => x > 0));
      if (high === undefined && top > 1000 * Math.max(least, 1e-12)) {
        const [from, to] = [Math.floor(Math.log10(Math.max(least, 1e-12))), Math.ceil(Math.log10(top))];
        return { log: true, ends: [power(from), power(to)], share: (x) => (Math.log10(Math.max(x, 1e-300)) - from) / (to - from) };
      }
      const to = high ?? round(top * 1.02);
      return { log: false, ends: [short(low), short(to)], share: (x) => (x - low) / (to - low) };
    }

    drawAxes(c, scale, { left, right, top, bottom }) {
      c.strokeStyle = this.colour.line;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(left, top);
      c.lineTo(left, bottom);
      c.lineTo(right, bottom);
      c.stroke();
      c.fillStyle = this.colour.soft;
      c.textAlign = "right";
      c.font = "12px system-ui, sans-serif";
      c.fillText(scale.ends[1], left - 6, top + 8);
      c.fillText(scale.ends[0], left - 6, bottom);
      c.fillText(`layer ${this.now.L}`, right, bottom + 14);
      c.textAlign = "left";
      c.fillText("0", left, bottom + 14);
    }

    // Token across, layer down: blue below 0, orange above.
    drawHeat() {
      const { N, L, d } = this.now;
      const axis = this.plane.axes[this.plane.line ? 1 : 0];
      const zero = axis.reduce((sum, x, k) => sum + x * this.plane.centre[k], 0);
      const { c, w, h } = pen(this.heat);
      if (!w) return;
      this.heatHead.replaceChildren(make("b", { textContent: "state" }), ` token across, layer down; ${d > 2 && !this.plane.line ? "first direction of the plane" : "first feature"}`);
      const value = (u, i) => this.project(u, i)[this.plane.line ? 1 : 0] + zero;
      const image = new ImageData(N, L + 1);
      const dark = Number(this.colour.light) > 0.65;
      const [ground, plus, minus] = dark ? [[30, 34, 40], [240, 137, 75], [86, 180, 233]] : [[250, 250, 250], [200, 85, 0], [0, 105, 170]];
      this.run.states.forEach((u, l) => {
        for (let i = 0; i < N; i++) {
          const x = clamp(value(u, i) / this.reach, -1, 1) || 0;
          const k = 4 * (l * N + i);
          for (let p = 0; p < 3; p++) image.data[k + p] = ground[p] + Math.abs(x) * ((x > 0 ? plus : minus)[p] - ground[p]);
          image.data[k + 3] = 255;
        }
      });
      const sheet = make("canvas", { width: N, height: L + 1 });
      sheet.getContext("2d").putImageData(image, 0, 0);
      c.imageSmoothingEnabled = false;
      c.drawImage(sheet, 0, 0, w, h);
      c.strokeStyle = this.colour.fg;
      c.strokeRect(0.5, (Math.floor(this.at) / (L + 1)) * h, w - 1, h / (L + 1));
    }
  }

  // Every playground of the page that does not run yet; a page may hold several.
  const mount = () => {
    for (const root of document.querySelectorAll(".pdelab-play:not([data-mounted])")) {
      root.dataset.mounted = "";
      root.play = new Play(root);
    }
  };
  document.head.append(make("style", { textContent: css }));
  globalThis.pdelab.stage = { mount };
})();
