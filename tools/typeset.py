"""Formulas of docstrings, written in Unicode as code can show them, typeset: σ² = (1/N) Σ_i |u_i − μ|² as LaTeX."""

import re
import unicodedata

SIGNS = dict(
    zip(
        "−·×⊙±∓≤≥≈≠≡∞∈∉→←↦∂∇∫⟨⟩‖ℓ⌊⌋⌈⌉½¼¾…~∝≪≫∘⊗∅",
        r"- \cdot \times \odot \pm \mp \le \ge \approx \ne \equiv \infty \in \notin \to \leftarrow \mapsto "
        r"\partial \nabla \int \langle \rangle \| \ell \lfloor \rfloor \lceil \rceil \tfrac12 \tfrac14 \tfrac34 "
        r"\dots \sim \propto \ll \gg \circ \otimes \varnothing".split(),
        strict=True,
    )
) | {"ε": r"\varepsilon", "φ": r"\varphi", "{": r"\{", "}": r"\}", "%": r"\%", "#": r"\#"}
ABOVE = {"\u0302": r"\hat", "\u0303": r"\tilde", "\u0304": r"\bar"}
NAMED = {"max", "min", "log", "exp", "cos", "sin", "tanh", "det", "sup"}
ROMAN = {"LN", "FFN", "Att", "KL", "softmax", "sym", "diag", "cov", "tr", "diam", "mean"}
STRONG = re.compile(r"[=≤≥<>≈∈→←↦+−·√Σ∫∂^±∓~⟨‖⊙½|α-ωΑ-Ω₀-₋ᵀ⁺⁻²_]|[A-Za-z0-9)]/[A-Za-z0-9(]|\u0302|\u0303|\u0304")
CODE = re.compile(r"""["`]|'\w|[A-Za-z]{2}'|\w{3,}=|=[A-Z][a-z]|\w\.\w{2,}|[a-z]{2,}_[a-z]{2,}|^\d+[/-]\d""")
PRODUCT = re.compile(r"d[xst]|[a-z][A-Z]|[A-Z][a-z]")  # of two letters
BINARY = "=+−·/×←→↦≤≥≈∈<>~⊙±∓|‖"


def words(letters: str) -> str:
    """A run of letters: a function's name upright, else a product."""
    if letters in NAMED:
        return rf"\{letters} "
    return rf"\operatorname{{{letters}}}" if letters in ROMAN or len(letters) > 3 else letters


def script(text: str, at: int) -> tuple[str, int]:
    """What stands after _ or ^: {…}, or letters and digits without a space."""
    if at < len(text) and text[at] == "{":
        end = closing(text, at, "{}")
        return latex(text[at + 1 : end]), end + 1
    if at < len(text) and text[at] == "(":
        end = closing(text, at, "()")
        return latex(text[at : end + 1]), end + 1
    found = re.match(r"[A-Za-z]+(?!_)|\d+|[^\s,;)]", text[at:])
    return (latex(found[0]), at + found.end()) if found else ("", at)


def closing(text: str, at: int, pair: str) -> int:
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] == pair[0]) - (text[end] == pair[1])
        if depth == 0:
            return end
    raise ValueError(f"no {pair[1]} for the {pair[0]} in {text!r}")


def latex(text: str) -> str:
    """The formula as LaTeX; a ValueError names a sign that is not known."""
    text, made, at = unicodedata.normalize("NFD", text).replace("=\u0338", "≠"), "", 0
    while at < len(text):
        one = text[at]
        if run := re.match(r"[A-Za-z]+", text[at:]):
            if text[at + run.end() : at + run.end() + 1] in ABOVE:  # an accent belongs to the last letter alone
                run = re.match(r"[A-Za-z]+(?=[A-Za-z])|[A-Za-z]", text[at:])
            made, at = made + words(run[0]), at + run.end()
        elif one in "_^":
            inner, at = script(text, at + 1)
            made += f"{one}{{{inner}}}"
        elif run := re.match(r"[₀-₎ₐ-ₜᵢ-ᵪ]+|[⁰-ⁿ²³¹ʰᵀᵏˡᵐᵖ]+", text[at:]):
            sign = "_" if unicodedata.decomposition(run[0][0]).startswith("<sub>") else "^"
            plain = unicodedata.normalize("NFKD", run[0])
            transposed = plain == "T" and r"\int" not in made[-12:]
            inner = r"\top" if transposed else latex(plain)
            made, at = made + f"{sign}{{{inner}}}", at + run.end()
        elif one == "√":
            at += 1
            if text[at : at + 1] == "(":
                end = closing(text, at, "()")
                inner, at = latex(text[at + 1 : end]), end + 1
            else:
                run = re.match(r"[^\s()/,;]+", text[at:])
                inner, at = latex(run[0]), at + run.end()
            made += rf"\sqrt{{{inner}}}"
        elif one in ABOVE:
            last = re.search(r"(\\[A-Za-z]+ |.)$", made)[0]
            made, at = made.removesuffix(last) + rf"{ABOVE[one]}{{{last}}}", at + 1
        elif one in SIGNS:
            made, at = made + SIGNS[one] + " ", at + 1
        elif one == "Σ":  # a covariance, or a sum
            covariance = made.endswith(r"\det  ") or re.match(r"Σ(_[A-Z]|\u0302)", text[at:])
            made, at = made + (r"\Sigma " if covariance else r"\sum "), at + 1
        elif (name := unicodedata.name(one, "").split())[:1] == ["GREEK"]:
            letter = name[-1].lower().replace("lamda", "lambda")
            made, at = made + rf"\{letter.title() if 'CAPITAL' in name else letter} ", at + 1
        elif one.isascii():
            made, at = made + one, at + 1
        else:
            raise ValueError(f"{one!r} in {text!r}")
    return made


def kind(word: str) -> str:
    """formula, neutral (a letter, a number) or text."""
    bare = unicodedata.normalize("NFD", word).strip(".,;:()[]")
    if CODE.search(bare):
        return "text"
    if PRODUCT.fullmatch(bare) and bare not in ("If", "In", "At", "No", "So", "As", "By", "To", "On", "Of", "It", "Is"):
        return "neutral"
    letters = re.findall(r"(?<![_^{A-Za-z])[A-Za-z]{2,}", bare)
    if any(not (run in NAMED | ROMAN or run.isupper() or (len(run) == 2 and len(bare) > 3)) for run in letters):
        return "text"
    if (
        STRONG.search(bare)
        or re.match(r"\(*([A-Za-z]|Att|LN|FFN|max|min|log|KL)[({]", word)
        or (bare in BINARY and bare)
    ):
        return "formula"
    return "text" if letters and bare not in NAMED | ROMAN else "neutral"


def typeset(text: str) -> str:
    """Markdown of plain text: its formulas between dollars, all else escaped; what is in backticks stays."""
    made = ""
    for piece in re.split(r"(`[^`]*`)", text):
        if piece.startswith("`"):
            made += piece
            continue
        words = re.findall(r"\s*\S+|\s+$", piece)  # each with the space before it
        while words:
            taken = next((n for n, word in enumerate(words) if kind(word.strip()) == "text"), len(words))
            made += _run(words[:taken]) + escaped("".join(words[taken : taken + 1]))
            words = words[taken + 1 :]
    return made


def _run(words: list[str]) -> str:
    """Letters and numbers at both ends are text, unless a sign asks for them; so are stops and a lonely bracket."""
    formulas = [n for n, word in enumerate(words) if kind(word.strip()) == "formula"]
    if not formulas:
        return escaped("".join(words))
    first, last = formulas[0], formulas[-1]
    if first and words[first].strip()[0] in BINARY:
        first -= 1
    while last + 1 < len(words) and (
        words[last][-1] in BINARY
        or open_in("".join(words[first : last + 1]))
        or re.fullmatch(r" d[xst]\W*", words[last + 1])
    ):
        last += 1
    formula = "".join(words[first : last + 1])
    space = formula[: len(formula) - len(formula.lstrip())]
    before, formula, after = "".join(words[:first]) + space, formula.lstrip(), "".join(words[last + 1 :])
    while formula[-1:] and (formula[-1] in ".,;: " or (formula[-1] in ")]" and unpaired(formula))):
        formula, after = formula[:-1], formula[-1] + after
    while formula[:1] and formula[0] in "([" and unpaired(formula):
        before, formula = before + formula[0], formula[1:]
    try:
        inner = latex(formula).strip()
    except ValueError:
        inner = ""
    return f"{escaped(before)}${inner}${escaped(after)}" if inner else escaped("".join(words))


def open_in(text: str) -> bool:
    return any(text.count(a) > text.count(b) for a, b in ("()", "[]", "⟨⟩"))


def unpaired(text: str) -> bool:
    return any(text.count(a) != text.count(b) for a, b in ("()", "[]"))


def escaped(text: str) -> str:
    return re.sub(r"([*_\[\]<>$|#\\])", r"\\\1", text)
