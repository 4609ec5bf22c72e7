"""Layers that no engine can make private as they are: found by walking through the model."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dither.validate import InvalidValueError


@dataclass(frozen=True)
class Refusal:
    """A layer that is refused: where it is, why, and what to do."""

    path: str
    kind: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path} ({self.kind}) {self.reason}; {self.remedy}"


RENORMALISED = "embedding with max_norm, which rewrites the rows that the records use"

_SUSPICIOUS = (
    nn.Embedding,
    nn.EmbeddingBag,
    _BatchNorm,
    _InstanceNorm,
    nn.modules.lazy.LazyModuleMixin,
    nn.DataParallel,
    nn.parallel.DistributedDataParallel,
)


def unsound_layers(model: nn.Module) -> Iterator[Refusal]:
    """Yield every layer that mixes records, keeps statistics of them, or cannot be looked into."""
    for path, layer in model.named_modules():
        found = _refusal(layer)
        if found is not None:
            yield Refusal(path or "the model", type(layer).__name__, *found)


def refuse_unsound_layers(model: nn.Module) -> None:
    """Raise on the first such layer."""
    if not any(_may_be_unsound(layer) for layer in model.modules()):
        return
    for refusal in unsound_layers(model):
        raise InvalidValueError(f"model cannot be trained privately as it is: {refusal}")


def _may_be_unsound(layer: nn.Module) -> bool:
    return (
        any(p is not None and p.is_complex() for p in layer._parameters.values())
        or isinstance(layer, _SUSPICIOUS)
        or layer._compiled_call_impl is not None
        or "_orig_mod" in layer._modules
        or hasattr(layer, "_fsdp_wrapped_module")
    )


def _refusal(layer: nn.Module) -> tuple[str, str] | None:
    if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
        return (
            "normalises over the records of a batch",
            "dither.clipping.replace_batch_norm(model) puts GroupNorm in its place, "
            "or keep its statistics as they are with .eval() on this layer",
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        return "has max_norm, so that it rewrites the rows that the records use", "leave it out"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.scale_grad_by_freq:
        return "has scale_grad_by_freq, which counts tokens over the batch", "leave it out"
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats and layer.training:
        return "keeps running statistics of the records", "make it with track_running_stats=False"
    if any(p is not None and p.is_complex() for p in layer._parameters.values()):
        return "has complex parameters", "keep real and imaginary parts as two parameters"
    if "_orig_mod" in layer._modules:
        return "is compiled by torch.compile", "pass model._orig_mod, which was compiled"
    if layer._compiled_call_impl is not None:
        return "is compiled by its compile() method", "make the model without that call"
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return "has no parameters yet", "call the model once before training"
    if isinstance(layer, nn.DataParallel | nn.parallel.DistributedDataParallel) or hasattr(
        layer, "_fsdp_wrapped_module"
    ):
        return "distributes the model by itself", "pass the module inside it, .module"
    return None
