// Filter of the ledger, by verdict, chapter, kind and source. Without it, and on paper, the whole list is there.
(() => {
  const ledger = document.currentScript.parentNode;
  const form = ledger.querySelector("form");
  const entries = [...ledger.querySelectorAll("details.claim")];
  const menus = [...form.querySelectorAll("select")];
  const [status, nothing] = ["output", ".ledger-nothing"].map((name) => ledger.querySelector(name));
  const fits = (entry, menu) => !menu.value || entry.dataset[menu.name] === menu.value;

  const show = () => {
    let shown = 0;
    for (const entry of entries) {
      entry.hidden = !menus.every((menu) => fits(entry, menu));
      shown += !entry.hidden;
    }
    status.textContent = `${shown} of ${entries.length} claims shown`;
    nothing.hidden = shown > 0;
    for (const menu of menus) {
      // an option counts what it would show beside the choices of the other menus
      const others = menus.filter((other) => other !== menu);
      const within = entries.filter((entry) => others.every((other) => fits(entry, other)));
      for (const option of menu.options) {
        const count = within.filter((entry) => !option.value || entry.dataset[menu.name] === option.value).length;
        option.textContent = `${option.dataset.words} (${count})`;
      }
    }
  };
  const read = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    if (!location.hash.startsWith("#claim-") && !menus.some((menu) => given.has(menu.name))) return;
    // a link to an entry shows all entries, or it would lead nowhere
    for (const menu of menus) {
      const value = given.get(menu.name) || "";
      menu.value = [...menu.options].some((option) => option.value === value) ? value : "";
    }
    show();
    const target = location.hash.startsWith("#claim-") && document.getElementById(location.hash.slice(1));
    if (target && ledger.contains(target)) {
      target.closest("details").open = true;
      target.scrollIntoView();
    }
  };
  const write = () => {
    const chosen = menus.filter((menu) => menu.value).map((menu) => [menu.name, menu.value]);
    const hash = new URLSearchParams(chosen).toString();
    if (ledger.closest(".bd-article")) // in a notebook the address is not ours
      history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
    show();
  };
  form.addEventListener("change", write);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(write));
  window.addEventListener("hashchange", read);
  form.hidden = false;
  show();
  read();
})();
