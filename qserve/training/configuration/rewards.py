"""The rewards of GRPO as functions that TRL's own script imports, written beside the configuration.

A reward host is asked over HTTP by the standard library alone; checkpoints and recipes of rules are read by qserve.
"""

from __future__ import annotations

from qserve.training.job import TrainingRun

__all__ = ["REWARDS_MODULE", "reward_names", "rewards_script"]

REWARDS_MODULE = "qserve_rewards"
_FROM_SERVER = '''

def from_server(url):
    """TRL's reward function: the rewards of the server at `url`. An empty answer gets the batch's lowest."""

    def post(body):
        key = os.environ.get("QSERVE_API_KEY")
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = urllib.request.Request(url.rstrip("/") + "/v1/reward", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return [float(row["reward"]) for row in json.load(answer)["data"]]

    def rewards_of(body):
        try:
            return post(body)
        except urllib.error.HTTPError as error:
            if error.code != 400 or "references" not in body:
                raise
            return post({"conversations": body["conversations"]})  # a model alone, which compares with nothing

    def reward(prompts, completions, references=None, **_):
        not_empty = [index for index, turns in enumerate(completions) if "".join(turn["content"] for turn in turns)]
        if not not_empty:
            return [0.0] * len(prompts)
        body = {"conversations": [[*prompts[index], *completions[index]] for index in not_empty]}
        if references and any(references):
            body["references"] = [references[index] for index in not_empty]
        found = dict(zip(not_empty, rewards_of(body)))
        return [found.get(index, min(found.values())) for index in range(len(prompts))]

    return reward
'''
_FROM_QSERVE = '''

def from_qserve(target):
    """A checkpoint or a recipe of rules, as qserve reads it."""
    from qserve.training.job import RewardSource
    from qserve.training.process.rewards import reward_functions

    return reward_functions([RewardSource(target)])[0]
'''


def reward_names(run: TrainingRun) -> list[str]:
    """What TRL's script imports, in the order of the run's rewards."""
    return [f"{REWARDS_MODULE}.reward_{number}" for number in range(1, len(run.rewards) + 1)]


def rewards_script(run: TrainingRun) -> str | None:
    """The module's text; None for a run without rewards."""
    if not run.rewards:
        return None
    served = [one.is_served for one in run.rewards]
    text = '"""Rewards of rollouts, imported by `trl grpo`. Written by qserve."""\n'
    if any(served):
        text += "\nimport json\nimport os\nimport urllib.error\nimport urllib.request\n" + _FROM_SERVER
    if not all(served):
        text += _FROM_QSERVE
    text += "\n"
    for number, (is_served, one) in enumerate(zip(served, run.rewards, strict=True), 1):
        text += f"\nreward_{number} = {'from_server' if is_served else 'from_qserve'}({one.target!r})\n"
        text += f'reward_{number}.__name__ = "reward_{number}"\n'
    return text
