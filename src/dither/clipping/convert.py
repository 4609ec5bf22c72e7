"""BatchNorm, which mixes records, replaced by GroupNorm, which does not."""

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dither.validate import InvalidValueError, count, instance

REPLACEABLE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""The types that only normalise; a subclass may apply an activation as well."""
BY_HAND = (
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
        if isinstance(layer, _BatchNorm) and type(layer) not in REPLACEABLE:
            raise InvalidValueError(
                f"model must have no subclass of BatchNorm, got {path or 'the model'} "
                f"({type(layer).__name__}), which may apply an activation, too; {BY_HAND}"
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
