"""pdelab probe: a network by its name, its folder or a function that makes it, given to `pdelab.probe`."""

import importlib
import importlib.util
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from typing import Any

import click
import torch
from torch import Tensor, nn

from pdebook.terminal import DAMAGED, STOPPED, fail
from pdelab import pretrained, probe
from pdelab.datasets import cache
from pdelab.files import check_writable, write_atomically
from pdelab.training import choose_device

# what is read without --text: our own words, about 290 tokens
TEXT = " ".join(
    """
A pond in winter freezes from above. The first ice is thin and clear, and a child who lies on it can watch the weeds
move below. By January it carries a horse. Nobody decides when it is safe; people look at the colour, listen to the
sound of a stone, and remember what happened to the neighbour's dog in the year of the flood. In March the ice turns
grey, then black, and one night the wind breaks it with a noise like a slow door. In the morning there is water, and
two ducks, as if nothing had been there at all.

To bake bread you need flour, water, salt, and time, and of these time is the one that cannot be bought. Mix them in
the evening. The dough looks like nothing and sticks to everything. Fold it, wait, fold it again; after an hour it
pulls back when you touch it, because long molecules have found each other and hold on. Overnight the yeast eats and
breathes, and the bubbles that it leaves are what you will call the crumb. Bake it hot, and do not cut it while it
sings.

The train from the north is late again. On the platform a woman counts her change, a boy reads the same page twice,
and a man in a green coat explains to somebody on the telephone that he is almost there. He is not almost there. When
the doors open at last they all look up, and for a moment everyone is polite.
""".split()
)

FORMS = "minilm or smollm2; a folder with a model and its tokenizer; module:function or file.py:function"
Loss = Callable[[Any], Tensor]


def run(
    target: str,
    about: dict[str, Any],
    threads: int | None,
    page: Path | None,
    data: Path | None,
    folder: Path | None,
    quiet: bool,
    **options,
) -> None:
    """Print the report of a network, and write it where that was asked; the arguments are the options of the command.

    about: text, length, examples and device, for a network that reads text. options: those of `pdelab.probe`.
    """
    for path in (page, data):
        if path is not None:
            check_writable(path.resolve().parent)
    folder = cache.folder() / "probes" if folder is None else folder
    check_writable(folder)
    if threads is not None:
        torch.set_num_threads(threads)
    ready = ":" in target and not Path(target).is_dir()
    if ready and (unfit := [n for n, x in about.items() if x is not None]):
        raise click.UsageError(f"--{unfit[0]} is for networks with a tokenizer; {target} gives inputs of its own")
    try:
        model, inputs, loss, mask = made_by(target) if ready else (*reading(target, **about), None)
        with told():
            report = probe(model, inputs, loss=loss, mask=mask, folder=folder, progress=not quiet, **options)
    except KeyboardInterrupt:
        fail("stopped; the same command goes on with what is left", STOPPED)

    click.echo(report)
    for path, made in ((page, report.to_html), (data, report.to_json)):
        if path is not None:
            write_atomically(path, made())
            click.echo(f"written: {path}")


@contextmanager
def told() -> Iterator[None]:
    """What we refuse, in its sentence. Faults in a function or model of the user keep their traceback."""
    try:
        yield
    except ValueError as error:
        *_, (frame, _) = walk_tb(error.__traceback__)
        if frame.f_globals["__name__"].partition(".")[0] not in ("pdelab", "pdebook"):
            raise
        fail(str(error), DAMAGED)


# A network that reads text


def reading(
    target: str, text: Path | None, length: int | None, examples: int | None, device: str | None
) -> tuple[nn.Module, dict[str, Tensor], Loss | None]:
    """The network of this name or in this folder, the text as its inputs, and its loss if it predicts next tokens."""
    length, examples = length or 32, examples or 8
    chosen = _device(device)
    words = TEXT if text is None else _beginning(text, examples * length)
    with told():
        model, tokenizer = network(target)
    most = getattr(model.config, "max_position_embeddings", None) or length
    if length > most:
        raise click.UsageError(f"--length must be at most {most}, the positions that {target} has; not {length}")
    inputs = {name: x.to(chosen) for name, x in windows(tokenizer, words, length, examples).items()}
    return model.to(chosen), inputs, next_token_loss(inputs["input_ids"]) if _is_causal(model) else None


def _device(name: str | None) -> torch.device:
    try:
        return choose_device(name or "auto")
    except ValueError as error:
        raise click.UsageError(f"--device: {error}") from error


def _beginning(path: Path, tokens: int) -> str:
    """As much of the file as so many tokens can need, at 20 characters each."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(20 * tokens)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"--text: {path} is no text in UTF-8 ({error})") from error


def network(target: str) -> tuple[nn.Module, Any]:
    """The network of this name or in this folder, and its tokenizer."""
    if target not in pretrained.NAMES and not Path(target).is_dir():
        raise click.BadParameter(f"no network is called {target!r}, nor a folder; give {FORMS}", param_hint="NETWORK")
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise ValueError(f'{target} needs transformers ({error}): pip install "pdelab[probe]"') from error
    with redirect_stderr(io.StringIO()):  # bars of loading weights; warnings go where they went at the import
        if target not in pretrained.NAMES:
            return _saved(target, transformers)
        found = pretrained.load(target)
        return found.model, found.tokenizer


def _saved(folder: str, transformers: Any) -> tuple[nn.Module, Any]:
    place = {"pretrained_model_name_or_path": folder, "local_files_only": True}
    try:
        kind = "AutoModelForCausalLM" if _is_causal(transformers.AutoConfig.from_pretrained(**place)) else "AutoModel"
        tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
        return getattr(transformers, kind).from_pretrained(**place, dtype=torch.float32).eval(), tokenizer
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        why = str(error).strip().partition("\n")[0]
        hint = "for inputs other than text write a function: pdelab probe file.py:function"
        raise ValueError(f"{folder} holds no model and tokenizer that transformers can load ({why}); {hint}") from error


def _is_causal(of: Any) -> bool:
    """Whether a model, or the one that a configuration was saved with, predicts next tokens."""
    causal = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = getattr(of, "config", of)
    name = type(of).__name__ if isinstance(of, nn.Module) else (config.architectures or [""])[0]
    return name == causal.get(config.model_type)


def windows(tokenizer: Any, text: str, length: int, examples: int) -> dict[str, Tensor]:
    """The text from its beginning, cut into examples of `length` tokens, the tokenizer's own marks among them."""
    cut = tokenizer(text, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
    whole = [row for row in cut if len(row) == length] or cut[:1]  # a text shorter than that is one example
    ids = torch.tensor(whole[:examples])
    if ids.shape[1] < 2:
        raise click.UsageError("--text must hold two tokens or more")
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def next_token_loss(ids: Tensor) -> Loss:
    """−log p(next token), the mean over all tokens but the last of each example."""
    return lambda out: nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


# A function that makes a network


def made_by(target: str) -> tuple[nn.Module, Any, Loss | None, Any]:
    """model, inputs, loss and mask, None where there is none, of module:function or file.py:function."""
    place, _, name = target.rpartition(":")
    try:
        module = _module(place)
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise click.BadParameter(f"{place} cannot be loaded: {error}", param_hint="NETWORK") from error
    if not callable(getattr(module, name, None)):
        raise click.BadParameter(f"{place} has no function {name!r}", param_hint="NETWORK")

    made = getattr(module, name)()
    fits = isinstance(made, tuple) and len(made) in (2, 3, 4) and isinstance(made[0], nn.Module)
    if not fits or not (len(made) == 2 or callable(made[2]) or (len(made) == 4 and made[2] is None)):
        what = f"({', '.join(type(x).__name__ for x in made)})" if isinstance(made, tuple) else type(made).__name__
        forms = "(model, inputs), (model, inputs, loss) or (model, inputs, loss, mask)"
        words = "a torch module, what it is called with, a function of its output that gives one number, or None, and "
        words += "where tokens are real, (batch, token)"
        raise click.UsageError(f"{target} must return {forms}: {words}; not {what}")
    return (*made, None, None)[:4]


def _module(place: str) -> Any:
    """The module of this name, here or installed, or of this file; what stands beside it can be imported too."""
    path = Path(place).resolve()
    if path.suffix != ".py":
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"probed_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module
