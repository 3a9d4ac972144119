"""Start Ryu 4.34 on eventlet 0.41: the arguments are those of ``ryu-manager``.

Two quirks live here and nowhere else:

* ``ryu.app.wsgi`` imports ``eventlet.wsgi.ALREADY_HANDLED``, which eventlet dropped: it keeps a flag of its own since. Ryu only returns it,
  as the body of a WebSocket that has answered for itself, and a body is something that can be iterated: an empty list does.
* eventlet pulls in dnspython to make name look-ups cooperative, 0.2 s of every start. The controller talks to addresses, never to names.
"""

import os
import sys
import warnings
from pathlib import Path

# An application given as a path imports its siblings (`from controllers import ...`) from the checkout, not from scripts/.
sys.path[0] = str(Path(__file__).resolve().parent.parent)
os.environ["EVENTLET_NO_GREENDNS"] = "yes"
# eventlet tells every start that it is in maintenance; Ryu has no other hub, so the notice would only bury real errors on stderr.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")

import eventlet.wsgi  # noqa: E402

if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
    eventlet.wsgi.ALREADY_HANDLED = []


def main() -> None:
    """Run ``ryu.cmd.manager`` with this process's arguments until it ends or is interrupted."""
    from ryu.cmd import manager

    manager.main()


if __name__ == "__main__":
    main()
