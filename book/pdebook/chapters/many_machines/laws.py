"""What a Transformer costs before it is run: the operations of its large products, and the bytes of what is kept.

Counted are the matrix products, two operations for each product of numbers; sums, norms and exponentials are not. An
operation of attention takes longer than one of a weight matrix, so time has two rates, measured where it will run.
"""

from dataclasses import dataclass

BYTES = 4  # of a number in float32


@dataclass(frozen=True)
class Stack:
    """L layers of width d, with feed-forward networks of width m, that read B sequences of N tokens at once.

    keys: the share of the heads that have keys and values of their own; 1 unless heads are grouped.
    gated: the feed-forward network has three matrices, not two.
    """

    layers: int
    width: int
    hidden: int
    tokens: int
    batch: int = 1
    keys: float = 1.0
    gated: bool = False

    @property
    def weights(self) -> float:
        """Numbers in the weight matrices of all layers: L(2(1 + keys)d² + 2dm), or 3dm where gated."""
        attention = 2 * (1 + self.keys) * self.width**2
        return self.layers * (attention + (3 if self.gated else 2) * self.width * self.hidden)

    @property
    def fields(self) -> float:
        """Numbers in the states of all layers, L of B·N·d."""
        return self.layers * self.batch * self.tokens * self.width

    def forward(self) -> "Operations":
        """2BN for every weight, and 4BN²d per layer for scores and averages; a causal mask is not deducted."""
        return Operations(2.0 * self.batch * self.tokens * self.weights, 4.0 * self.tokens * self.fields)

    def training_step(self) -> "Operations":
        """Forward and backward: every product of the one stands for two of the other."""
        return 3 * self.forward()


@dataclass(frozen=True)
class Operations:
    """Those of the weight matrices, and those of attention, whose number grows with the square of the tokens."""

    matrices: float
    attention: float

    def __rmul__(self, times: float) -> "Operations":
        return Operations(times * self.matrices, times * self.attention)

    @property
    def total(self) -> float:
        return self.matrices + self.attention

    def seconds(self, matrices: float, attention: float) -> float:
        """At these two rates, operations per second."""
        return self.matrices / matrices + self.attention / attention


def rates(first: tuple[Operations, float], second: tuple[Operations, float]) -> tuple[float, float]:
    """The two rates at which both measured (operations, seconds) come out exactly; they must differ in their shares."""
    (a, s), (b, t) = first, second
    determinant = a.matrices * b.attention - a.attention * b.matrices
    per_matrix = (s * b.attention - t * a.attention) / determinant
    per_attention = (t * a.matrices - s * b.matrices) / determinant
    if not (per_matrix > 0 and per_attention > 0):
        raise ValueError("the two times fit no pair of positive rates; measure at tokens that lie further apart")
    return 1 / per_matrix, 1 / per_attention


def training_bytes(stack: Stack) -> float:
    """Weights with gradient and Adam's two averages, and what the backward pass needs of each layer.

    Of `pdelab.transformer` with ReLU a layer keeps 8d + m numbers per token.
    """
    kept = stack.batch * stack.tokens * (8 * stack.width + stack.hidden)
    return BYTES * (4 * stack.weights + stack.layers * kept)


def probe_operations(stack: Stack, draws: int = 3) -> Operations:
    """`pdelab.probe` with a loss, its four controls and derivatives at four layers, of six layers or more.

    draws: of random and of permuted weights. Passes forward through all layers:

    | what runs | passes |
    |---|---|
    | the network is recorded: layers are found, branches traced and nudged | 10 + 1/L |
    | every control is recorded: two are drawn so many times | 2·draws + 2 |
    | of the network and each control, by layer: half steps, a sum, equal tokens; the next one, then this | 5 − 2/L |
    | towards the loss: two gradients, and without some layers, once chosen and five times by chance | 8 |
    | of the network and one control: four layers, linearised for each of four derivatives | 2·16/L |

    Passes backward to the states, for the gradients and of those 32: one each, and 39 products with the Jacobian or its
    transpose for the four derivatives of a layer. Lanczos' method may end sooner. A gradient of states is one product
    of each weight matrix, and two of scores and averages.
    """
    L, controls = stack.layers, 2 * draws + 2
    forward = 10 + 1 / L + controls + (1 + controls) * (5 - 2 / L) + 8 + 32 / L
    backward = 2 + (32 + 8 * 39) / L
    once = stack.forward()
    return Operations((forward + backward) * once.matrices, (forward + 2 * backward) * once.attention)


def probe_bytes(stack: Stack, number: int = BYTES) -> float:
    """The weights and those of one control, and of two recordings every state and what each of two branches adds.

    number: bytes of a weight and of a number in a state.
    """
    return number * (2 * stack.weights + 2 * 3 * stack.fields)


BOOK = {  # what was or would be run at the papers' sizes: a stack, and how many steps
    "P2's ListOps, a Transformer": (Stack(6, 128, 512, tokens=1000, batch=32), 5_000),
    "P2's MNIST by pixels": (Stack(6, 128, 512, tokens=784, batch=32), 9_375),
    "P1's MNIST by rows": (Stack(10, 64, 256, tokens=28, batch=64), 4_685),
}
PROBED = {  # the shapes of published networks, with their keys shared by several heads
    "SmolLM2, 135M": Stack(30, 576, 1536, tokens=512, keys=1 / 3, gated=True),
    "1B": Stack(16, 2048, 8192, tokens=512, keys=1 / 4, gated=True),
    "70B": Stack(80, 8192, 28_672, tokens=512, keys=1 / 8, gated=True),
}


def costs(core: float = 5e10, gpu: float = 1e14) -> list[list[str]]:
    """A row for each: operations, gigabytes, hours on a core and on a GPU at these rates."""
    found = [(f"train {name}", steps * s.training_step(), training_bytes(s)) for name, (s, steps) in BOOK.items()]
    found += [(f"probe {name}", probe_operations(s), probe_bytes(s)) for name, s in PROBED.items()]
    return [
        [name, f"{work.total:.1e}", _short(size / 1e9), *(_short(work.total / rate / 3600) for rate in (core, gpu))]
        for name, work, size in found
    ]


def _short(number: float) -> str:
    """Two digits, 560 and not 5.6e+02."""
    return f"{float(f'{number:.2g}'):g}"
