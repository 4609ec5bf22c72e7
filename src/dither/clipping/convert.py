"""BatchNorm, which mixes records, replaced by GroupNorm, which does not."""

import copy
from math import gcd

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dither.validate import count, instance


def replace_batch_norm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """Return a copy of the model with a GroupNorm in the place of every BatchNorm.

    The number of groups is the largest that divides both the channels and ``groups``. Weight and
    bias are taken over; running statistics are dropped.

    Example:
        >>> from torch import nn
        >>> replace_batch_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
        16
    """
    instance(nn.Module, model=model)
    groups = count(groups=groups)
    copied = copy.deepcopy(model)
    if isinstance(copied, _BatchNorm):
        return _group_norm(copied, groups)
    for parent in list(copied.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _BatchNorm):
                setattr(parent, name, _group_norm(layer, groups))
    return copied


def _group_norm(layer: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    made = nn.GroupNorm(gcd(groups, channels), channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
        made.to(layer.weight.device)
    return made.train(layer.training)
