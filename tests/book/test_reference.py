"""The reference page: every entry is there, leads to the pages that use it and back, and its formulas are typeset."""

import re

import pytest
import reference
from exercises import BOOK, ROOT
from typeset import typeset

import pdelab

HTML = ROOT / "_build" / "html" / "book"


@pytest.fixture(scope="module")
def page():
    return (HTML / "api.html").read_text(encoding="utf-8")


def test_the_page_has_an_entry_for_all_that_the_package_exports_and_more(page):
    found = set(re.findall(r'<dt class="sig[^>]*id="([\w.]+)"', page))
    assert set(reference.documented()) <= found
    assert {f"pdelab.{name}" for name in pdelab._EXPORTS} - {"pdelab.Status"} <= found
    assert len(found) > 150


def test_an_entry_leads_to_the_pages_that_use_it_and_these_lead_back(page):
    used = reference.pages_with()
    assert "first_look" in used["pdelab.solve"]
    assert "evidence/crowd" in used["pdelab.solve_density"]
    entry = re.search(r'id="pdelab.solve">.*?</dl>', page, re.DOTALL)[0]
    for name in used["pdelab.solve"]:
        assert f'href="{name}.html"' in entry
        back = (HTML / f"{name}.html").read_text(encoding="utf-8")
        assert 'api.html#pdelab.solve"' in back


def test_what_a_page_imports_under_another_name_is_found():
    names = reference.used_on(BOOK / "crowd.ipynb")
    assert "pdelab.formulas.circle_rate" in names
    assert list(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("σ = ‖u − μ‖, the root", r"$\sigma  = \| u -  \mu \|$, the root"),
        ("ρ_l = cos(u_l, u_0): the", r"$\rho _{l} = \cos (u_{l}, u_{0})$: the"),
        ("√((1/N) Σ_i |u_i|²)", r"$\sqrt{(1/N) \sum _{i} |u_{i}|^{2}}$"),
        ("∫₀ᵀ e^{λs} ds", r"$\int _{0}^{T} e^{\lambda s} ds$"),
        ("W₁ᵀT²W₁ is v̄", r"$W_{1}^{\top}T^{2}W_{1}$ is $\bar{v}$"),
        ("a mask of `x_i = 1` with leak=True, [0, 1]", r"a mask of `x_i = 1` with leak=True, \[0, 1\]"),
        ("an unknown ☃ = 1 stays", "an unknown ☃ = 1 stays"),
    ],
)
def test_formulas_are_found_among_words_and_typeset(words, wanted):
    assert typeset(words) == wanted


def test_no_formula_of_the_page_is_cut(page):
    """Every bracket that opens in a formula closes in it, or MathJax would show its source in red."""
    formulas = re.findall(r'class="math notranslate nohighlight">\\\((.*?)\\\)</span>', page, re.DOTALL)
    assert len(formulas) > 100
    for formula in formulas:
        bare = re.sub(r"\\[{}]", "", formula)
        assert bare.count("{") == bare.count("}"), formula
