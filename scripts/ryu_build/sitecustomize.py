"""On PYTHONPATH while set-up builds Ryu 4.34, and at no other time.

Ryu's build hook saves and replaces ``setuptools.command.easy_install.get_script_args``, which setuptools dropped in
version 58; older ones do not run on Python 3.12. The value is never called when a wheel is built, so the name only has
to exist.
"""

import importlib
import sys

# pip itself is the one process of the build that does not need it, and may carry a distutils of its own.
if sys.orig_argv[1:3] != ["-m", "pip"]:
    easy_install = importlib.import_module("setuptools.command.easy_install")
    if not hasattr(easy_install, "get_script_args"):
        vars(easy_install)["get_script_args"] = None
