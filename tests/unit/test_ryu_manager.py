"""The manager that runs the Ryu apps: quiet, and without effect on who imports it."""

import subprocess
import sys

from checkouts import ROOT


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_ryu_s_manager_starts_quietly() -> None:
    done = python("controllers/ryu_app/manager.py", "--version")
    assert (done.returncode, done.stdout + done.stderr) == (0, "ryu-manager 4.34\n")


def test_importing_the_manager_readies_ryu_s_wsgi_module_and_patches_nothing() -> None:
    done = python(
        "-c",
        "import controllers.ryu_app.manager, ryu.app.wsgi, eventlet.patcher as p;"
        "print(any(map(p.is_monkey_patched, ['socket', 'thread', 'time'])))",
    )
    assert done.stdout == "False\n", done.stderr
