"""Folders of the cache appear whole or not at all, whoever is interrupted, fails or races."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echo_sched.cache import cache_folder, model_folder
from echo_sched.errors import ModelError

SLOW_MAKER = """
import sys, time
from pathlib import Path
from echo_sched.cache import model_folder

def make(folder, scratch):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    (folder / "first").write_text("1")
    print("begun", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "second").write_text("2")

print(model_folder("key", make))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def start_maker(log: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW_MAKER, str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def write_both(folder: Path, scratch: Path) -> None:
    (scratch / "download").write_text("not kept")
    (folder / "first").write_text("1")
    (folder / "second").write_text("2")


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if path.is_dir())


def test_a_folder_is_made_once_without_its_scratch(cache: Path) -> None:
    folder = model_folder("key", write_both)
    assert sorted(os.listdir(folder)) == ["first", "second"]
    assert folders(cache) == ["key"]

    def must_not_run(folder: Path, scratch: Path) -> None:
        raise AssertionError("it is there already")

    assert model_folder("key", must_not_run) == folder


def test_a_failure_leaves_nothing(cache: Path) -> None:
    def fail(folder: Path, scratch: Path) -> None:
        write_both(folder, scratch)
        raise ModelError("bad file")

    with pytest.raises(ModelError, match="bad file"):
        model_folder("key", fail)
    assert folders(cache) == []


def test_a_killed_run_leaves_no_folder_and_the_next_one_cleans_up(cache: Path, tmp_path: Path) -> None:
    with start_maker(tmp_path / "log", seconds=60) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "begun\n"
        maker.send_signal(signal.SIGKILL)
    assert not (cache / "models" / "key").exists()
    folder = model_folder("key", write_both)
    assert sorted(os.listdir(folder)) == ["first", "second"]
    assert folders(cache) == ["key"]


def test_racing_processes_make_it_once_and_both_get_it_whole(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    makers = [start_maker(log, seconds=0.5) for _ in range(2)]
    outputs = [maker.communicate(timeout=60)[0].splitlines() for maker in makers]
    assert [lines[-1] for lines in outputs] == [str(cache / "models" / "key")] * 2
    assert log.read_text() == "made\n"
    assert sorted(os.listdir(cache / "models" / "key")) == ["first", "second"]


def test_a_cache_that_cannot_be_used_is_named(cache: Path) -> None:
    cache.write_text("a file where a folder should be")
    with pytest.raises(ModelError, match="ECHO_CACHE names another folder"):
        model_folder("key", write_both)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.setenv("ECHO_CACHE", "~/models")
    assert cache_folder() == Path("/home/somebody/models")
    monkeypatch.delenv("ECHO_CACHE")
    assert cache_folder() == Path("/elsewhere/echo-sched")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/somebody/.cache/echo-sched")
