"""docs/reference/command-line.md has every command and option, as the command line has them."""

from commands.reference import DOCUMENT, sections, updated


def test_the_reference_is_what_the_commands_say():
    document = DOCUMENT.read_text(encoding="utf-8")
    assert updated(document) == document, "commands have changed: run `python -m commands.reference`, commit the file"


def test_a_command_has_its_purpose_its_call_and_its_options():
    text = sections()
    assert "### simulate" in text
    assert "./heliograph simulate EXPERIMENT [OPTIONS]" in text
    assert "| `--set path.to.key=value` | override a key of the file" in text
    assert "./heliograph link-budget" in text
