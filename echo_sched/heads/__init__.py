"""EAGLE-3 draft heads that ship with echo-sched: a folder beside this file for each, named after its target's alias.

Knows where they are, and nothing of what is in them or of what the alias stands for.
"""

from pathlib import Path

FOLDER = Path(__file__).parent


def shipped_head(alias: str) -> Path | None:
    """The folder of the head made for the model of this alias (any case); None where none ships."""
    # looked up among what is there: an alias comes from the command line and may be any path
    folders = {folder.name: folder for folder in FOLDER.iterdir() if (folder / "config.json").is_file()}
    return folders.get(alias.lower())


def shipped_profile(alias: str) -> Path | None:
    """The profile that was calibrated with that head; None where none ships."""
    folder = shipped_head(alias)
    profile = None if folder is None else folder / "profile.json"
    return profile if profile is not None and profile.is_file() else None
