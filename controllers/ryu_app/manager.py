"""Start Ryu 4.34 on eventlet 0.41: the arguments are those of ``ryu-manager``.

Three quirks live here and nowhere else:

* ``ryu.app.wsgi`` imports ``eventlet.wsgi.ALREADY_HANDLED``, which eventlet dropped for a flag of its own. Ryu only
  returns it, as the body of a WebSocket that has answered for itself; a body can be iterated, and so can an empty list.
* eventlet pulls in dnspython to make name look-ups cooperative: 0.2 s of every start, for nothing here.
* Ryu patches the standard library after it has imported much of it, so a lock of the logging module stays a real one
  (eventlet warns of it). `main` patches before Ryu is imported.

Importing this module prepares eventlet for Ryu's WSGI module and patches nothing.
"""

import os
import sys
import warnings
from pathlib import Path

os.environ["EVENTLET_NO_GREENDNS"] = "yes"
# Every start says that eventlet is in maintenance. Ryu has no other hub: the notice would only bury errors on stderr.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")

import eventlet  # noqa: E402
import eventlet.wsgi  # noqa: E402

if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
    eventlet.wsgi.ALREADY_HANDLED = []


def main() -> None:
    """Run ``ryu.cmd.manager`` with this process's arguments until it ends or is interrupted."""
    # An application given as a path imports its siblings (`from controllers import ...`) from the checkout.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    eventlet.monkey_patch()
    from ryu.cmd import manager

    manager.main()


if __name__ == "__main__":
    main()
