# One image: a place to work in (devcontainer, Binder), and one to grade code that you do not trust. It was written
# without Docker at hand and has not been built or run: try it before you rely on it.
#
#     docker build -t pdelab .
#     docker run --rm -p 8888:8888 pdelab
#
# Grade without a network, the assignment and the submissions from outside:
#
#     docker run --rm --network none -v "$PWD/_build:/srv/book/_build" -v "$PWD/subs:/subs:ro" \
#         pdelab python tools/grade.py hw1 /subs
FROM python:3.12-slim

RUN apt-get update && apt-get install -y --no-install-recommends chromium git make && rm -rf /var/lib/apt/lists/*

# Binder asks for a user of this number, and starts `jupyter notebook`
RUN useradd --create-home --uid 1000 reader && install -d -o reader /srv/book /srv/env
USER reader
WORKDIR /srv/book

# beside the book, since a devcontainer mounts your copy over it
COPY --chown=reader requirements.lock ./
RUN python -m venv /srv/env && /srv/env/bin/python -m pip install --no-cache-dir -r requirements.lock notebook
ENV PATH="/srv/env/bin:$PATH"

COPY --chown=reader . .
RUN python -m pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    && python tools/editions.py --lab student --prepare

CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "work"]
