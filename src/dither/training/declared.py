"""What a loop may use besides the batch, and what it must not find out about it."""

from weakref import WeakValueDictionary

from torch import Tensor

from dither.training.errors import StepError
from dither.validate import InvalidValueError


class PublicNumber(float):
    """A number that is declared public: it may be another one in every step."""


class PublicTensors:
    """Tensors that are declared public, as long as they are what they were then."""

    def __init__(self) -> None:
        self._tensors: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._versions: dict[int, int] = {}

    def add(self, tensor: Tensor) -> None:
        """Take a tensor as it is now."""
        if tensor.requires_grad:
            raise StepError(
                "what is public must have no gradient, got a tensor that comes from parameters: "
                "use them inside the model; a penalty on them is the optimizer's weight_decay"
            )
        self._tensors[id(tensor)] = tensor
        self._versions[id(tensor)] = tensor._version

    def refuse(self, tensor: Tensor, where: str) -> None:
        """Raise if a tensor was not declared, or has changed since."""
        if tensor is not self._tensors.get(id(tensor)):
            raise StepError(_undeclared(tensor, where))
        if tensor._version != self._versions[id(tensor)]:
            raise StepError(
                f"{where} got a public tensor that was changed since it was declared: if that did "
                "not come from records, declare it again with private.public(tensor)"
            )


class Reading:
    """Whether a step's loop has read values of its batch, and by what."""

    by: str | None = None

    def refuse(self) -> None:
        """Raise if it has."""
        if self.by is not None:
            raise InvalidValueError(
                "losses must come from tensors alone, got a value or a size that depends on values "
                f"of the batch, by {self.by} before private.backward; read it after that, and "
                "keep it to yourself: it is of private data"
            )


def _undeclared(tensor: Tensor, where: str) -> str:
    what = f"{where} got a tensor of shape {tuple(tensor.shape)}"
    if tensor.requires_grad:
        return (
            f"{what} that comes from parameters, outside private.model(inputs): use them inside "
            "the model; a penalty on parameters is the optimizer's weight_decay"
        )
    if where == "__getitem__":
        return (
            f"{what} as an index that does not come from the batch; outputs.gather(1, "
            "targets[:, None])[:, 0] picks an entry of every record"
        )
    return (
        f"{what} that is neither of the batch nor an output of private.model(inputs); if it does "
        "not come from records, declare it with private.public(tensor), or train(..., "
        "public=[tensor])"
    )
