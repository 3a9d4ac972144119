"""A checkout to try the launcher and the set-up on, with stand-ins for the system's programs."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLI = "import os, sys; print('cli', os.getcwd(), *sys.argv[1:]); sys.exit(7 if 'fail' in sys.argv else 0)"


class Checkout:
    """A copy of the launcher, a command line that prints its arguments, and stand-ins for the system's programs."""

    def __init__(self, path: Path) -> None:
        self.path = path / "checkout"
        self.programs = path / "programs"
        self.programs.mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", self.path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("heliograph", "requirements.txt", "constraints.txt"):
            shutil.copy(ROOT / name, self.path / name)
        (self.path / "cli.py").write_text(CLI)
        # Every test decides which user it is, and none may reach the real package manager or service manager.
        self.user(1000)
        for name in ("apt-get", "systemctl"):
            self.program(name, f'echo "{name} was called" >&2; exit 99')
        # The programs a run needs, present whatever this machine has.
        for name in self.state("echo ${needed_binaries[@]}").split():
            self.program(name, "exit 0")

    def program(self, name: str, script: str) -> Path:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        return path

    def user(self, uid: int) -> None:
        self.program("id", f"[[ $1 == -un ]] && echo someone || echo {uid}")

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.path / name).read_text()
        assert old in text
        (self.path / name).write_text(text.replace(old, new))

    def need(self, binary: str) -> None:
        self.edit("scripts/state.sh", "needed_binaries=(", f"needed_binaries=({binary} ")

    def state(self, expression: str) -> str:
        script = f'set -eu; here={self.path}; source "$here/scripts/state.sh"; {expression}'
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout

    def set_up(self, *, stamped: bool = True) -> None:
        """An environment as set-up leaves it, less the packages."""
        venv.create(self.path / ".venv", with_pip=False, symlinks=True)
        if stamped:
            for stamp in ("venv", "system"):
                (self.path / f".venv/.heliograph-{stamp}").write_text(self.state("fingerprint"))

    def run(self, *arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", **environment}
        return subprocess.run(
            [str(self.path / "heliograph"), *arguments],
            capture_output=True, text=True, cwd=cwd or self.path, env=env, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip

    def broken_python(self, message: str) -> str:
        """An interpreter that passes for one with venv and cannot make an environment."""
        script = f'[[ $1 == -c || $1 == -V ]] && exec {sys.executable} "$@"\necho "{message}"; exit 3'
        return str(self.program("broken-python", script))
