"""The table of bound models, by name and version."""

from __future__ import annotations

from collections.abc import Iterator

from pytriton.models.model import BoundModel


class ModelTable:
    """Bound models, in the order in which they were bound.

    Operations on one model take constant time, however many there are.
    """

    def __init__(self) -> None:
        self._models: dict[tuple[str, int], BoundModel] = {}
        self._versions: dict[str, dict[int, BoundModel]] = {}

    def __len__(self) -> int:
        """Returns the number of models; each version counts."""
        return len(self._models)

    def __iter__(self) -> Iterator[BoundModel]:
        """Iterates over a copy."""
        return iter(list(self._models.values()))

    def get(self, key: tuple[str, int]) -> BoundModel | None:
        """Returns the model with a name and version; None if there is none."""
        return self._models.get(key)

    def put(self, model: BoundModel) -> None:
        """Adds a model, replacing one with the same name and version."""
        name, version = model.key
        self._models[model.key] = model
        self._versions.setdefault(name, {})[version] = model

    def pop(self, key: tuple[str, int]) -> BoundModel:
        """Removes a model, and returns it."""
        name, version = key
        versions = self._versions[name]
        del versions[version]
        if not versions:
            del self._versions[name]
        return self._models.pop(key)

    def names(self) -> list[str]:
        """Returns the models' names, in the order in which the first versions were bound."""
        return list(self._versions)

    def versions(self, name: str) -> list[BoundModel]:
        """Returns the versions of a model, in the order in which they were bound."""
        return list(self._versions.get(name, {}).values())
