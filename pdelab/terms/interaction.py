"""A[u]: attention, a non-local interaction of every token with every other.  (P2 eq 5; P1 eq 2, 9-11)"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from pdelab.field import Field, Mask, check_field, check_number, check_state
from pdelab.formulas import attention_contraction, attention_lipschitz, keep_real, norm2
from pdelab.options import flags, whole
from pdelab.terms.base import Term


class Interaction(Term):
    """A[u]_i = α Σ_h W_Oʰ Σ_j P^h_ij W_Vʰ u_j,  P^h_i = softmax_j(⟨W_Qʰ u_i, W_Kʰ u_j⟩ / √d_h).  (P2 eq 5; P1 eq 9-11)

    The sum over j is the integral over y in P2 eq 5, with a kernel that integrates to one. Heads are joined by
    concatenation, which equals the sum over h of each head's own block of W_O; P2 eq 19 is another thing.

    leak=True subtracts u once, as P2 eq 5 prints it; a Transformer block is the form without.
    strength is P1's α. causal=True lets token i see j ≤ i only: a property of the term, not of the mask.
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
    ):
        super().__init__()
        width, heads = whole("width", width), whole("heads", heads)
        flags(leak=leak, causal=causal, bias=bias)
        if width % heads:
            raise ValueError(f"heads must divide width; {heads} heads do not divide width {width}")
        self.width, self.heads, self.head_width = width, heads, width // heads
        check_number("strength", strength)
        self.leak, self.causal, self.strength = leak, causal, strength
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def _split(self, u: Field) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, _ = u.shape
        parts = self.qkv(u).view(batch, tokens, 3, self.heads, self.head_width)
        return parts.permute(2, 0, 3, 1, 4).unbind(0)  # each (batch, head, token, head width)

    def forward(self, u: Field, t: float = 0.0, mask: Mask | None = None) -> Field:
        check_state(u, mask, self.width, self.qkv)
        u = keep_real(u, mask)
        q, k, v = self._split(u)
        allowed = self._allowed(u, mask)
        # is_causal alone lets the fused kernel run; with a mask both go into one
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=self.causal and allowed is None)
        return keep_real(self._join(mixed, u), mask)

    def _join(self, mixed: Tensor, u: Field) -> Field:
        """The rate from what each head has read, (batch, head, token, head width)."""
        rate = self.strength * self.out(mixed.transpose(1, 2).flatten(2))  # (batch, token, width)
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
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        allowed = self._allowed(u, mask)
        if allowed is None and self.causal:
            allowed = torch.ones_like(scores, dtype=torch.bool).tril()
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        return scores.softmax(dim=-1)

    @torch.no_grad()
    def contraction(self, diameter: float) -> float:
        """|α| Σ_h ‖W_Oʰ W_Vʰ‖ tanh(‖A_h‖δ²/4), A_h = W_QʰᵀW_Kʰ/√d_h: what the term leaves of a diameter δ at most.

        It is that of the rate without a leak. The bounds of the heads add up, so that several heads may have a sum
        above 1, which says nothing.
        """
        if self.causal:
            raise ValueError("causal must be False: the first token sees itself alone, and no diameter has to shrink")
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
        """
        check_number("length", length, 0, shape=())
        check_number("columns", columns, 1, shape=())
        if diameter is not None:
            check_number("diameter", diameter, 0, shape=())
        R = torch.as_tensor(length, dtype=torch.float64)
        r = R if diameter is None else torch.as_tensor(diameter, dtype=torch.float64) / 2
        r = r.clamp(max=R)  # in a ball no two are further apart
        parts = [attention_lipschitz(A, V, R, r=r, b=b, columns=columns) for A, V, b in self._score_and_value()]
        return abs(self.strength) * sum(part.item() for part in parts) + self._leak_norm()

    def _score_and_value(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """A_h = W_QʰᵀW_Kʰ/√d_h, V_h = W_Oʰ W_Vʰ and the length of W_Kʰᵀb_Qʰ/√d_h, for each head."""
        query, key, value = (w.split(self.head_width) for w in self.qkv.weight.detach().cpu().double().chunk(3))
        bias = self.qkv.weight.new_zeros(len(self.qkv.weight)) if self.qkv.bias is None else self.qkv.bias
        bias = bias.detach().cpu().double().chunk(3)[0].split(self.head_width)
        out = self.out.weight.detach().cpu().double().split(self.head_width, dim=1)
        out = out * (self.heads // len(out))  # a shared output is that of every head
        root = math.sqrt(self.head_width)
        heads = zip(query, key, value, out, bias, strict=True)
        return [(q.T @ k / root, o @ v, (k.T @ b).norm() / root) for q, k, v, o, b in heads]

    def _leak_norm(self) -> float:
        return 1.0 if self.leak else 0.0


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
        self.heads, self.head_width, self.leak = heads, head_width, leak
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
