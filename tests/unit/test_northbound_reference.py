"""docs/reference/northbound.md has every call of the API. The text is read, since Ryu patches whoever imports it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROUTE = re.compile(r'@route\("\w+", "([^"]+)", methods=\["(\w+)"\]\)')


def test_every_call_of_the_api_is_in_its_page():
    source = (ROOT / "controllers" / "ryu_app" / "northbound.py").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "reference" / "northbound.md").read_text(encoding="utf-8")
    calls = ROUTE.findall(source)
    assert len(calls) == source.count("@route(")
    documented = re.sub(r"`(GET|POST) (/[^`]+)`((?:, `/[^`]+`)*)", _one_a_path, page)
    for path, method in calls:
        assert f"`{method} {path.replace('{request_id}', '{id}')}`" in documented, f"{method} {path} has no row"


def _one_a_path(row: re.Match[str]) -> str:
    """`GET /a`, `/b`: each path with its method."""
    return ", ".join(f"`{row[1]} {path}`" for path in [row[2], *re.findall(r"`([^`]+)`", row[3])])
