"""The documents name every key and every model, as the code has them."""

import re
from pathlib import Path

from experiments.schema.models import DECODE_CHOICES
from experiments.schema.reference import DOCUMENT, SECTIONS, tables, updated
from workloads.kv import MODELS, kv_model

MODELS_DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


def test_the_reference_is_what_the_models_say():
    document = DOCUMENT.read_text(encoding="utf-8")
    assert updated(document) == document, (
        "keys have changed: run `python -m experiments.schema.reference`, commit the file"
    )


def test_every_key_has_a_row_with_a_meaning():
    rows = dict(re.findall(r"^\| `([^`]+)` \| .* \| ([^|]*) \|$", tables(), re.MULTILINE))
    for _, prefix, model in SECTIONS:
        for name in model.model_fields:
            assert rows[f"{prefix}{name}"].strip(), f"{prefix}{name} has no description"


def test_choices_and_defaults_are_in_the_table():
    text = tables()
    assert "| `model.kv_dtype` | `bf16`, `fp8` |  | `bf16` |" in text
    assert "| `cluster.link_efficiency` | number, > 0, ≤ 1 | share | `0.9` |" in text
    assert "| `workload.window_s` | number, > 0, ≤ 86400 | s | **required** |" in text


def test_every_decode_choice_is_named():
    document = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"`{choice}`" in document for choice in DECODE_CHOICES)


def test_the_model_document_has_the_size_of_every_model():
    document = MODELS_DOCUMENT.read_text(encoding="utf-8")
    for name in MODELS:
        model = kv_model(name, tp=1)
        row = next(line for line in document.splitlines() if line.startswith("|") and f"`{name}`" in line)
        assert f"{model.bytes_per_token():,}" in row
        assert f"{model.rank_bytes(65_536) / 1e9:.2f} GB" in row
