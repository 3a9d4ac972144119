"""Pages for a browser: nothing that a user wrote is markup, an invisible character or a change of direction in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from outputs.terminal import printable_lines


def pages(templates: Path) -> jinja2.Environment:
    """The templates of a folder. A value is escaped where it is put in, unless it is a `Markup` of ours."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )


def _printable(value: Any) -> Any:
    return printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value
