"""Other people's Transformers at a tiny size with random weights, for the tests of `record`: name -> model, inputs."""

from collections.abc import Callable

import torch
import transformers as hf
from torch import nn

SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT = {"n_embd": 16, "n_layer": 3, "n_head": 2, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**SMALL, **WORDS, "num_key_value_heads": 1, "head_dim": 8}
IMAGE = {**SMALL, "image_size": 16, "patch_size": 4}
TWO_SIDED = {
    "d_model": 16, "encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
}  # fmt: skip


def tokens(batch: int = 3, length: int = 9, top: int = 50) -> torch.Tensor:
    return torch.randint(3, top, (batch, length), generator=torch.Generator().manual_seed(0))


def picture() -> torch.Tensor:
    return torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def text(model: nn.Module) -> tuple[nn.Module, dict]:
    return model, {"input_ids": tokens()}


def pixels(model: nn.Module) -> tuple[nn.Module, dict]:
    return model, {"pixel_values": picture()}


# name -> model and inputs, and how a layer writes to its stream
MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, dict]], str]] = {
    "bert": (lambda: text(hf.BertModel(hf.BertConfig(**SMALL, **WORDS))), "A→S→R→S"),
    "roberta": (lambda: text(hf.RobertaModel(hf.RobertaConfig(**SMALL, **WORDS))), "A→S→R→S"),
    "distilbert": (
        lambda: text(
            hf.DistilBertModel(hf.DistilBertConfig(dim=16, n_layers=3, n_heads=2, hidden_dim=32, vocab_size=50))
        ),
        "A→S→R→S",
    ),
    "albert": (lambda: text(hf.AlbertModel(hf.AlbertConfig(**SMALL, **WORDS, embedding_size=8))), "A→S→R→S"),
    "electra": (lambda: text(hf.ElectraModel(hf.ElectraConfig(**SMALL, **WORDS, embedding_size=16))), "A→S→R→S"),
    "deberta-v2": (
        lambda: text(
            hf.DebertaV2Model(hf.DebertaV2Config(**SMALL, **WORDS, relative_attention=True, pos_att_type=["c2p"]))
        ),
        "A→S→R→S",
    ),
    "modernbert": (
        lambda: text(hf.ModernBertModel(hf.ModernBertConfig(**SMALL, **WORDS, cls_token_id=1, sep_token_id=2))),
        "A→R",
    ),
    "gpt2": (lambda: text(hf.GPT2Model(hf.GPT2Config(**GPT))), "A→R"),
    "gpt-j": (lambda: text(hf.GPTJModel(hf.GPTJConfig(**GPT, rotary_dim=4))), "A+R"),
    "gpt-neox": (lambda: text(hf.GPTNeoXModel(hf.GPTNeoXConfig(**SMALL, **WORDS))), "A+R"),
    "opt": (
        lambda: text(hf.OPTModel(hf.OPTConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, ffn_dim=32,
                                              word_embed_proj_dim=16, **WORDS))),
        "A→R",
    ),
    "llama": (lambda: text(hf.LlamaModel(hf.LlamaConfig(**GROUPED))), "A→R"),
    "mistral": (lambda: text(hf.MistralModel(hf.MistralConfig(**GROUPED))), "A→R"),
    "qwen2": (lambda: text(hf.Qwen2Model(hf.Qwen2Config(**GROUPED))), "A→R"),
    "qwen3": (lambda: text(hf.Qwen3Model(hf.Qwen3Config(**GROUPED))), "A→R"),
    "gemma2": (lambda: text(hf.Gemma2Model(hf.Gemma2Config(**GROUPED))), "A→R"),
    "olmo2": (lambda: text(hf.Olmo2Model(hf.Olmo2Config(**GROUPED))), "A→R"),
    "mixtral": (lambda: text(hf.MixtralModel(hf.MixtralConfig(**GROUPED, num_local_experts=4))), "A→R"),
    "granite": (lambda: text(hf.GraniteModel(hf.GraniteConfig(**GROUPED, residual_multiplier=0.3))), "A→R"),
    "phi": (lambda: text(hf.PhiModel(hf.PhiConfig(**SMALL, **WORDS))), "A+R"),
    "falcon": (
        lambda: text(
            hf.FalconModel(hf.FalconConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, **WORDS))
        ),
        "A+R",
    ),
    "t5": (
        lambda: (
            hf.T5Model(hf.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=3, num_decoder_layers=2,
                                   num_heads=2, **WORDS)),
            {"input_ids": tokens(), "decoder_input_ids": tokens(length=5)},
        ),
        "A→R",
    ),
    "bart": (lambda: text(hf.BartModel(hf.BartConfig(**TWO_SIDED, **WORDS, decoder_start_token_id=2))), "A→S→R→S"),
    "whisper": (
        lambda: (
            hf.WhisperModel(hf.WhisperConfig(**TWO_SIDED, **WORDS, num_mel_bins=8, max_source_positions=10,
                                             decoder_start_token_id=2)),
            {"input_features": torch.randn(3, 8, 20), "decoder_input_ids": tokens(length=5)},
        ),
        "A→R",
    ),
    "vit": (lambda: pixels(hf.ViTModel(hf.ViTConfig(**IMAGE))), "A→R"),
    "deit": (lambda: pixels(hf.DeiTModel(hf.DeiTConfig(**IMAGE))), "A→R"),
    "dinov2": (
        lambda: pixels(hf.Dinov2Model(hf.Dinov2Config(hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
                                                      image_size=16, patch_size=4))),
        "A→R",
    ),
    "clip": (lambda: pixels(hf.CLIPVisionModel(hf.CLIPVisionConfig(**IMAGE))), "A→R"),
    "swin": (
        lambda: pixels(hf.SwinModel(hf.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[3], num_heads=[2],
                                                  window_size=4))),
        "A→R",
    ),
    "mamba": (
        lambda: text(hf.MambaModel(hf.MambaConfig(hidden_size=16, num_hidden_layers=3, state_size=4, vocab_size=50))),
        "A",
    ),
}  # fmt: skip
