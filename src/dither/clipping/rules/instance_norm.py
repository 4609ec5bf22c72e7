"""Instance normalisation: each channel of each record by itself."""

from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution
from dither.clipping.registry import Call, register
from dither.clipping.rules.affine import affine
from dither.validate import InvalidValueError


@register(functional.instance_norm)
def instance_norm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Weight and bias have one entry a channel; running statistics would leak the records."""
    inputs, mean, variance, weight, bias, by_input, _, eps = call.arguments(
        "input", "running_mean", "running_var", "weight", "bias", "use_input_stats",
        "momentum", "eps",
    )  # fmt: skip
    by_input = True if by_input is None else by_input
    if by_input and mean is not None:
        raise InvalidValueError(
            "model must not keep statistics of its records, got instance_norm with "
            "track_running_stats=True in training mode; make the layer without it"
        )
    normalised = functional.instance_norm(
        inputs, mean, variance, use_input_stats=by_input, eps=1e-5 if eps is None else eps
    )
    return affine(gradient, normalised, weight, bias, [1])
