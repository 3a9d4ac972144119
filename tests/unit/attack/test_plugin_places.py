"""Where a user's own class is looked for: by its name only. What else lies in a folder is never imported."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

import pytest
from plugin_cases import CHOICE, ROOT, heliograph, small

from inputs import owners, plugin_file
from inputs.plugin_file import PluginError

PLANTED = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()\n"
#: What main process, controller and twin import somewhere on their way.
LIBRARIES = ("webob", "routes", "orjson", "pyarrow", "pandas", "yaml", "sitecustomize", "usercustomize", "my_helper")
NOBODY = pwd.getpwnam("nobody").pw_uid


@pytest.mark.parametrize("command", [("run", "--dry-run"), ("simulate",), ("trace",)])
def test_modules_beside_the_experiment_and_in_the_current_folder_are_not_imported(tmp_path, command):
    (tmp_path / "mine.py").write_text(CHOICE)
    for name in LIBRARIES:
        (tmp_path / f"{name}.py").write_text(PLANTED)
    experiment = small(tmp_path, "mine:Mine")
    done = heliograph(command[0], experiment, *command[1:], *simulated(command, tmp_path), cwd=tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    assert not list(tmp_path.glob("*.ran")), "what lies in the folder was imported, though nothing names it"
    if command[0] != "trace":
        assert done.returncode == 0, done.stderr


def simulated(command: tuple[str, ...], folder: object) -> list[str]:
    return ["--artifact-dir", f"{folder}/out"] if command == ("simulate",) else []


def test_a_name_is_looked_for_beside_the_experiment_first_then_in_the_current_folder(tmp_path):
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
    with pytest.raises(PluginError, match=f"no {beside}/mine.py nor {here}/mine.py"):
        plugin_file.find("mine:Mine", [beside, here])
    (here / "mine.py").write_text(CHOICE)
    assert plugin_file.find("mine:Mine", [beside, here]) == f"{here}/mine.py:Mine"
    (beside / "mine.py").write_text(CHOICE)
    assert plugin_file.find("mine:Mine", [beside, here]) == f"{beside}/mine.py:Mine"
    assert plugin_file.find("mine.py:Mine", [beside, here]) == f"{beside}/mine.py:Mine"
    assert plugin_file.find(f"{here}/mine.py:Mine", [beside]) == f"{here}/mine.py:Mine"


def test_a_dotted_name_is_a_file_in_a_folder_and_ships_with_the_project_under_examples(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text(PLANTED)
    (tmp_path / "pkg" / "mod.py").write_text(CHOICE)
    assert plugin_file.load(plugin_file.find("pkg.mod:Mine", [tmp_path])).__name__ == "Mine"
    assert not (tmp_path / "pkg" / "__init__.ran").exists()
    shipped = plugin_file.find("examples.stickiest:Stickiest", [tmp_path])
    assert shipped == f"{ROOT}/examples/stickiest.py:Stickiest"
    with pytest.raises(PluginError, match="there is no"):
        plugin_file.find("controllers.decode_choice:LeastLoaded", [tmp_path])


@pytest.mark.parametrize(
    "text",
    ["mine", "mine:", ":Mine", "a..b:C", ".a:C", "a.:C", "a b:C", "../a:C", "a/b:C", "mine:Mine.Inner", ".py:C",
     "a\n.py:C", "\x1b[2J.py:C", "a\0.py:C", "mine:1", "os.system('x'):C"],
)  # fmt: skip
def test_what_is_no_name_of_a_plug_in_is_none(text):
    assert not plugin_file.names_plugin(text)


@pytest.mark.parametrize("text", ["mine:Mine", "a.b.c:D", "mine.py:Mine", "../over there/mine.py:Mine", "a:b.py:C"])
def test_a_module_a_dotted_module_and_a_path_name_one(text):
    assert plugin_file.names_plugin(text)


@pytest.mark.parametrize("statement", ["import my_helper", "from . import my_helper", "from my_helper import x"])
def test_a_plug_in_that_imports_what_lies_beside_it_is_refused_with_the_remedy(tmp_path, statement):
    (tmp_path / "my_helper.py").write_text("x = 1\n" + PLANTED)
    (tmp_path / "mine.py").write_text(statement + "\n" + CHOICE)
    with pytest.raises(PluginError, match=r"mine.py:1: .*Error.*; a plug-in is one file, .*put both into one file"):
        plugin_file.load(f"{tmp_path}/mine.py:Mine")
    assert not list(tmp_path.glob("*.ran"))


def test_neither_a_pyc_is_read_nor_is_one_written(tmp_path):
    """Whoever may write to `__pycache__` would otherwise be run."""
    (tmp_path / "mine.py").write_text(PLANTED + CHOICE)
    subprocess.run([sys.executable, "-m", "py_compile", "mine.py"], cwd=tmp_path, check=True)
    state = (tmp_path / "mine.py").stat()
    (tmp_path / "mine.py").write_text((PLANTED + CHOICE).replace("touch()", "parent "))
    os.utime(tmp_path / "mine.py", ns=(state.st_atime_ns, state.st_mtime_ns))
    plugin_file.load(f"{tmp_path}/mine.py:Mine")
    assert not (tmp_path / "mine.ran").exists()
    (tmp_path / "other.py").write_text(CHOICE)
    plugin_file.load(f"{tmp_path}/other.py:Mine")
    assert not list((tmp_path / "__pycache__").glob("other*"))


def test_a_file_that_has_changed_is_loaded_anew_and_one_that_has_not_once(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CHOICE)
    first = plugin_file.load(f"{path}:Mine")
    assert plugin_file.load(f"{path}:Mine") is first
    path.write_text(CHOICE + "# edited\n")
    assert plugin_file.load(f"{path}:Mine") is not first


def test_a_plug_in_may_hold_dataclasses_and_be_written_in_any_encoding(tmp_path):
    text = "# -*- coding: latin-1 -*-\nfrom __future__ import annotations\nfrom dataclasses import dataclass\n"
    text += "@dataclass\nclass Mine:\n    name: str = 'Zürich'\n"
    (tmp_path / "mine.py").write_bytes(text.encode("latin-1"))
    assert plugin_file.load(f"{tmp_path}/mine.py:Mine")().name == "Zürich"


@pytest.mark.parametrize("kind", ["folder", "pipe", "endless", "dangling", "null"])
def test_what_is_no_file_of_source_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "mine.py"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling":
        path.symlink_to("nowhere.py")
    elif kind == "null":
        path.write_bytes(b"x = '\0'\n")
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(PluginError):
        plugin_file.load(plugin_file.find("mine:Mine", [tmp_path]))


# -- who wrote it -------------------------------------------------------------------------------------------------


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="root gives files away")


@root_only
@pytest.mark.parametrize("what", ["file", "folder", "file others write", "folder others write", "link"])
def test_root_runs_no_code_that_another_user_may_have_written(tmp_path, what):
    folder = tmp_path / "own"
    folder.mkdir(mode=0o755)
    path = folder / "mine.py"
    path.write_text(PLANTED + CHOICE)
    if what == "link":
        path.rename(folder / "target.py")
        path.symlink_to(folder / "target.py")
        os.chown(folder / "target.py", NOBODY, -1)
    elif what.endswith("write"):
        (path if what.startswith("file") else folder).chmod(0o777)
    else:
        os.chown(path if what == "file" else folder, NOBODY, -1)
    with pytest.raises(PluginError, match=r"(belongs to nobody|everybody may write).*copy the plug-in into a folder"):
        plugin_file.load(f"{path}:Mine")
    assert not list(tmp_path.rglob("*.ran"))


@root_only
def test_what_belongs_to_the_user_behind_sudo_is_ours(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(CHOICE)
    os.chown(path, NOBODY, -1)
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert plugin_file.load(f"{path}:Mine").__name__ == "Mine"


@root_only
def test_a_group_may_write_only_where_it_is_a_private_one(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CHOICE)
    path.chmod(0o664)
    assert owners.who_else(path.stat()) is None, "root's own group"
    os.chown(path, -1, pwd.getpwnam("nobody").pw_gid)
    assert "the group nogroup may write" in (owners.who_else(path.stat()) or "")


def test_an_ordinary_user_s_plug_in_is_looked_at_and_not_judged(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(CHOICE)
    path.chmod(0o666)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert plugin_file.load(f"{path}:Mine").__name__ == "Mine"
