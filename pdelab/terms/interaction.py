"""A[u]: attention, a non-local interaction of every token with every other.  (P2 eq 5; P1 eq 2, 9-11)"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from pdelab.field import Field, Mask, check_field, check_number, check_state, precise
from pdelab.formulas import attention_contraction, attention_lipschitz, keep_real, norm2
from pdelab.options import flags, positive, whole
from pdelab.terms.base import Term, scaled


class Interaction(Term):
    """A[u]_i = α Σ_h W_Oʰ Σ_j P^h_ij W_Vʰ u_j,  P^h_i = softmax_j(⟨W_Qʰ u_i, W_Kʰ u_j⟩ / √d_h).  (P2 eq 5; P1 eq 9-11)

    The sum over j is the integral over y in P2 eq 5, with a kernel that integrates to one. Heads are joined by
    concatenation, which equals the sum over h of each head's own block of W_O; P2 eq 19 is another thing.

    leak=True subtracts u once, as P2 eq 5 prints it; a Transformer block is the form without.
    strength is P1's α. causal=True lets token i see j ≤ i only: a property of the term, not of the mask.
    groups: so many heads of keys and values, each shared by heads/groups neighbouring queries; as many as heads unless
    given. rotary: the base of rotary positions, 1e4 as a rule; scores then depend on i − j too (`rotated`).
    """

    symbol: str = "A"

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        leak: bool = False,
        causal: bool = False,
        strength: float = 1.0,
        bias: bool = True,
        groups: int | None = None,
        rotary: float | None = None,
    ):
        super().__init__()
        width, heads = whole("width", width), whole("heads", heads)
        flags(leak=leak, causal=causal, bias=bias)
        if width % heads:
            raise ValueError(f"heads must divide width; {heads} heads do not divide width {width}")
        self.width, self.heads, self.head_width = width, heads, width // heads
        check_number("strength", strength)
        self.leak, self.causal, self.strength = leak, causal, strength
        self.groups = heads if groups is None else whole("groups", groups)
        if heads % self.groups:
            raise ValueError(f"groups must divide heads; {groups} groups do not divide {heads} heads")
        self.rotary = None if rotary is None else positive("rotary", rotary)
        if rotary is not None and self.head_width % 2:
            raise ValueError(f"rotary turns pairs of features; heads of width {self.head_width} must be even for it")
        self.qkv = nn.Linear(width, width + 2 * self.groups * self.head_width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def _split(self, u: Field) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (
            x.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for x in self.qkv(u).split(self._rows(), dim=-1)
        )  # (batch, head or group, token, head width)
        if self.rotary is not None:
            q, k = rotated(q, self.rotary), rotated(k, self.rotary)
        if self.groups != self.heads:
            k, v = (x.repeat_interleave(self.heads // self.groups, dim=1) for x in (k, v))
        return q, k, v

    def _rows(self) -> tuple[int, int, int]:
        """How many rows of qkv make queries, keys and values."""
        queries, keys = self.heads * self.head_width, self.groups * self.head_width
        return queries, keys, keys

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None, maps: list[Tensor] | None = None) -> Field:
        """maps: a list that takes P; it is then computed once, for the rate too, which differs by rounding."""
        check_state(u, mask, self.width, self.qkv)
        u = keep_real(u, mask)
        q, k, v = self._split(u)
        allowed = self._allowed(u, mask)
        if maps is None:
            # is_causal alone lets the fused kernel run; with a mask both go into one
            mixed = scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=self.causal and allowed is None)
        else:
            maps.append(self._maps(q, k, allowed))
            mixed = maps[-1] @ v
        return keep_real(self._join(mixed, u), mask)

    def _join(self, mixed: Tensor, u: Field) -> Field:
        """The rate from what each head has read, (batch, head, token, head width)."""
        rate = scaled(self.strength, self.out(mixed.transpose(1, 2).flatten(2)))  # (batch, token, width)
        return rate - u if self.leak else rate

    def leaked(self, u: Field, mask: Mask | None = None) -> Field | None:
        check_state(u, mask)
        return -keep_real(u, mask) if self.leak else None

    def _allowed(self, u: Field, mask: Mask | None) -> Tensor | None:
        """Which j each i may see, or None for all (or for causal without padding): (batch, 1, 1 or token, token)."""
        if mask is None:
            return None
        allowed = mask[:, None, None, :]
        if self.causal:
            past = torch.ones(u.shape[1], u.shape[1], dtype=torch.bool, device=u.device).tril()
            # a padded token before the first real one would see nothing, and softmax of nothing is NaN
            allowed = (allowed & past) | torch.eye(u.shape[1], dtype=torch.bool, device=u.device)
        return allowed

    def weights(self, u: Field, mask: Mask | None = None) -> Tensor:
        """The attention maps P: (batch, head, token, token); each row of a real token sums to one."""
        u = check_field(u, width=self.width, mask=mask, weights=self.qkv)
        q, k, _ = self._split(u)
        return self._maps(q, k, self._allowed(u, mask))

    def _maps(self, q: Tensor, k: Tensor, allowed: Tensor | None) -> Tensor:
        scores = q / math.sqrt(q.shape[-1]) @ k.transpose(-2, -1)
        if allowed is None and self.causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if allowed is not None:
            scores += torch.zeros_like(allowed, dtype=scores.dtype).masked_fill_(~allowed, -torch.inf)
        return scores.softmax(dim=-1)

    @torch.no_grad()
    def contraction(self, diameter: float) -> float:
        """|α| Σ_h ‖W_Oʰ W_Vʰ‖ tanh(‖A_h‖δ²/4), A_h = W_QʰᵀW_Kʰ/√d_h: what the term leaves of a diameter δ at most.

        It is that of the rate without a leak. The bounds of the heads add up, so that several heads may have a sum
        above 1, which says nothing.
        """
        if self.causal:
            raise ValueError("causal must be False: the first token sees itself alone, and no diameter has to shrink")
        if self.rotary is not None:
            raise ValueError("rotary must be None: by positions alone two equal tokens may see different averages")
        check_number("diameter", diameter, 0)
        delta = torch.as_tensor(diameter, dtype=torch.float64)
        parts = [norm2(V) * attention_contraction(A, delta) for A, V, _ in self._score_and_value()]
        return abs(self.strength) * sum(part.item() for part in parts)

    @torch.no_grad()
    def lipschitz(self, length: float, *, diameter: float | None = None, columns: float = 1.0) -> float:
        """|α| Σ_h ‖V_h‖(‖A_h‖r² + √(c(1 + r²(‖A_h‖R + |b_h|)²))), V_h = W_Oʰ W_Vʰ, b_h = W_Kʰᵀb_Qʰ/√d_h; leak: + 1.

        A Lipschitz constant of the term on the states whose tokens are no longer than R = `length` and no further apart
        than 2r = `diameter` (2R unless it is given), with any mask. In the norm max_i|u_i|; in (Σ_i|u_i|²)^{½} with
        columns=c, the largest column sum of the attention maps on these states: the number of tokens is always enough.

        With rotary positions A_h differs from pair to pair, and what holds, in the norm max_i|u_i| and without biases,
        is |α| Σ_h ‖V_h‖(1 + 2‖W_Qʰ‖‖W_Kʰ‖Rr/√d_h): the variance of a score's change is at most (2‖A‖R)².
        """
        check_number("length", length, 0, shape=())
        check_number("columns", columns, 1, shape=())
        if diameter is not None:
            check_number("diameter", diameter, 0, shape=())
        R = torch.as_tensor(length, dtype=torch.float64)
        r = R if diameter is None else torch.as_tensor(diameter, dtype=torch.float64) / 2
        r = r.clamp(max=R)  # in a ball no two are further apart
        if self.rotary is not None:
            if columns != 1 or self.qkv.bias is not None:
                raise ValueError("with rotary positions there is a constant for columns=1 and bias=False only")
            query, key, _ = self._weights()
            sizes = [norm2(q) * norm2(k) / math.sqrt(self.head_width) for q, k in zip(query, key, strict=True)]
            values = [V for _, V, _ in self._score_and_value()]
            parts = [norm2(V) * (1 + 2 * A * R * r) for A, V in zip(sizes, values, strict=True)]
        else:
            parts = [attention_lipschitz(A, V, R, r=r, b=b, columns=columns) for A, V, b in self._score_and_value()]
        return abs(self.strength) * sum(part.item() for part in parts) + self._leak_norm()

    def _score_and_value(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """A_h = W_QʰᵀW_Kʰ/√d_h, V_h = W_Oʰ W_Vʰ and the length of W_Kʰᵀb_Qʰ/√d_h, for each head."""
        query, key, value = self._weights()
        bias = self.qkv.weight.new_zeros(len(self.qkv.weight)) if self.qkv.bias is None else self.qkv.bias
        bias = bias.detach().cpu().double().split(self._rows())[0].split(self.head_width)
        out = self.out.weight.detach().cpu().double().split(self.head_width, dim=1)
        out = out * (self.heads // len(out))  # a shared output is that of every head
        root = math.sqrt(self.head_width)
        heads = zip(query, key, value, out, bias, strict=True)
        return [(q.T @ k / root, o @ v, (k.T @ b).norm() / root) for q, k, v, o, b in heads]

    def _weights(self) -> list[list[Tensor]]:
        """W_Qʰ, W_Kʰ and W_Vʰ, a list of all heads each."""
        parts = [w.split(self.head_width) for w in self.qkv.weight.detach().cpu().double().split(self._rows())]
        return [[w for w in part for _ in range(self.heads // len(part))] for part in parts]

    def _leak_norm(self) -> float:
        return 1.0 if self.leak else 0.0


def rotated(x: Tensor, base: float = 1e4) -> Tensor:
    """Features c and c + d/2 of token i as a vector in the plane, turned by the angle i · base^{−2c/d}: (…, token, d).

    Then ⟨rotated q_i, rotated k_j⟩ depends on i and j through i − j alone (rotary positions, Su et al. 2021).

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> [round(value, 4) for value in rotated(x)[1].tolist()]  # by one radian
    [0.5403, 0.8415]
    """
    half = x.shape[-1] // 2
    exact = {"dtype": precise(x).dtype, "device": x.device}
    place, c = torch.arange(x.shape[-2], **exact), torch.arange(half, **exact)
    angle = place.unsqueeze(-1) * base ** (-c / half)  # (token, d/2)
    cos, sin = (f(angle).to(x.dtype) for f in (torch.cos, torch.sin))
    first, second = x.split(half, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class SharedOutputInteraction(Interaction):
    """A[u]_i = W_O Σ_h (Σ_j P^h_ij W_Vʰ u_j − u_i): one W_O for all heads, as printed.  (P2 eq 19 with eq 5)

    Here to be tested; a Transformer has `Interaction`. leak=True is the −u that eq 5 gives to every head, so that the
    sum holds −H W_O u. It needs heads as wide as u; narrower ones, head_width < width, are read without it, and then
    the rate has rank head_width at most.
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        head_width: int | None = None,
        leak: bool = True,
        causal: bool = False,
        bias: bool = False,
    ):
        super().__init__(width, leak=leak, causal=causal, bias=bias)
        heads = whole("heads", heads)
        head_width = width if head_width is None else whole("head_width", head_width, most=width)
        if leak and head_width != width:
            raise ValueError(f"leak takes u, of width {width}, from a head of width {head_width}; set leak=False")
        self.heads, self.groups, self.head_width, self.leak = heads, heads, head_width, leak
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=bias)
        self.out = nn.Linear(head_width, width, bias=bias)

    def _join(self, mixed: Tensor, u: Field) -> Field:
        total = mixed.sum(dim=1)  # over the heads: (batch, token, head width)
        return self.out(total - self.heads * u if self.leak else total)

    def leaked(self, u: Field, mask: Mask | None = None) -> Field | None:
        """−H W_O u: here the −u of every head passes through the shared output matrix."""
        check_state(u, mask)
        if not self.leak:
            return None
        return -self.heads * keep_real(u, mask) @ self.out.weight.T

    def _leak_norm(self) -> float:
        return self.heads * norm2(self.out.weight.detach().cpu().double()).item() if self.leak else 0.0
