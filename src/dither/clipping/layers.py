"""Layers that cannot be trained privately as they are, and the replacement of BatchNorm."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dither.validate import InvalidValueError, count, instance


@dataclass(frozen=True)
class Finding:
    """One thing to know about a model.

    Attributes:
        verdict: ``refused`` (it cannot be trained privately like this), ``slow`` (it is right, and
            computed record by record) or ``wrong`` (the engines disagree; never use it).
        where: the path of the module, or the parameters.
        reason: what was found.
        remedy: what to do about it.

    Example:
        >>> print(Finding("slow", "einsum with last", "is repeated for every record", "use linear"))
        slow: einsum with last: is repeated for every record; use linear
    """

    verdict: str
    where: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.where}: {self.reason}; {self.remedy}"


def refused_layers(model: nn.Module) -> Iterator[Finding]:
    """Yield every layer that mixes records, stores statistics of them, or hides its parameters."""
    for path, layer in model.named_modules():
        found = _reason_and_remedy(layer)
        if found is not None:
            yield Finding("refused", f"{path or 'the model'} ({type(layer).__name__})", *found)


def check_layers(model: nn.Module) -> None:
    """Raise on the first such layer."""
    if all(_reason_and_remedy(layer) is None for layer in model.modules()):
        return  # the usual case, without computing paths
    for each in refused_layers(model):
        raise InvalidValueError(
            f"model cannot be trained privately as it is: {each.where} {each.reason}; {each.remedy}"
        )


class CheckedLayers:
    """The layers of a model, checked again when one of them is new or has changed its mode."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: list[tuple[nn.Module, bool]] = []

    def check(self) -> None:
        """Raise on the first layer that cannot be trained privately."""
        layers = [(layer, layer.training) for layer in self._model.modules()]
        if layers != self._known:
            check_layers(self._model)
            self._known = layers


def _reason_and_remedy(layer: nn.Module) -> tuple[str, str] | None:
    """Return what is wrong with a layer, and what to do."""
    return _mixes_or_stores_records(layer) or _hides_parameters(layer)


def _mixes_or_stores_records(layer: nn.Module) -> tuple[str, str] | None:
    if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
        remedy = (
            "dither.clipping.replace_batch_norm(model) returns a copy with GroupNorm in its place "
            "(create the optimizer for the copy)"
        )
        is_lazy = isinstance(layer, nn.modules.lazy.LazyModuleMixin)
        return (
            "normalises over the records of a batch",
            f"{remedy if is_lazy or type(layer) in _REPLACEABLE else _REPLACE_BY_HAND}, "
            "or keep its statistics as they are with .eval() on this layer",
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        return "has max_norm, so that it rewrites the rows that the records use", "leave it out"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.scale_grad_by_freq:
        return "has scale_grad_by_freq, which counts tokens over the batch", "leave it out"
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats and layer.training:
        return "stores running statistics of the records", "set track_running_stats=False"
    return None


def _hides_parameters(layer: nn.Module) -> tuple[str, str] | None:
    if any(p is not None and p.is_complex() for p in layer._parameters.values()):
        return "has complex parameters", "keep real and imaginary parts as two parameters"
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        return "has no parameters yet", "call the model once before training"
    if isinstance(layer, nn.DataParallel | nn.parallel.DistributedDataParallel) or hasattr(
        layer, "_fsdp_wrapped_module"
    ):
        return "distributes the model by itself", "pass the module inside it, .module"
    if any(kind.__name__ == "FSDPModule" for kind in type(layer).__mro__):
        return "is sharded by fully_shard", "build the model without that call"
    if any(type(p).__name__ == "DTensor" for p in layer._parameters.values()):
        return "has parameters that are spread over ranks", "build the model without that"
    return None


_REPLACEABLE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""The types that only normalise; a subclass may apply an activation as well."""
_REPLACE_BY_HAND = (
    "replace it by hand with nn.GroupNorm followed by its activation, "
    "or build the model with another norm layer"
)


def replace_batch_norm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """Return a copy of the model with a GroupNorm in the place of every BatchNorm.

    The number of groups is the largest up to ``groups`` that leaves at least four channels in each
    (alone, a channel without positions would be normalised to nothing). Weight and bias are taken
    over; running statistics are dropped. Layers that were shared stay shared. Subclasses, such as
    timm's ``BatchNormAct2d``, are refused: GroupNorm would drop what else they do.

    Example:
        >>> from torch import nn
        >>> replace_batch_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
        12
    """
    instance(nn.Module, model=model)
    groups = count(groups=groups)
    for path, layer in model.named_modules():
        if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
            raise InvalidValueError(f"model must have its parameters, but {path} is still lazy")
        if isinstance(layer, _BatchNorm) and type(layer) not in _REPLACEABLE:
            raise InvalidValueError(
                f"model must have no subclass of BatchNorm, got {path or 'the model'} "
                f"({type(layer).__name__}), which may apply an activation, too; {_REPLACE_BY_HAND}"
            )
    copied = copy.deepcopy(model)
    made: dict[int, nn.GroupNorm] = {}
    if isinstance(copied, _BatchNorm):
        return _group_norm(copied, groups, made)
    for parent in list(copied.modules()):
        for name, layer in parent._modules.items():
            if isinstance(layer, _BatchNorm):
                setattr(parent, name, _group_norm(layer, groups, made))
    return copied


def _group_norm(layer: _BatchNorm, groups: int, made: dict[int, nn.GroupNorm]) -> nn.GroupNorm:
    if id(layer) in made:
        return made[id(layer)]
    channels = layer.num_features
    number = max(
        (g for g in range(1, min(groups, channels // 4) + 1) if channels % g == 0), default=1
    )
    new = nn.GroupNorm(number, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        new.weight, new.bias = layer.weight, layer.bias
    made[id(layer)] = new.train(layer.training)
    return new
