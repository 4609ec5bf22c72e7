"""Small private runs with Opacus for the tests of its bridge."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from scipy.stats import chi2
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dither

DELTA = 1e-5
ADAPTIVE_CLIPPING: dict[str, Any] = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 5.0,
}


def engine(accountant: str = "dither") -> Any:
    """Return an engine without the warning that its generator is PyTorch's, which we know."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        return PrivacyEngine(accountant=accountant)


def records(number: int, features: int = 4, classes: int = 3) -> TensorDataset:
    """Return records of normal numbers and arbitrary classes."""
    return TensorDataset(torch.randn(number, features), torch.randint(0, classes, (number,)))


def made_private(
    private_engine: Any,
    data: TensorDataset,
    *,
    batch_size: int,
    classes: int = 3,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    drop_last: bool = False,
    num_workers: int = 0,
    bias: bool = False,
    how: str = "make_private",
    **settings: Any,
) -> tuple[Any, Any, Any]:
    """Return model, optimizer and data loader as Opacus makes them of a linear model."""
    model = nn.Linear(data.tensors[0].shape[1], classes, bias=bias)
    settings = {"max_grad_norm": 1.0, **settings}
    if how == "make_private":
        settings = {"noise_multiplier": 1.0, **settings}
    made = getattr(private_engine, how)(
        module=model,
        optimizer=optimizer(model.parameters(), lr=0.5),
        data_loader=DataLoader(
            data, batch_size=batch_size, drop_last=drop_last, num_workers=num_workers
        ),
        **settings,
    )
    return made[0], made[1], made[-1]


def small_plan(steps: int = 6, *, dataset_size: int = 60, batch_size: int = 10) -> dither.Plan:
    """Return a plan whose noise and step size differ in every step."""
    return dither.Plan.from_noise_multipliers(
        [1.5 + 0.25 * t for t in range(steps)],
        delta=DELTA,
        dataset_size=dataset_size,
        batch_size=batch_size,
        stepsizes=[1.0 / (1 + t) for t in range(steps)],
    )


def limits(degrees: int) -> tuple[float, float]:
    """Return between which values χ² lies but for once in 1e9 times."""
    return float(chi2.ppf(0.5e-9, degrees)), float(chi2.isf(0.5e-9, degrees))


def backward(model: Any, batch: tuple[Tensor, Tensor]) -> None:
    """Compute the gradients of a batch, without the warning that inputs need none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        cross_entropy(model(batch[0]), batch[1]).backward()


def step(model: Any, optimizer: Any, batch: tuple[Tensor, Tensor]) -> None:
    """Take one step on a batch."""
    optimizer.zero_grad()
    backward(model, batch)
    optimizer.step()
