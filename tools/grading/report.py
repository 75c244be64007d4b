"""What grading leaves behind to read: grades.csv, feedback pages, answers side by side."""

import html
import random
from collections.abc import Iterable, Mapping, Sequence

from grading.judge import Class, Outcome
from grading.kit import Exercise, Kit
from grading.marks import Mark, Marks
from grading.tables import written

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46em;margin:2em auto;padding:0 1em;color-scheme:light dark}"
    "pre{overflow-x:auto;border:1px solid #8888;padding:.7em}article{border-top:1px solid #8888;margin-top:1.5em}"
    ".text,.comment{white-space:pre-wrap;overflow-wrap:anywhere}img{max-width:100%}"
)
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # nothing on a page runs or is fetched


def page(title: str, body: str) -> str:
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
    head += f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    return f"{head}<h1>{html.escape(title)}</h1>{body}\n"


def feedback(kit: Kit, student: str, outcomes: Sequence[Outcome], marks: Mapping[str, Mark]) -> str:
    """What the student gets: points, the check's own words and a person's; no flag, no drawn input, no solution."""
    parts, scored = [], _points(kit, outcomes, marks)
    for exercise, outcome in zip(kit.exercises, outcomes, strict=True):
        points, mark = scored[exercise.label], marks.get(exercise.label, Mark())
        read = "to be read" if points is None else f"{points:g}"
        earlier = f"To an earlier answer: {mark.comment_before}" if mark.comment_before else ""
        said = "".join(f"<p class=comment>{html.escape(one)}</p>" for one in (mark.comment, earlier) if one)
        parts.append(
            f"<article><h2>{html.escape(exercise.title)}</h2><p><b>{read} of {exercise.points:g}</b></p>"
            f"<p>{html.escape(outcome.words)}</p>{said}</article>"
        )
    return page(f"{kit.name}: {student}", f"<p><b>{_total(kit, scored)}</b></p>{''.join(parts)}")


def _total(kit: Kit, scored: Mapping[str, float | None]) -> str:
    """The sum of the points, which is no sum yet while an answer is to be read."""
    known = [points for points in scored.values() if points is not None]
    waiting = len(scored) - len(known)
    so_far = f" so far, {waiting} answer{'s' * (waiting > 1)} to be read" if waiting else ""
    return f"Total: {sum(known):g} of {kit.points:g}{so_far}"


def side_by_side(exercise: Exercise, answers: Iterable[tuple[str, Outcome]], seed: int) -> str:
    """All answers to one exercise, in a random order and without names; the rubric stands on top."""
    shuffled = sorted(answers, key=lambda one: one[0])
    random.Random(seed).shuffle(shuffled)
    cards = []
    for key, outcome in shuffled:
        verdict = f"<p><b>{outcome.points:g} points by the machine.</b> {html.escape(outcome.words)}</p>"
        shown = "".join(_part(kind, content) for kind, content in outcome.answer)
        cards.append(f"<article><h2>Answer {key}</h2>{verdict if exercise.coded else ''}{shown}</article>")
    own = "The machine's points stand where marks.csv has none." if exercise.coded else "none is given"
    rubric = f"<p><b>Rubric.</b> {html.escape(exercise.rubric or own)}</p>"
    return page(exercise.title, f"<p>{exercise.points:g} points.</p>{rubric}{''.join(cards)}")


def _part(kind: str, content: str) -> str:
    """Text and code as they are typed, for nothing in them to run; a picture, which is known to be a PNG or JPEG."""
    if kind == "picture":
        source = f"data:image/{'jpeg' if content.startswith('/9j/') else 'png'};base64,{html.escape(content)}"
        return f'<p><img alt="a picture of this answer" src="{source}"></p>'
    return f"<pre class={'text' if kind == 'text' else 'code'}>{html.escape(content)}</pre>"


def copies(kit: Kit, shapes: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """student -> flags for answers with the syntax tree of another's, where the answer is long enough to tell."""
    found: dict[str, list[str]] = {}
    for exercise in kit.exercises:
        groups: dict[str, list[str]] = {}
        for student, held in shapes.items():
            if len(shape := held.get(exercise.label, "")) > 400:
                groups.setdefault(shape, []).append(student)
        for together in groups.values():
            for student in together if len(together) > 1 else ():  # all are named once, beside the first
                others = together[:1] if student != together[0] else together[1:]
                found.setdefault(student, []).append(f"{exercise.label}: same code as {', '.join(others)}")
    return found


def table(kit: Kit, graded: Class, extra: Mapping[str, Mapping[str, str]], marks: Marks) -> str:
    """grades.csv: a row per student; an answer in words has no points until a person gave them."""
    rows, sums = [], totals(kit, graded, marks)
    for student, outcomes in graded.items():
        points = _points(kit, outcomes, marks.get(student, {}))
        shown = {label: "" if value is None else f"{value:g}" for label, value in points.items()}
        seconds = f"{sum(outcome.seconds for outcome in outcomes):.1f}"
        rows.append({"student": student, "total": f"{sums[student]:g}", **shown, "seconds": seconds, **extra[student]})
    return written(rows)


def totals(kit: Kit, graded: Class, marks: Marks) -> dict[str, float]:
    """student -> points so far."""
    found = {student: _points(kit, outcomes, marks.get(student, {})) for student, outcomes in graded.items()}
    return {student: sum(one for one in points.values() if one is not None) for student, points in found.items()}


def _points(kit: Kit, outcomes: Sequence[Outcome], marks: Mapping[str, Mark]) -> dict[str, float | None]:
    """label -> points, by a person or else by the machine, 0 for no words; None where nobody gave any yet."""
    found: dict[str, float | None] = {}
    for one, outcome in zip(kit.exercises, outcomes, strict=True):
        given = marks.get(one.label, Mark()).points
        machine = one.coded or not (outcome.answer or outcome.flags)
        found[one.label] = (outcome.points if one.coded else 0.0) if given is None and machine else given
    return found


def unmarked(kit: Kit, graded: Class, marks: Marks) -> int:
    """How many answers wait for a person."""
    scored = [_points(kit, outcomes, marks.get(student, {})) for student, outcomes in graded.items()]
    return sum(one is None for points in scored for one in points.values())
