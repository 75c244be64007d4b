"""play: tokens in motion, to drag and to change, in a notebook, at the head of a chapter and on a page of its own.

What it shows is plain HTML with one script: no kernel, no network and no library. The script is joined here from
engine.js (the mathematics), quests.js (when a goal is reached), stage.js (the page) and digit.js (a drawn digit through
trained networks), with the settings and the quests as data; a page that shows several playgrounds defines it once.
"""

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from numbers import Real
from urllib.parse import parse_qsl, quote

CURVES = ("spread", "fidelity", "energy")
MORE = ("diameter", "longest", "mean", "cosine", "groups")
PARTS = ("stage", "curves", *CURVES, *MORE, "heat", "density", "map", "response")
PAGE = "playground.ipynb"  # the build makes .html of it
FILE = "play.js"  # the script's own file, beside the built pages


def play(
    quest: str | None = None,
    *,
    show: Iterable[str] | None = None,
    controls: Iterable[str] | None = None,
    level: int = 1,
    moved: Mapping[int, Sequence[float]] | None = None,
    run: bool = False,
    words: str = "",
    cases: Mapping[str, Mapping[str, float | str]] | None = None,
    what: str = "layers",
    layer: int | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    **settings: float | str,
) -> "Play":
    """The playground with these settings, play(beta=6, norm="none"); settings.json lists them all.

    quest: begin with this quest, by its id: its settings, its words, and a mark once it is reached.
    show: what stands beside the tokens: curves over the layers, "curves" for the first three of "spread", "fidelity",
        "energy", "diameter", "longest", "mean", "cosine", "groups"; "heat", the state of every token; "density", what
        the equation of the crowd predicts for a ring; "map", each mark a run; "response", who notices a poke. Without
        it everything, as on the playground's own page.
    controls: the settings that get a slider or a menu; without it those of `level`, 1 basic, 2 terms, 3 all, which the
        reader can raise.
    moved: where tokens start that do not start where the settings put them: {token: (x, y)}.
    run: whether the tokens set out by themselves, once, when they come into sight.
    words: a sentence for readers without JavaScript.
    cases: settings under names, for a menu that is called `what`; it begins with the first, and the curves of the
        others stand beside its own: cases={"with −u": {"leak": 1}, "with a skip": {"leak": 0}}.
    layer: the layer that is shown first; without it the last.
    ranges: the two settings of the map and how far they reach: ranges={"gamma": (0.2, 3), "size": (0.2, 2)}.

    >>> play(beta=6, controls=["beta"])
    Playground: sharpness β 6. Run this cell in a notebook, or open the playground at #beta=6.
    """
    first = next(iter(cases.values()), {}) if cases else {}
    made = Play(
        quest, show=show, controls=controls, level=level, moved=moved, run=run, words=words, settings=settings | first
    )
    made._given["layer"] = None if layer is None else int(layer)
    return made.compare(settings, cases, what, ranges) if cases or ranges else made


def at(address: str) -> "Play":
    """The playground in the state that an address has behind its #.

    >>> at("beta=6&norm=none").settings
    {'beta': 6, 'norm': 'none'}
    """
    known = _settings()
    given = dict(parse_qsl(address, strict_parsing=True))
    return play(
        **{name: value if "choices" in known.get(name, ()) else _number(value) for name, value in given.items()}
    )


class Play:
    """What `play` returns; a notebook displays it. `address` is the state, as it stands behind # in a link."""

    def __init__(self, quest, *, show, controls, level, moved, run, words, settings):
        known = _settings()
        if quest is not None and quest not in _quests():
            raise ValueError(f"quest must be one of {', '.join(_quests())}; not {quest!r}")
        if level not in (1, 2, 3):
            raise ValueError(f"level must be 1 (basic), 2 (terms) or 3 (all); not {level!r}")
        self.settings = {name: _value(name, value) for name, value in settings.items()}
        if quest is not None and settings:
            raise ValueError(f"quest brings its own settings; leave out {', '.join(settings)}, or the quest")
        self.moved = {_token(token): _place(token, place) for token, place in (moved or {}).items()}
        self.quest = quest
        self._given = {
            "settings": self.settings,
            "moved": self.moved,
            "quest": quest,
            "show": [*CURVES, "heat", "density"] if show is None else _parts(show),
            "full": show is None,
            "controls": None if controls is None else _names("controls", controls, known),
            "level": level,
            "run": bool(run),
            "layer": None,
        }
        self._words = words or "Tokens that move from layer to layer. They need JavaScript to run."

    def compare(self, settings, cases, what, ranges) -> "Play":
        """The same with a menu of cases or the ranges of a map."""
        for case in (cases or {}).values():
            for name, value in case.items():
                _value(name, value)
        if ranges is not None and len(_names("ranges", ranges, _settings())) != 2:
            raise ValueError(f"ranges needs two settings, each with its least and largest value; not {ranges!r}")
        self._given |= {"cases": cases, "what": what, "ranges": ranges}
        self._given["settings"] = settings
        return self

    @property
    def address(self) -> str:
        """beta=6&norm=none: every setting that is not at its default, and the tokens that were moved."""
        if self.quest is not None:
            return f"quest={self.quest}"
        known = _settings()
        changed = {name: value for name, value in self.settings.items() if value != known[name]["default"]}
        parts = [f"{name}={quote(str(changed[name]))}" for name in known if name in changed]
        places = [",".join(f"{x:g}" for x in (token, *place)) for token, place in sorted(self.moved.items())]
        return "&".join(parts + ([f"u={';'.join(places)}"] if places else []))

    def _repr_html_(self) -> str:
        data = json.dumps(self._given, ensure_ascii=False).replace("</", "<\\/")
        return (
            f'<div class="pdelab-play"><p>{html.escape(self._words)}</p>'
            f'<p><a class="play-open" href="{PAGE}{html.escape("#" * bool(self.address) + self.address)}">'
            "Open in the playground</a></p>"
            f'<script type="application/json">{data}</script><script class="play-script">{script()}</script></div>'
        )

    def __repr__(self) -> str:
        known = _settings()
        said = [
            f"{known[name]['label']} {value:g}" if isinstance(value, Real) else f"{known[name]['label']} {value}"
            for name, value in self.settings.items()
        ]
        what = f"the quest {self.quest!r}" if self.quest else ", ".join(said) or "tokens in motion"
        return f"Playground: {what}. Run this cell in a notebook, or open the playground at #{self.address}."


@cache
def script() -> str:
    """Everything that a page needs, in one classic script; comments and indents stay behind."""
    data = {
        "settings": _settings(),
        "questList": list(_quests().values()),
        "css": _lean(_read("play.css") + _read("digit.css")),
    }
    given = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    parts = ("engine.js", "quests.js", "views.js", "stage.js", "digit.js")
    code = "\n".join(_lean(_read(name)) for name in parts)
    return (
        "if (!globalThis.pdelab?.stage) {\n"
        f"globalThis.pdelab = Object.assign(globalThis.pdelab || {{}}, {given});\n{code}}}\n"
        "pdelab.stage.mount();\npdelab.digit.mount();\n"
    ).replace("</", "<\\/")


def without_script(markup: str, source: str = FILE) -> str:
    """The markup of a playground with the address of its script in place of the script."""
    pattern = r'<script class="play-script"(?: src="[^"]*")?>.*?</script>'
    return re.sub(pattern, f'<script class="play-script" src="{source}"></script>', markup, flags=re.DOTALL)


def _lean(code: str) -> str:
    """The code without comments that fill whole lines, without indents and empty lines."""
    code = re.sub(r"^[ \t]*/\*.*?\*/[ \t]*$", "", code, flags=re.DOTALL | re.MULTILINE)
    lines = (line.strip() for line in code.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))


def _read(name: str) -> str:
    return files("pdebook.kit.play").joinpath(name).read_text(encoding="utf-8")


@cache
def _settings() -> dict[str, dict]:
    return json.loads(_read("settings.json"))


@cache
def _quests() -> dict[str, dict]:
    return {quest["id"]: quest for quest in json.loads(_read("quests.json"))}


def _names(argument: str, given: Iterable[str], known: Iterable[str]) -> list[str]:
    """The names as a list, each of them known."""
    names = [given] if isinstance(given, str) else list(given)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{argument} names {unknown[0]!r}; there are {', '.join(known)}")
    return names


def _parts(show: Iterable[str]) -> list[str]:
    names = _names("show", show, PARTS)
    return [part for name in names for part in (CURVES if name == "curves" else (name,))]


def _value(name: str, value):
    """The value of a setting, as settings.json allows it."""
    known = _settings()
    if name not in known:
        raise ValueError(f"there is no setting {name!r}; there are {', '.join(known)}")
    setting = known[name]
    if choices := setting.get("choices"):
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; not {value!r}")
        return value
    low, high, step = setting["min"], setting["max"], setting["step"]
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= value <= high:
        raise ValueError(f"{name} must be a number from {low} to {high}; not {value!r}")
    nearest = min(high, round(low + round((value - low) / step) * step, 6))
    if abs(nearest - value) > 1e-9:
        raise ValueError(f"{name} goes in steps of {step}, nearest is {nearest:g}; not {value!r}")
    return int(value) if value == int(value) else float(value)


def _number(text: str) -> float | str:
    """The number that a text is, or the text itself, which `_value` refuses."""
    try:
        return float(text)
    except ValueError:
        return text


def _token(token) -> int:
    most = _settings()["N"]["max"]
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < most:
        raise ValueError(f"moved names tokens by number, 0 to {most - 1}; not {token!r}")
    return token


def _place(token: int, place: Sequence[float]) -> list[float]:
    numbers = list(place) if isinstance(place, Sequence) and not isinstance(place, str) else []
    if len(numbers) < 2 or not all(isinstance(x, Real) and abs(x) <= 100 for x in numbers):
        raise ValueError(f"moved puts token {token} at {place!r}; it needs two numbers or more between −100 and 100")
    return [float(x) for x in numbers]
