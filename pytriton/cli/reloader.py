"""Reloads a program while its models are served."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from pytriton.cli.app import App
from pytriton.cli.sources import Sources, read_sources_afresh, signature_of, without
from pytriton.exceptions import PyTritonError, PyTritonRuntimeError
from pytriton.models.changes import ModelChanges
from pytriton.triton import Triton, TritonBase, TritonConfig
from pytriton.utils.console import tell
from pytriton.utils.signals import interruptible

LOGGER = logging.getLogger(__name__)

_STEP_MS = 20
_DEBOUNCE_MS = 200
_LOOK_MS = 1000  # for changes without events, as in some containers


class Reloader:
    """Imports a program, and reimports it whenever its sources change.

    Args:
        app: The program.

    Raises:
        PyTritonRuntimeError: The package watchfiles is not installed.
    """

    def __init__(self, app: App) -> None:
        try:
            import watchfiles
        except ImportError as error:
            raise PyTritonRuntimeError(
                "--reload watches files with the package watchfiles: install it with `pip install 'pytriton[reload]'`."
            ) from error
        self._watch = watchfiles.watch
        self._app = app
        self._sources = Sources(app.root)
        self._triton: TritonBase | None = None
        self._failed = False
        read_sources_afresh(self._sources)

    def load(self) -> TritonBase:
        """Imports the program for the first time.

        Raises:
            AppError: It cannot be imported, or has nothing to serve.
        """
        triton = self._triton = self._app.find_triton(self._app.load())
        self._settings = _settings_of(triton)
        self._loaded = self._seen = self._sources.files()
        return triton

    def run(self, stop: threading.Event) -> None:
        """Reloads the program whenever it changes, until an event is set.

        Args:
            stop: The event.
        """
        while not stop.is_set():
            folders = self._folders()
            for changes in self._watch(
                *folders,
                watch_filter=None,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                rust_timeout=_LOOK_MS,
                yield_on_timeout=True,
                stop_event=stop,
                recursive=False,
            ):
                self._look({Path(path) for _, path in changes}, stop)
                if self._folders() != folders:
                    break

    def _folders(self) -> list[Path]:
        folders = {self._sources.root, *(path.parent for path in self._loaded)}
        return sorted(folder for folder in folders if folder.is_dir())

    def _look(self, touched: Iterable[Path], stop: threading.Event) -> None:
        """Reloads the program if one of its sources has changed or, after a failure, any file."""
        seen = {path: signature_of(path) for path in self._seen}
        is_new = self._failed and any(self._sources.holds(path) for path in touched)
        if seen == self._seen and not is_new:
            return
        self._seen = seen
        self._reload({path for path in seen if seen[path] != self._loaded.get(path)}, stop)

    def _reload(self, changed: set[Path], stop: threading.Event) -> None:
        start = time.monotonic()
        names = self._sources.affected(changed) | {self._app.module}
        try:
            with interruptible(), without(names, self._sources):
                new = self._app.find_triton(self._app.load())
        except PyTritonError as error:
            self._refuse(error.message)
            return
        except SystemExit as error:
            self._refuse(f"{self._app.name} cannot be imported. It exits with {error.code!r}.")
            return
        except KeyboardInterrupt:  # by the signal that also sets the event
            return
        self._failed = False
        before, self._loaded = self._seen, self._sources.files()
        self._loaded |= {path: before[path] for path in self._loaded.keys() & before.keys()}  # as of the import
        self._seen = dict(self._loaded)
        if not stop.is_set():  # an import may take long
            self._take_over(new, start)

    def _refuse(self, why: str) -> None:
        self._failed = True
        LOGGER.error("%s\nThe earlier models are still served.", why)

    def _take_over(self, new: TritonBase, start: float) -> None:
        """Binds the models of a new `Triton` on the running server, which belongs to the new one from then on."""
        running = self._triton
        assert running is not None
        described = "its Triton is the same"
        if not running.is_same_as(new):
            if _settings_of(new) != self._settings:
                LOGGER.warning("%s has other settings of the server now; restart it to use them.", self._app.name)
            changes = running.take_models(new)
            for (name, version), error in changes.failures.items():
                LOGGER.error("Model %r (version %d) stays as it was: %s", name, version, error.message)
            described = _described(changes)
        tell(LOGGER, [f"Reloaded {self._app.name} in {time.monotonic() - start:.2f} s: {described}."])


def _settings_of(triton: TritonBase) -> TritonConfig | None:
    return triton.config if isinstance(triton, Triton) else None


def _described(changes: ModelChanges) -> str:
    parts = [
        f"{verb} {', '.join(f'{name} v{version}' for name, version in models)}"
        for verb, models in (("bound", changes.bound), ("unbound", changes.unbound))
        if models
    ]
    return "; ".join(parts) or "all models stay as they were"
