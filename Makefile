# pdelab: `make help` lists what can be done. Everything runs inside .venv, which the first command makes.
.DEFAULT_GOAL := help
.PHONY: help book pdf test lab notebooks record editions assignment grade figures sizes bench versions format clean moved

PY := .venv/bin/python
EDITION ?= student
WORKERS ?= 2
export PYTHON

help:  ## show this list
	@echo "pdelab, an executable textbook:"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{ printf "  make %-11s %s\n", $$1, $$2 }'
	@echo "Next: make book"

# set up again when what to install changed, or when the folder was moved: the environment holds its own address
MOVED := $(shell [ "$$(cat .venv/ready 2>/dev/null)" = "$$(pwd -P)" ] || echo moved)
.venv/ready: requirements.lock pyproject.toml tools/setup.sh $(MOVED)
	@sh tools/setup.sh

moved:

book: .venv/ready  ## set up if needed, then build the HTML book
	@$(PY) tools/build_book.py

pdf: book  ## print the book to one PDF with bookmarks, which its pages then offer
	@$(PY) tools/print_book.py

test: book  ## build the book, then run every test, notebooks and browser included
	@$(PY) -m ruff check --quiet . && $(PY) -m ruff format --quiet --check . || { echo "Next: make format, and mend what it cannot."; exit 1; }
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile
	@echo "All tests passed. Next: make lab to work in the notebooks, or commit your change."

lab: .venv/ready  ## open JupyterLab on your own copies in work/ (EDITION=instructor for solutions, LAB=--no-browser)
	@$(PY) tools/editions.py --lab $(EDITION) -- $(LAB)

notebooks: .venv/ready  ## run the text sources into the committed notebooks (CHAPTER=name for one)
	@$(PY) tools/notebooks.py $(CHAPTER)

record: .venv/ready  ## record the results and test outcomes that the ledger reads (AGAIN=--again: all of them anew)
	@$(PY) -m pdebook.cli run '*' --scale book --seeds 5 --store data/results $(AGAIN)
	@$(PY) -m pytest tests/claims -q --record-claims
	@echo "Recorded. Next: make notebooks, so that the pages show it."

editions: .venv/ready  ## write what students are handed, and the notebooks with solutions, to _build/editions
	@$(PY) tools/editions.py

assignment: .venv/ready  ## one notebook of exercises to hand out (NAME=hw1 EXERCISES="ex-sb-cycle stabilization" PRIVATE=folder EXPORT=nbgrader)
	@$(PY) tools/assignment.py "$(NAME)" $(EXERCISES) $(if $(PRIVATE),--private $(PRIVATE)) $(if $(EXPORT),--export $(EXPORT))

grade: .venv/ready  ## grade a class (NAME=hw1 SUBMISSIONS=zip-or-folder GRADEBOOK=export.csv MARKS=marks.csv)
	@$(PY) tools/grade.py "$(NAME)" "$(SUBMISSIONS)" $(if $(GRADEBOOK),--gradebook "$(GRADEBOOK)") $(if $(MARKS),--marks "$(MARKS)")

figures: .venv/ready  ## write the figures of the pages with captions, alt text and licence to _build/figures (CHAPTER=name for one)
	@$(PY) tools/figure_pack.py $(CHAPTER)

sizes: book  ## how long each page is to read, to look through, to load and to run: book/sizes.md
	@$(PY) tools/sizes.py

bench: .venv/ready  ## speed and memory beside the peers, a table and book/speed.md (BENCH="transformer --device cuda")
	@$(PY) benchmarks/run.py $(if $(BENCH),$(BENCH),--page)

versions: .venv/ready  ## test the library with the lowest and the newest versions allowed (TORCH=2.13.0 for one torch)
	@$(PY) tools/versions.py $(if $(TORCH),--torch $(TORCH))

format: .venv/ready  ## format the code (in notebooks: edit the text source)
	@$(PY) -m ruff check --fix --extend-exclude '*.ipynb' . && $(PY) -m ruff format --extend-exclude '*.ipynb' .
	@echo "Formatted. Next: make test"

clean:  ## remove the environment and all that was built; your own work/ stays
	@echo "Removing .venv and everything built …"
	@rm -rf .venv _build .pytest_cache .ruff_cache book/.ruff_cache .hypothesis
	@echo "Clean. Next: make book"
