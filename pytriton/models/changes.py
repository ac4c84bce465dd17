"""Changes of the bound models of a running server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from pytriton.exceptions import PyTritonError
from pytriton.models.model import BoundModel


@dataclasses.dataclass
class ModelChanges:
    """The names and versions of the bound models that have changed.

    Attributes:
        bound: Models that are new, or have replaced others.
        unbound: Models that are gone.
        failures: Models that could not be bound, and why.
    """

    bound: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    unbound: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    failures: dict[tuple[str, int], PyTritonError] = dataclasses.field(default_factory=dict)


def replace_models(
    bound: Iterable[BoundModel],
    wanted: Iterable[BoundModel],
    *,
    add: Callable[[BoundModel], None],
    remove: Callable[[str, int], object],
) -> ModelChanges:
    """Replaces the bound models, without affecting those that stay the same.

    Args:
        bound: The models that are bound.
        wanted: The models to bind, which are not on a server yet.
        add: Binds a model, replacing one with the same name and version; keeps that one if it fails.
        remove: Unbinds the model with a name and version.

    Returns:
        What has changed.
    """
    before = {model.key: model for model in bound}
    after = {model.key: model for model in wanted}
    changes = ModelChanges()
    for key in before.keys() - after.keys():
        remove(*key)
        changes.unbound.append(key)
    for key, model in after.items():
        if key in before and before[key].is_same(model):
            continue
        try:
            add(model)
            changes.bound.append(key)
        except PyTritonError as error:
            changes.failures[key] = error
    return changes
