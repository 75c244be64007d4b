"""Other people's models as ours: torch.nn.TransformerEncoder, weight by weight."""

import torch
from torch import Tensor, nn

from pdelab.equation import Layered, MasterEquation
from pdelab.integrators import LieEuler
from pdelab.models import Model
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import ACTIVATIONS, Reaction
from pdelab.terms.stabilization import LayerNormRate, PreNorm


def from_torch(encoder: nn.TransformerEncoder) -> Model:
    """A torch.nn.TransformerEncoder as our model with the same weights: same output, and every state on the way.

    Pre and post norm, ReLU and GELU, any sizes, with or without bias and final norm. Dropout is left out, so the two
    agree where the encoder is in eval mode. Fields are (batch, token, feature) whatever batch_first says.
    """
    if not isinstance(encoder, nn.TransformerEncoder):
        raise ValueError(f"encoder must be a torch.nn.TransformerEncoder; not {type(encoder).__name__}")
    if not encoder.layers:
        raise ValueError("encoder has no layers")
    with torch.device("meta"):  # the weights drawn here are replaced by copies, so none are drawn
        equations = [_equation_from(layer) for layer in encoder.layers]
        norm = _copied_norm(encoder.norm) if encoder.norm is not None else None
    model = Model(Layered(equations), steps=len(equations), dt=1.0, integrator=LieEuler(), norm=norm)
    return model.train(encoder.training)


def _equation_from(layer: nn.TransformerEncoderLayer) -> MasterEquation:
    attention = layer.self_attn
    if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
        raise ValueError(
            "encoder uses attention with separate or extra keys and values, which is not a plain encoder layer"
        )
    width, hidden = attention.embed_dim, layer.linear1.out_features
    biased = attention.in_proj_bias is not None
    interaction = Interaction(width, attention.num_heads, bias=biased)
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
