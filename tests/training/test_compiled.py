"""Models that torch.compile has made, in a loop of one's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dither

FORMS: dict[str, Callable[[nn.Module], tuple[nn.Module, Any]]] = {}


def form(make: Callable[[nn.Module], tuple[nn.Module, Any]]) -> Callable[..., Any]:
    """Register what makes of a model the one that is trained and the one that is called."""
    FORMS[make.__name__] = make
    return make


@form
def given(model: nn.Module) -> tuple[nn.Module, Any]:
    compiled: Any = torch.compile(model, backend="eager")
    return compiled, compiled


@form
def in_place(model: nn.Module) -> tuple[nn.Module, Any]:
    model.compile(backend="eager")
    return model, model


@form
def called(model: nn.Module) -> tuple[nn.Module, Any]:
    return model, torch.compile(model, backend="eager")


@form
def in_a_function(model: nn.Module) -> tuple[nn.Module, Any]:
    return model, torch.compile(lambda x: model(x), backend="eager")


def trained(make: Callable[[nn.Module], tuple[nn.Module, Any]]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    data = torch.randn(30, 4), torch.randint(3, (30,))
    made, call = make(model)
    call(data[0][:5])  # compiled before there are hooks
    plan = dither.Plan.unsafe_without_noise(steps=2, dataset_size=30, batch_size=10)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    private = dither.make_private(made, optimizer, plan, data, seed=0)
    for x, y in private.batches():
        private.backward(functional.cross_entropy(call(x), y, reduction="none"))
        private.optimizer.step()
        private.optimizer.zero_grad()
    with torch.no_grad():
        call(data[0])  # compiled again, with the hooks
    private.close()
    return [parameter.detach() for parameter in made.parameters()]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("name", FORMS)
def test_every_form_trains_as_the_model_itself(name: str) -> None:
    expected = trained(lambda model: (model, model))
    for one, two in zip(trained(FORMS[name]), expected, strict=True):
        assert torch.equal(one, two)
