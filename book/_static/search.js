// The search page. BOOK_PLACES, of search_index.js: [[address, title of the page, [[kind, title, anchor, words, keys]]]].
(() => {
  const AT_MOST = 40;
  const SAME = [[/\b(equations?|eqns?|eqs)\b/g, "eq"], [/\b(thms?|theorems)\b/g, "theorem"], [/\btab\b/g, "table"],
    [/\bfigs?\b/g, "figure"], [/\balg\b/g, "algorithm"], [/\bprop\b/g, "proposition"], [/\blem\b/g, "lemma"]];

  const form = document.querySelector("#search form");
  const field = form.querySelector("input");
  const status = document.querySelector("#search [role=status]");
  const help = document.getElementById("search-help");
  const list = document.getElementById("search-results");

  // Lower case without accents, letter for letter, so that a place in the folded text is one in the text.
  function fold(text) {
    return [...text].map((one) => one.normalize("NFKD")[0].toLowerCase()[0]).join("");
  }

  // "P2-Thm3.4", "Equation (9)" and "eq9" as keys are compared: p2theorem3.4, eq9.
  function squash(text) {
    let key = fold(text).replace(/([a-z])(?=\d)/g, "$1 ").replace(/\bp (?=\d)/g, "p");
    for (const [word, usual] of SAME) key = key.replace(word, usual);
    return key.replace(/[^a-z0-9.]/g, "").replace(/\.$/, "");
  }

  const places = BOOK_PLACES.flatMap(([address, page, found]) => found.map(([kind, title, anchor, words, keys], i) => ({
    kind, title, page, words,
    address: i ? `${address}#${anchor}` : address,
    foldedTitle: fold(title),
    foldedWords: fold(words),
    keys: keys.map(squash),
  })));

  // A word is found where a word begins with it; a number only as a whole. A plural finds its singular.
  function pattern(word) {
    const text = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    if (/^\d/.test(word)) return new RegExp(`(?<![\\w.])${text}(?![\\w])`, "g");
    return new RegExp(`(?<![a-z0-9])${word.length > 4 ? text.replace(/s$/, "") : text}`, "g");
  }

  const WORTH = { claim: 3, statement: 3, word: 3, section: 2, function: 1, case: 1, exercise: 1, equation: 0 };

  // How well a place answers: 0 if a word is missing; its own name is worth most, then its title, then its words.
  function score(place, patterns, key, phrase) {
    if (place.keys.includes(key)) return 1000 + 10 * WORTH[place.kind];
    let sum = WORTH[place.kind];
    for (const one of patterns) {
      const inTitle = (place.foldedTitle.match(one) || []).length;
      const inWords = (place.foldedWords.match(one) || []).length;
      if (!inTitle && !inWords) return 0;
      sum += 20 * Math.min(inTitle, 1) + Math.min(inWords, 5);
    }
    if (patterns.length > 1 && place.foldedTitle.includes(phrase)) sum += 40;
    if (patterns.length > 1 && place.foldedWords.includes(phrase)) sum += 15;
    return sum;
  }

  function find(query) {
    const phrase = fold(query).trim();
    const key = squash(query);
    const wanted = phrase.split(/[^\p{L}\p{N}._]+/u).map((word) => word.replace(/^\.+|\.+$/g, "")).filter(Boolean);
    if (!wanted.length) return { found: [], patterns: [] };
    const patterns = wanted.map(pattern);
    const found = places.map((place) => [score(place, patterns, key, phrase), place]).filter(([worth]) => worth);
    found.sort(([a], [b]) => b - a);
    return { found: found.map(([, place]) => place), patterns };
  }

  // About 200 letters around the first word that is found, with the words marked.
  function excerpt(place, patterns) {
    const first = Math.min(...patterns.map((one) => place.foldedWords.search(one)).filter((at) => at >= 0), Infinity);
    const from = first < 90 || first === Infinity ? 0 : place.words.indexOf(" ", first - 80) + 1;
    const text = place.words.slice(from, from + 200);
    const folded = place.foldedWords.slice(from, from + 200);
    const marks = patterns.flatMap((one) => [...folded.matchAll(one)].map((hit) => [hit.index, hit[0].length]));
    const line = document.createElement("p");
    let done = 0;
    if (from) line.append("… ");
    for (const [at, length] of marks.sort(([a], [b]) => a - b)) {
      if (at < done) continue;
      line.append(text.slice(done, at));
      const mark = document.createElement("mark");
      mark.textContent = text.slice(at, at + length);
      line.append(mark);
      done = at + length;
    }
    line.append(text.slice(done));
    if (from + 200 < place.words.length) line.append(" …");
    return line;
  }

  const KINDS = { case: "verdict in", claim: "claim in", statement: "statement in", exercise: "exercise in",
    equation: "in", word: "word in", function: "function in", section: "in" };

  function item(place, patterns) {
    const entry = document.createElement("li");
    const link = document.createElement("a");
    link.href = place.address;
    link.textContent = place.title;
    entry.append(link);
    if (place.title !== place.page) {
      const under = document.createElement("small");
      under.textContent = ` ${KINDS[place.kind]} ${place.page}`;
      entry.append(under);
    }
    if (place.words) entry.append(excerpt(place, patterns));
    return entry;
  }

  function show() {
    const query = field.value.trim();
    const { found, patterns } = find(query);
    list.replaceChildren(...found.slice(0, AT_MOST).map((place) => item(place, patterns)));
    help.hidden = found.length > 0;
    if (!query) status.textContent = "What to search for:";
    else if (!found.length) status.textContent = `Nothing is found for “${query}”. Try fewer words, or one of these:`;
    else if (found.length > AT_MOST) status.textContent = `The first ${AT_MOST} of ${found.length} places; one more word narrows them.`;
    else status.textContent = `${found.length} ${found.length === 1 ? "place" : "places"}.`;
  }

  field.value = new URLSearchParams(location.search).get("q") || "";
  let wait = 0;
  field.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => {
      show();
      history.replaceState(null, "", field.value ? `?q=${encodeURIComponent(field.value)}` : location.pathname);
    }, 150);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show();
    list.querySelector("a")?.focus();
  });
  // The arrow keys go from the field into the list and through it.
  document.getElementById("search").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const stops = [field, ...list.querySelectorAll("li > a")];
    const next = stops[stops.indexOf(document.activeElement) + step];
    if (!stops.includes(document.activeElement) || !next) return;
    event.preventDefault();
    next.focus();
  });
  field.focus();
  show();
})();
