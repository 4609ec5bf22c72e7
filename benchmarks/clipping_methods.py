"""Ways to the clipped sum of a batch: dither, Opacus, opake, and a plain step that clips nothing.

Each method makes a step of a model and a batch. The peers are imported when they are used.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.clipping_models import Case, losses
from dither.clipping import clipped_sum

CLIP_NORM = 1.0

Sums = Mapping[str, Tensor]
Step = Callable[[], Sums]


def plain(case: Case) -> Step:
    """A non-private step: forward, mean loss, backward."""
    model = deepcopy(case.model)

    def step() -> Sums:
        model.zero_grad()
        losses(model(case.inputs), case.targets).mean().backward()
        return {}

    return step


def dither(case: Case) -> Step:
    """The clipped sum by the fast engine."""
    model = deepcopy(case.model)
    return lambda: (
        clipped_sum(model, losses, case.inputs, case.targets, clip_norm=CLIP_NORM).gradients
    )


def opacus_per_sample(case: Case, functorch: bool) -> Step:
    """Opacus: per-record gradients, by its layer rules or by functorch, clipped and added up."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from opacus.validators import ModuleValidator

    model = GradSampleModule(
        ModuleValidator.fix(case.model),  # which replaces recurrent layers by its own
        loss_reduction="sum",
        force_functorch=functorch,
        strict=False,
    )
    optimizer = opacus_optimizer(DPOptimizer, model, case)

    def step() -> Sums:
        optimizer.zero_grad()
        losses(model(case.inputs), case.targets).sum().backward()
        optimizer.clip_and_accumulate()
        return opacus_sums(model)

    return step


def opacus_ghost(case: Case) -> Step:
    """Opacus: norms by ghost clipping, then a second backward pass."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from opacus.validators import ModuleValidator

    model = GradSampleModuleFastGradientClipping(
        ModuleValidator.fix(case.model), loss_reduction="sum", max_grad_norm=CLIP_NORM
    )
    optimizer = opacus_optimizer(DPOptimizerFastGradientClipping, model, case)
    criterion = DPLossFastGradientClipping(model, optimizer, OwnLosses(), loss_reduction="sum")

    def step() -> Sums:
        optimizer.zero_grad()
        criterion(model(case.inputs), case.targets).backward()
        optimizer.accumulate()
        return opacus_sums(model)

    return step


def opacus_optimizer(kind: Callable[..., Any], model: nn.Module, case: Case) -> Any:
    """Return an optimizer of Opacus that clips, and adds no noise."""
    return kind(
        torch.optim.SGD(trainable(model).values(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(case.inputs),
        loss_reduction="sum",
    )


class OwnLosses(nn.Module):
    """The losses of the records, as a criterion whose reduction Opacus changes."""

    reduction = "sum"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one loss per record."""
        return losses(outputs, targets)


def opacus_sums(model: nn.Module) -> Sums:
    """Return what Opacus would add noise to."""
    parameters: dict[str, Any] = {**trainable(model)}
    return {name.removeprefix("_module."): each.summed_grad for name, each in parameters.items()}


def opake(case: Case, parts: int) -> Step:
    """Gradients by vmap, the batch at once or in parts, which take less memory.

    Models of transformers get the patches that opake has for their family; these turn dropout off.
    Elsewhere dropout has the same mask for all records.
    """
    from opake.dpsgd.clipping import clipped_grad
    from opake.patches import apply_model_patches, apply_runtime_patches
    from opake.patches.transformers import supported_families

    model = deepcopy(case.model)
    apply_runtime_patches()
    inner: Any = getattr(model, "model", model)
    if getattr(getattr(inner, "config", None), "model_type", None) in supported_families():
        apply_model_patches(inner)
    parameters = {name: parameter.detach() for name, parameter in trainable(model).items()}

    def loss(values: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, values, (record.unsqueeze(0),))
        return losses(outputs, target.unsqueeze(0)).squeeze(0)

    clipped, state = clipped_grad(
        loss,
        clipping_norm=CLIP_NORM,
        batch_argnums=(1, 2),
        microbatch_size=None if parts == 1 else -(-len(case.inputs) // parts),
    )

    def step() -> Sums:
        sums: Sums = clipped(parameters, case.inputs, case.targets, state=state)[0].pytree
        return sums

    return step


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are not frozen."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


METHODS: dict[str, Callable[[Case], Step]] = {
    "plain": plain,
    "dither": dither,
    "Opacus hooks": lambda case: opacus_per_sample(case, False),
    "Opacus functorch": lambda case: opacus_per_sample(case, True),
    "Opacus ghost": opacus_ghost,
    "opake": lambda case: opake(case, 1),
    "opake in parts": lambda case: opake(case, 4),
}
PEERS = tuple(METHODS)[2:]
