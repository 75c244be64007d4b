"""Other people's models as ours: torch.nn.TransformerEncoder, weight by weight."""

import torch
from torch import Tensor, nn

from pdelab.equation import Layered, MasterEquation
from pdelab.integrators import LieEuler
from pdelab.models import Model
from pdelab.options import flags
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import ACTIVATIONS, Reaction
from pdelab.terms.stabilization import LayerNormRate, PreNorm


def from_torch(encoder: nn.TransformerEncoder, *, causal: bool = False) -> Model:
    """A torch.nn.TransformerEncoder as our model with the same weights: same output, and every state on the way.

    Pre and post norm, ReLU and GELU, any sizes, with or without bias and final norm. Dropout is left out, so the two
    agree where the encoder is in eval mode. Fields are (batch, token, feature) whatever batch_first says.
    causal: the encoder as it is when called with a causal mask, which is no part of its weights.
    """
    flags(causal=causal)
    if not isinstance(encoder, nn.TransformerEncoder):
        raise ValueError(f"encoder must be a torch.nn.TransformerEncoder; not {type(encoder).__name__}")
    if not encoder.layers:
        raise ValueError("encoder has no layers")
    for part in encoder.modules():
        if "forward" in vars(part) or not type(part).forward.__module__.startswith("torch."):
            raise ValueError(
                f"encoder holds a {type(part).__name__} with a forward of its own, which its weights do not tell"
            )
    with torch.device("meta"):  # the weights drawn here are replaced by copies, so none are drawn
        equations = [_equation_from(layer, causal) for layer in encoder.layers]
        norm = _copied_norm(encoder.norm) if encoder.norm is not None else None
    model = Model(Layered(equations), steps=len(equations), dt=1.0, integrator=LieEuler(), norm=norm)
    if any(part._forward_hooks or part._forward_pre_hooks for part in encoder.modules()):
        _compare(encoder, model, causal)
    return model.train(encoder.training)


@torch.no_grad()
def _compare(encoder: nn.TransformerEncoder, model: Model, causal: bool) -> None:
    """Refuse an encoder that gives something else than its weights say, as hooks can make it."""
    weight = encoder.layers[0].linear1.weight
    if weight.is_meta:
        return
    u = torch.arange(3 * weight.shape[1], dtype=torch.float64).sin().reshape(1, 3, -1).to(weight)
    before = {part: part.training for part in encoder.modules()}
    try:
        with torch.autocast(u.device.type, enabled=False):
            batch_first = encoder.layers[0].self_attn.batch_first
            past = nn.Transformer.generate_square_subsequent_mask(3).to(u) if causal else None
            given = encoder.eval()(u if batch_first else u.transpose(0, 1), mask=past, is_causal=causal)
    finally:
        for part, training in before.items():
            part.training = training
    given = given if batch_first else given.transpose(0, 1)
    with torch.autocast(u.device.type, enabled=False):
        made = model.eval()(u)
    rounding = min(1e3 * torch.finfo(u.dtype).eps, 0.05) * given.abs().amax()
    if (made - given).abs().amax() > rounding:  # not so where both are NaN
        raise ValueError(
            "encoder gives another output than its weights do; take off hooks and parametrisations that change it"
        )


def _equation_from(layer: nn.TransformerEncoderLayer, causal: bool) -> MasterEquation:
    attention = layer.self_attn
    if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
        raise ValueError(
            "encoder uses attention with separate or extra keys and values, which is not a plain encoder layer"
        )
    width, hidden = attention.embed_dim, layer.linear1.out_features
    biased = attention.in_proj_bias is not None
    interaction = Interaction(width, attention.num_heads, bias=biased, causal=causal)
    reaction = Reaction(
        width, hidden, activation=_activation_name(layer.activation), bias=layer.linear1.bias is not None
    )
    if isinstance(layer.activation, nn.GELU):
        reaction.activation = nn.GELU(layer.activation.approximate)
    _copy(interaction.qkv, attention.in_proj_weight, attention.in_proj_bias)
    _copy(interaction.out, attention.out_proj.weight, attention.out_proj.bias)
    _copy(reaction.inner, layer.linear1.weight, layer.linear1.bias)
    _copy(reaction.outer, layer.linear2.weight, layer.linear2.bias)
    norms = (layer.norm1, layer.norm2)
    if layer.norm_first:
        wrapped = [PreNorm(term, width) for term in (interaction, reaction)]
        terms = wrapped
    else:
        wrapped = [LayerNormRate(width) for _ in norms]
        terms = [interaction, wrapped[0], reaction, wrapped[1]]
    for wrapper, norm in zip(wrapped, norms, strict=True):
        wrapper.norm = _copied_norm(norm)
    return MasterEquation(*terms)


def _activation_name(activation) -> str:
    names = {torch.nn.functional.relu: "relu", torch.nn.functional.gelu: "gelu", torch.relu: "relu", torch.tanh: "tanh"}
    names |= {kind: name for name, kind in ACTIVATIONS.items()}
    key = type(activation) if isinstance(activation, nn.Module) else activation
    if key not in names:
        raise ValueError(f"encoder has the activation {activation!r}; known are {', '.join(ACTIVATIONS)}")
    return names[key]


def _copy(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    """The weights as new parameters of their own dtype and device."""
    linear.weight = nn.Parameter(weight.detach().clone())
    linear.bias = None if bias is None else nn.Parameter(bias.detach().clone())


def _copied_norm(norm: nn.LayerNorm) -> nn.LayerNorm:
    if not isinstance(norm, nn.LayerNorm):
        raise ValueError(f"encoder has a {type(norm).__name__} where a LayerNorm is expected")
    made = nn.LayerNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=norm.elementwise_affine)
    for name in ("weight", "bias"):
        value = getattr(norm, name)
        setattr(made, name, None if value is None else nn.Parameter(value.detach().clone()))
    return made
