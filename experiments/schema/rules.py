"""The rules an experiment names: whether its decode choices and commit rules can be loaded, before anything is built.

A user's own `module:Class` is looked for in the folder of the experiment file, in the current directory and in the
project's folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from controllers.commit_rules import load as commit_rules
from controllers.decode_choices import load as decode_choice
from experiments.schema.spec import Experiment


def look_in(experiment_file: Path) -> None:
    """Let this process, and those it starts, find a user's own modules."""
    folders = [str(experiment_file.resolve().parent), str(Path.cwd())]
    sys.path += [folder for folder in folders if folder not in sys.path]
    known = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*known, *folders]))


def refusals(experiment: Experiment) -> list[str]:
    """A line for each rule that cannot be loaded: spec path, value, what is wrong. Empty when all can."""
    found = []
    for i, fabric in enumerate(experiment.fabrics):
        choice, commit = getattr(fabric, "decode_choice", None), getattr(fabric, "commit", None)
        try:
            if choice is not None:
                decode_choice.load(choice, experiment.seeds[0])
        except Exception as error:  # a user's module may raise anything while it is imported
            found.append(f"fabrics.{i}.decode_choice: {error}")
        try:
            if commit is not None:
                commit_rules.load(commit)
        except Exception as error:
            found.append(f"fabrics.{i}.commit: {error}")
    return found
