"""A trainer: one step of TRL's GRPO on the demo chat model, rewarded by the host at each URL.

    python -c "import tests.tiny.reward.grpo_step" KEY FOLDER URL…

The last line that it prints is JSON: `{"conversations", "rewards": [of the first URL, …], "logged"}`; `logged` is the
mean of the sums.
"""

from __future__ import annotations

import json
import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from qserve.demo import chat_model_path
from tests.tiny.reward.trl_reward import TrlReward

KEY, FOLDER, *URLS = sys.argv[1:]
QUESTIONS = ("What is 12+30?", "What is 5+6?")
functions = [TrlReward(url, KEY) for url in URLS]

trainer = GRPOTrainer(
    model=str(chat_model_path()),
    reward_funcs=functions,
    args=GRPOConfig(
        output_dir=FOLDER,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        max_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        seed=1,
    ),
    train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in QUESTIONS]),
)
trainer.train()
(logged,) = (row["reward"] for row in trainer.state.log_history if "reward" in row)
rewards = [one.rewards for one in functions]
print(json.dumps({"conversations": functions[0].conversations, "rewards": rewards, "logged": logged}))
