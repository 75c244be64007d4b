"""Networks that others trained, from files of `pdelab data get`: nothing here asks the network or a hub.

| name | network | width × layers | gives |
|---|---|---|---|
| minilm | all-MiniLM-L6-v2: BERT encoder, LayerNorm after each sum | 384 × 6 | last_hidden_state |
| smollm2 | SmolLM2-135M-Instruct: Llama decoder, RMSNorm, rotary positions | 576 × 30 | logits; loss, given labels |

    network = load("smollm2")
    inputs = network.inputs(["Depth is time.", "Tokens are space."])
    logits = network.model(**inputs).logits                   # (text, token, symbol)

The weights of smollm2 were rounded to four bits by their publisher and are float32 again here: unpacking them takes
some 15 s and 1.2 GB of memory, where minilm takes 3 s and 0.4 GB.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from pdelab.datasets import cache
from pdelab.options import choose, seed_of, whole
from pdelab.seeds import seeded

NEEDED = ("accelerate", "gguf", "safetensors", "transformers")  # the extra `probe`

# name -> class of the whole network in transformers
_CLASSES = {"minilm": "AutoModel", "smollm2": "AutoModelForCausalLM"}
NAMES = tuple(_CLASSES)


@dataclass(frozen=True)
class Pretrained:
    """A network of `transformers` in evaluation mode, and the tokenizer that belongs to it."""

    name: str
    model: Any
    tokenizer: Any

    def inputs(self, texts: Sequence[str], *, length: int | None = None, padding: str = "right") -> dict[str, Tensor]:
        """input_ids and attention_mask, (text, token), on the device of the network; 1 in the mask is a real token.

        Texts are cut to `length` tokens and filled up to the longest on the right or left. Filled up on the left,
        they come with position_ids too, so that each text still begins at position 0.
        """
        choose("padding", padding, ("right", "left"))
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(t, str) for t in texts):
            raise ValueError(f"texts must be a list of strings; not {texts!r}")
        most = self.model.config.max_position_embeddings
        if length is not None:
            whole("length", length, 1 + self.tokenizer.num_special_tokens_to_add(), most)

        ids = [self.tokenizer(text, truncation=length is not None, max_length=length)["input_ids"] for text in texts]
        if not ids or not all(1 <= len(row) <= most for row in ids):
            raise ValueError(f"texts must each give 1 to {most} tokens; not {[len(row) for row in ids]}: give length=")

        filled = self.tokenizer.pad({"input_ids": ids}, padding_side=padding, return_tensors="pt")
        found = {key: filled[key] for key in ("input_ids", "attention_mask")}
        if padding == "left":
            found["position_ids"] = (found["attention_mask"].cumsum(1) - 1).clamp(min=0)
        return {key: value.to(self.model.device) for key, value in found.items()}


def load(name: str) -> Pretrained:
    """minilm or smollm2 as published, in float32.

    DataMissing says how to get the files; a ValueError says what to install.
    """
    return _network(name, lambda kind, place: kind.from_pretrained(**place, dtype=torch.float32))


def untrained(name: str, seed: int) -> Pretrained:
    """The same architecture with random weights, drawn as its makers begin a training: the control of `load`."""
    seed_of(seed)

    def draw(kind: Any, place: dict[str, Any]) -> Any:
        config = import_module("transformers").AutoConfig.from_pretrained(**place)
        return seeded(lambda: kind.from_config(config, dtype=torch.float32), seed)

    return _network(name, draw)


def _network(name: str, build: Callable[[Any, dict[str, Any]], Any]) -> Pretrained:
    """What `build` makes of the class in transformers and the place of its files, and the tokenizer of that place."""
    kind = choose("name", name, _CLASSES)
    try:
        *_, transformers = map(import_module, NEEDED)
    except ImportError as error:
        raise ValueError(f'{name} needs packages that are not here ({error}): pip install "pdelab[probe]"') from error

    file = cache.verify(name)[0]
    place: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "local_files_only": True}
    if file.suffix == ".gguf":  # one file that holds configuration, weights and tokenizer
        place["gguf_file"] = file.name
    model = build(getattr(transformers, kind), place)
    return Pretrained(name, model.eval(), transformers.AutoTokenizer.from_pretrained(**place))
