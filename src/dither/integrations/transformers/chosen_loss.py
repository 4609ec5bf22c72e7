"""The loss that suits a model: from its logits, as its own mean loss is one number per batch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto as auto

from dither.integrations.transformers.losses import (
    causal_losses,
    classification_losses,
    logits_of,
    token_losses,
)
from dither.validate import InvalidTypeError, InvalidValueError

Batch: TypeAlias = Mapping[str, Tensor]
Loss: TypeAlias = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Computed:
    """A batch, and what a model of some configuration has made of it."""

    outputs: Any
    labels: Batch
    inputs: Batch
    config: Any = None
    label_smoothing: float = 0.0


_NO_LABELS = (
    "the batches of train_dataset must have {}, got only {}: add them to the dataset or the "
    "data_collator, or name them in TrainingArguments(label_names=[...])"
)


def choose_loss(
    model: nn.Module, loss: Loss | None, label_smoothing: float
) -> Callable[[Computed], Tensor]:
    """Return the loss of a model's task, or the one that was given: one value per record.

    Args:
        model: a model of `transformers`, or of `peft` around one.
        loss: a function from the model's outputs and the labels (a tensor, or a dict if there are
            several) to one loss per record; None chooses by the class of the model.
        label_smoothing: of `TrainingArguments`.
    """
    base = base_model(model)
    config: Any = getattr(base, "config", None)
    if getattr(config, "output_router_logits", False):
        raise InvalidValueError(
            "model.config.output_router_logits must be False, got True: the auxiliary loss of a "
            "mixture of experts depends on all records of a batch together"
        )
    if loss is not None:
        if label_smoothing:
            raise InvalidValueError(
                f"label_smoothing_factor must be 0 with loss=, got {label_smoothing!r}: smooth the "
                "labels in that function"
            )
        return lambda computed: loss(computed.outputs, _only(computed.labels))
    losses = _losses_of_task(base)
    return lambda computed: losses(
        replace(computed, config=config, label_smoothing=label_smoothing)
    )


def _losses_of_task(base: nn.Module) -> Callable[[Computed], Tensor]:
    """Return the losses of the one task that the class of a model is for."""
    names = {each.__name__ for each in type(base).__mro__}
    tasks = [*_TASKS, *_language_tasks(base)]
    found = [losses for classes, losses in tasks if names & classes]
    if len(found) != 1:
        raise InvalidValueError(
            f"loss must be given for {type(base).__name__}, whose task is not known: a function "
            "loss(outputs, labels) with one value per record, such as "
            "dither.integrations.transformers.causal_losses"
        )
    return found[0]


def base_model(model: nn.Module) -> nn.Module:
    """Return the model of `transformers` inside of what `peft` and others wrap around it."""
    return next((each for each in model.modules() if isinstance(each, PreTrainedModel)), model)


def split_labels(batch: Batch, label_names: Iterable[str]) -> tuple[Batch, Batch]:
    """Return the labels of a batch, and its inputs."""
    wanted = [*label_names]
    labels = {name: batch[name] for name in wanted if batch.get(name) is not None}
    if len(labels) != len(wanted) or not wanted:
        raise InvalidValueError(
            _NO_LABELS.format(" and ".join(wanted) or "labels", ", ".join(batch))
        )
    return labels, {name: value for name, value in batch.items() if name not in labels}


def with_decoder_inputs(model: nn.Module, inputs: Batch, labels: Batch) -> Batch:
    """Return inputs with those of the decoder, which models would make from the labels."""
    base = base_model(model)
    shift = getattr(base, "prepare_decoder_input_ids_from_labels", None)
    if shift is None or "labels" not in labels or "decoder_input_ids" in inputs:
        return inputs
    return {**inputs, "decoder_input_ids": shift(labels=labels["labels"])}


def _only(labels: Batch) -> Any:
    values = [*labels.values()]
    return values[0] if len(values) == 1 else labels


def _of_sequences(computed: Computed) -> Tensor:
    """Return the losses of classes, numbers or several labels: one per document."""
    config, targets = computed.config, computed.labels["labels"]
    usual = "multi_label" if targets.is_floating_point() else "single_label"
    usual = "regression" if config.num_labels == 1 else f"{usual}_classification"
    kind = config.problem_type or usual
    if kind == "single_label_classification":
        return _of_classes(replace(computed, labels={"labels": targets.flatten()}))
    logits = logits_of(computed.outputs, 2, "documents × labels")
    targets = targets.to(logits.dtype).view(logits.shape)
    if kind == "regression":
        return functional.mse_loss(logits, targets, reduction="none").mean(1)
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)


def _of_classes(computed: Computed) -> Tensor:
    return classification_losses(
        computed.outputs, computed.labels["labels"], label_smoothing=computed.label_smoothing
    )


def _of_next_tokens(computed: Computed) -> Tensor:
    return causal_losses(
        computed.outputs, computed.labels["labels"], label_smoothing=computed.label_smoothing
    )


def _of_tokens(computed: Computed) -> Tensor:
    return token_losses(
        computed.outputs, computed.labels["labels"], label_smoothing=computed.label_smoothing
    )


def _of_answers(computed: Computed) -> Tensor:
    """Return the losses of where an answer begins and ends, 0 where it is cut off.

    Padding is no answer, and neither is a place behind the document's own last token: its loss must
    not depend on how far it was padded.
    """
    if computed.label_smoothing:
        raise InvalidValueError(
            "label_smoothing_factor must be 0 for question answering, got "
            f"{computed.label_smoothing!r}"
        )
    mask = computed.inputs.get("attention_mask")
    return (_of_places(computed, "start", mask) + _of_places(computed, "end", mask)) / 2


def _of_places(computed: Computed, name: str, mask: Tensor | None) -> Tensor:
    logits = getattr(computed.outputs, f"{name}_logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        raise InvalidTypeError(f"outputs must have {name}_logits, documents × tokens")
    length = logits.shape[1]
    places = computed.labels[f"{name}_positions"].flatten().clamp(0, length)
    if mask is not None:
        logits = logits.masked_fill(mask == 0, float("-inf"))
        is_own = functional.pad(mask, (0, 1)).gather(1, places[:, None]).flatten() != 0
        places = places.where(is_own, length)
    return functional.cross_entropy(logits, places, reduction="none", ignore_index=length)


def _language_tasks(base: nn.Module) -> "list[Task]":
    """Return the tasks of language models: labels are shifted only where text is continued."""
    if getattr(getattr(base, "config", None), "is_encoder_decoder", False):
        return [(_READ_AND_WRITE | _FILL_GAPS, _of_tokens)]
    return [(_CONTINUE, _of_next_tokens), (_FILL_GAPS, _of_tokens)]


def _classes(*mappings: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the classes in mappings of `transformers`, some of which are tuples."""
    found = (each for mapping in mappings for each in mapping.values())
    flat = ((each,) if isinstance(each, str) else each for each in found)
    return frozenset(name for names in flat for name in names)


Task: TypeAlias = tuple[frozenset[str], Callable[[Computed], Tensor]]
_TASKS: list[Task] = [
    (
        _classes(
            auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
            auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
            auto.MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES,
            auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
        ),
        _of_sequences,
    ),
    (_classes(auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES), _of_classes),
    (_classes(auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES), _of_answers),
    (_classes(auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES), _of_tokens),
]
_READ_AND_WRITE = _classes(auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
_FILL_GAPS = _classes(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
_CONTINUE = _classes(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - {"XLNetLMHeadModel"} - _FILL_GAPS
