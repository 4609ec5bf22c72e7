"""The models that people train beyond the small ones, each with a batch.

They are made from public configurations with random weights: no weights are loaded. Each returns
logits, so that all methods take the same model and the same loss. Dropout and stochastic depth are
active, with these configurations' own rates, unless a case is made without.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.clipping_models import Case

WORDS, CLASSES, DROPOUT = 1000, 10, 0.1


class Logits(nn.Module):
    """A model of transformers, of which only the logits are returned."""

    def __init__(self, model: Any, **constants: Any) -> None:
        super().__init__()
        self.model, self.constants = model, constants

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits for token ids or pixels."""
        result: Tensor = self.model(inputs, **self.constants).logits
        return result


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with GroupNorm, and a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(16, out), nn.GroupNorm(16, out)])
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels == out
            else nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.GroupNorm(16, out)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add what the block makes to what it was given."""
        made = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(made)) + self.shortcut(x))


def resnet18(_: float) -> Case:
    """ResNet-18 for 32×32 images, with GroupNorm for batch norm."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.GroupNorm(16, 64),
        nn.ReLU(),
    ]
    channels = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ResidualBlock(channels, out, stride), ResidualBlock(out, out, 1)]
        channels = out
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)]
    return _images(nn.Sequential(*layers), 16, 32)


def vit_tiny(_: float) -> Case:
    """A vision transformer of width 192 with 12 layers and 3 heads, 64 patches."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768,
        image_size=32, patch_size=4, num_labels=CLASSES,
    )  # fmt: skip
    return _images(Logits(ViTForImageClassification(config)), 32, 32)


def gpt2(dropout: float = DROPOUT) -> Case:
    """Six layers of width 384, tied embeddings, sequences of 128 tokens."""
    return _sequences(Logits(gpt2_model(dropout=dropout), use_cache=False), 16, 128)


def gpt2_lora(dropout: float = DROPOUT) -> Case:
    """The same with adapters of rank 8 on its attention, no longer zero, as after a step."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(
        task_type="CAUSAL_LM", r=8, target_modules=["c_attn"], fan_in_fan_out=True,
        init_lora_weights=False,
    )  # fmt: skip
    model = get_peft_model(gpt2_model(dropout=dropout), lora)
    return _sequences(Logits(model, use_cache=False), 16, 128)


def gpt2_model(
    words: int = 5000,
    width: int = 384,
    layers: int = 6,
    length: int = 128,
    dropout: float = DROPOUT,
) -> Any:
    """A GPT-2 with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=words, n_embd=width, n_layer=layers, n_head=width // 64, n_positions=length,
        bos_token_id=1, eos_token_id=1, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


class Recurrent(nn.Module):
    """An embedding of width 128, a recurrent layer of 256, and a linear layer on its last state."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(WORDS, 128), nn.Linear(256, CLASSES)
        self.layer = kind(128, 256, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of a class."""
        result: Tensor = self.head(self.layer(self.tokens(ids))[0][:, -1])
        return result


def recurrent(kind: Callable[..., nn.Module]) -> Case:
    """Sequences of 60 tokens, to be classified."""
    return Case(Recurrent(kind), torch.randint(WORDS, (64, 60)), torch.randint(CLASSES, (64,)))


class Translator(nn.Module):
    """T5 with the same ids for its encoder and its decoder."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the decoder."""
        result: Tensor = self.model(input_ids=ids, decoder_input_ids=ids, use_cache=False).logits
        return result


def t5(dropout: float = DROPOUT) -> Case:
    """T5-small-like: four layers each of width 256, 64 tokens."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS, d_model=256, d_kv=64, d_ff=1024, num_layers=4, num_heads=4,
        decoder_start_token_id=0, dropout_rate=dropout,
    )  # fmt: skip
    return _sequences(Translator(T5ForConditionalGeneration(config)), 16, 64, WORDS)


def swin(dropout: float = DROPOUT) -> Case:
    """Swin-tiny-like: windows of 4×4, 64×64 images, stochastic depth."""
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=64, patch_size=2, embed_dim=96, depths=[2, 2, 6], num_heads=[3, 6, 12],
        window_size=4, num_labels=CLASSES, drop_path_rate=dropout,
    )  # fmt: skip
    return _images(Logits(SwinForImageClassification(config)), 16, 64)


def convnext(dropout: float = DROPOUT) -> Case:
    """ConvNeXt with stochastic depth, 64×64 images."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 6, 2], drop_path_rate=dropout,
        image_size=64, patch_size=2, num_labels=CLASSES,
    )  # fmt: skip
    return _images(Logits(ConvNextForImageClassification(config)), 16, 64)


def _images(model: nn.Module, records: int, size: int) -> Case:
    return Case(model, torch.randn(records, 3, size, size), torch.randint(CLASSES, (records,)))


def _sequences(model: nn.Module, records: int, length: int, words: int = 5000) -> Case:
    ids = torch.randint(1, words, (records, length))
    return Case(model, ids, ids)


CASES: dict[str, Callable[[float], Case]] = {
    "ResNet-18-GN": resnet18,
    "ViT-tiny": vit_tiny,
    "GPT-2": gpt2,
    "LoRA on GPT-2": gpt2_lora,
    "LSTM": lambda _: recurrent(nn.LSTM),
    "GRU": lambda _: recurrent(nn.GRU),
    "T5": t5,
    "Swin": swin,
    "ConvNeXt": convnext,
}


def case(name: str, *, dropout: bool = True) -> Case:
    """Return a case, the same one every time."""
    torch.manual_seed(0)
    return CASES[name](DROPOUT if dropout else 0.0)
