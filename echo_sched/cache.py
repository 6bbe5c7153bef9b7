"""Folders made once and kept: each appears whole, by one rename, or not at all, whoever is interrupted or racing.

Below ECHO_CACHE (default: echo-sched in the user's cache):

    models/KEY            a finished folder, never written again
    models/.KEY.lock      held while somebody makes that folder
    models/.KEY.partial/  what an interrupted run left; the next holder of the lock throws it away

Does not know what the folders hold.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from echo_sched.errors import ModelError
from echo_sched.notice import say


def cache_folder() -> Path:
    """Where things are kept: ECHO_CACHE, else echo-sched in the user's cache folder."""
    if chosen := os.environ.get("ECHO_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "echo-sched"


def model_folder(key: str, make: Callable[[Path, Path], None]) -> str:
    """The finished folder `key`. If there is none yet, `make(folder, scratch)` fills both; only `folder` is kept.

    Processes that want the same key take turns, and the later ones find it done. Raises ModelError where the cache
    cannot be used, and whatever `make` raises.
    """
    models = cache_folder() / "models"
    finished, partial = models / key, models / f".{key}.partial"
    try:
        if finished.is_dir():
            return str(finished)
        models.mkdir(parents=True, exist_ok=True)
        with _held(models / f".{key}.lock"):
            if not finished.is_dir():
                _make(finished, partial, make)
    except OSError as error:
        raise ModelError(f"cannot use the cache at {models}: {error}; ECHO_CACHE names another folder") from error
    return str(finished)


def _make(finished: Path, partial: Path, make: Callable[[Path, Path], None]) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    folder, scratch = partial / "folder", partial / "scratch"
    try:
        folder.mkdir(parents=True)
        scratch.mkdir()
        make(folder, scratch)
        folder.replace(finished)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("another process is preparing this model; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
