"""`--reward CHECKPOINT --judge TEMPLATE`: a generative judge, served as a chat model, that scores answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from qserve.cli.up.models import ModelsToServe
from qserve.errors import UsageError
from qserve.reward.judges.template import BUNDLED, read_template
from qserve.reward.recipe.config import SERVED

__all__ = ["with_judge"]


def with_judge(wanted: ModelsToServe) -> ModelsToServe:
    """`wanted` with the checkpoint of --reward as its chat model, and a recipe whose only part is that judge.

    Raises UsageError if another chat model is named: a service has one.
    """
    template, judge = wanted.settings.judge, wanted.reward
    if template is None or judge is None:
        return wanted
    if wanted.model not in (None, judge):
        raise UsageError(
            f"--judge: {judge} would be a second chat model next to {wanted.model}, and a service has one; leave "
            "--model out, or serve the judge by itself and name its address in a recipe: {judge: pointwise, url: …} "
            "(docs/reward.md)"
        )
    if read_template(template, f"--judge {template}", Path.cwd()).needs_rubric:
        raise UsageError(
            f"--judge {template}: the template asks for a rubric, which a recipe gives: {{judge: {template}, url: "
            "served, rubric: …} (docs/reward.md)"
        )
    named = template if template in BUNDLED else str(Path(template).expanduser().absolute())
    recipe = wanted.configs / "judge.yaml"
    recipe.write_text(yaml.safe_dump({"parts": [{"name": "judge", "judge": named, "url": SERVED}]}))
    return replace(
        wanted, model=judge, reward=str(recipe), settings=replace(wanted.settings, judge=None),
        reward_names=wanted.reward_names or (f"{judge}-judge",),
    )  # fmt: skip
