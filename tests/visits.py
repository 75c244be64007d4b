"""Built pages, opened in a real browser with the network cut."""

from axe_playwright_python.sync_playwright import Axe
from exercises import ROOT

HTML = ROOT / "_build" / "html"
FOUND = sorted(path.relative_to(HTML).as_posix() for path in HTML.rglob("*.html") if "_static" not in path.parts)
PAGES = [page for page in FOUND if page != "index.html"]  # which only leads to the first page
SERIOUS = ("serious", "critical")
COLOURS = ("color-contrast", "link-in-text-block")  # axe's rules that the dark can break
LOOKS = """() => {
    const seen = {};
    for (const one of document.body.querySelectorAll(":not(mjx-container *)")) {
        const text = [...one.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        const shown = text || one.matches("input, select");
        if (!shown || !one.checkVisibility({ visibilityProperty: true })) continue;
        const { color, fontSize, fontWeight } = getComputedStyle(one), look = [color, fontSize, fontWeight];
        for (let part = one; part; part = part.parentElement) {
            const { backgroundColor, backgroundImage, opacity } = getComputedStyle(part);
            look.push(backgroundColor, backgroundImage, opacity);
        }
        const number = seen[look] = (seen[look] ?? 0) + 1;
        one.toggleAttribute("data-look", number <= 3);
    }
}"""  # marks three texts of each colour, size and ground: what axe says of their contrast, it says of all that look so
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


class Visit:
    """A page opened with the network cut, with what it asked for and what it complained about."""

    def __init__(self, browser, address, *, scheme="light", viewport=DESKTOP, touch=False, **more):
        seen = {"color_scheme": scheme, "viewport": viewport, "has_touch": touch} | more
        self.context = browser.new_context(offline=True, **seen)
        self.page = self.context.new_page()
        self.external, self.complaints = [], []
        self.page.on("request", lambda r: r.url.startswith(("file:", "data:", "blob:")) or self.external.append(r.url))
        self.page.on("requestfailed", lambda r: self.complaints.append(f"could not load {r.url}"))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.complaints.append(m.text))
        self.page.goto(address, wait_until="load")
        self.page.evaluate("window.MathJax && MathJax.startup ? MathJax.startup.promise : null")

    def unfold(self):
        """Open all that is behind a click, at once."""
        self.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        self.page.evaluate("document.getAnimations().forEach(a => a.finish())")

    def serious_faults(self, rules=()):
        """What axe finds of its rules, or of these; contrast is measured at three texts of each look."""
        named = {"runOnly": {"type": "rule", "values": [*rules]}} if rules else {}
        found = self._axe(None, named | {"rules": {"color-contrast": {"enabled": False}}})
        self.page.evaluate(LOOKS)
        found += self._axe({"include": [["[data-look]"]]}, {"runOnly": {"type": "rule", "values": ["color-contrast"]}})
        return [(fault["id"], node["target"], node["html"][:150]) for fault in found for node in fault["nodes"]]

    def _axe(self, where, options):
        response = Axe().run(self.page, where, options | {"resultTypes": ["violations"]}).response
        return [fault for fault in response["violations"] if fault["impact"] in SERIOUS]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


def visit(browser, page, **options):
    return Visit(browser, (HTML / page).as_uri(), **options)
