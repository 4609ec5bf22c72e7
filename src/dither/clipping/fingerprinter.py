"""Watches a forward pass for a few numbers only: do records depend on each other?"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dither.clipping.batch import wide
from dither.clipping.layout import layout_of
from dither.clipping.recorder import Recorder, Seen
from dither.clipping.registry import treats_leading_alike


class Fingerprinter(Recorder):
    """Notes, instead of the uses, a number and its scale a record for every input of a use."""

    without_gradients = True

    def __init__(self, parameters: Mapping[str, Tensor], batch: Any, records: int) -> None:
        super().__init__(parameters, batch, records)
        self.fingerprints: list[Tensor] = []

    def _note_use(self, seen: Seen, batch: frozenset[int]) -> None:
        alike = treats_leading_alike(seen.function)
        for tensor, _, _ in seen.given:
            layout = layout_of(tensor.shape, self.records, alike)
            if id(tensor) in batch and layout is not None:
                rows = layout.record_first(tensor.detach(), self.records)
                rows = rows.reshape(self.records, -1)
                rows = rows.to(wide(rows.dtype) if rows.is_floating_point() else torch.float32)
                weights = torch.arange(rows.shape[1], dtype=rows.dtype, device=rows.device).cos_()
                size = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(weights)
                self.fingerprints.append(torch.stack([rows @ weights, size]))
