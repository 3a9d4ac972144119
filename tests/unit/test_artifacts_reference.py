"""docs/reference/artifacts.md has every column and key, as the code writes them."""

from results.records.reference import DOCUMENT, MEANINGS, MODELS, tables, updated
from results.records.schema import TABLES


def test_the_reference_is_what_the_schema_says():
    document = DOCUMENT.read_text(encoding="utf-8")
    assert updated(document) == document, "columns have changed: run `python -m results.records.reference`"


def test_every_meaning_belongs_to_a_column_and_every_column_has_one():
    columns = {name: set(table.columns) for name, table in TABLES.items()}
    columns["summary.json"] = {name for _, model in MODELS for name in model.model_fields}
    assert {name: set(meanings) for name, meanings in MEANINGS.items()} == columns


def test_a_row_has_type_unit_and_meaning():
    assert "| `new_tokens` | whole number | tokens | tokens to compute |" in tables()
    assert "| `runs.N.ttft_s.p99` | number or null |  | 99th percentile |" in tables()
