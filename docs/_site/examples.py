"""Put the examples in docstrings into fenced blocks: otherwise Markdown renders `>>>` as three nested quotations."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?m)^>>> .*\n?(?:.*\S.*\n?)*")


def fence_examples(text: str) -> str:
    """Return a docstring with a fence around each example and its output."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)


class FencedExamples(griffe.Extension):
    """Adds fences to the examples of every documented object."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Add the fences. griffe calls this for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)
