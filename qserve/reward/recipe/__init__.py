"""Several rewards behind one endpoint: a trained model, rules and judges, combined by weights in one YAML file.

config.py         the file, checked: every mistake is one sentence with its place
parts.py          what each part says of a request's texts
"""

from qserve.reward.recipe.config import JudgePart, ModelPart, Recipe, RulePart, is_recipe, read_recipe

__all__ = ["JudgePart", "ModelPart", "Recipe", "RulePart", "is_recipe", "read_recipe"]
