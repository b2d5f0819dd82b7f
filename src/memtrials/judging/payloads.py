"""What a judge is sent: exactly the fields its metric's protocol lists, and nothing else (MEASURING §10)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from memtrials.benchmarks.base import JudgeProfile, Metric, Prompts
from memtrials.records import Gold, Query

Message = dict[str, str]


def fill(template: str, values: Mapping[str, str]) -> str:
    """The template with each `{name}` of `values` replaced once, literally: data is never read as a template."""
    names = "|".join(re.escape(name) for name in values)
    return re.sub(r"\{(" + names + r")\}", lambda match: values[match[1]], template) if names else template


def field_values(context: str, query: Query, answer: str | None, gold: Gold) -> dict[str, str]:
    """Everything that a metric's protocol may list, by its name there."""
    known = {"context": context, "query": query.text, "answer": answer or "", "gold": " / ".join(gold.answers)}
    return {**known, **gold.details}


def judge_messages(
    metric: Metric,
    prompts: Prompts,
    profile: JudgeProfile,
    *,
    context: str,
    query: Query,
    answer: str | None,
    gold: Gold,
) -> list[Message]:
    """What a judge is sent: its prompt as system message and one `name: value` line for each field, in the metric's
    order; or, where the profile says so, the prompt with the fields in it as one user message."""
    text = prompts.texts[metric.prompt(query, gold)].rstrip()
    values = field_values(context, query, answer, gold)
    if profile.whole_message:
        return [{"role": "user", "content": fill(text, {name: values[name] for name in metric.fields})}]
    return [
        {"role": "system", "content": text},
        {"role": "user", "content": field_lines(metric.fields, values, fenced=not prompts.official)},
    ]


DATA_FIELDS = ("context", "answer")


def field_lines(fields: Sequence[str], values: Mapping[str, str], *, fenced: bool) -> str:
    """`name: value` lines joined by line ends. fenced: put a model's or memory's own text between data marks, which
    that text can't close."""

    def shown(name: str) -> str:
        value = values[name]
        if not fenced or name not in DATA_FIELDS:
            return value
        return "<data>\n" + value.replace("</data>", "< /data>") + "\n</data>"

    return "\n".join(f"{name}: {shown(name)}" for name in fields)
