"""One plan of a service: what is asked of it, on which machine, with what is known, and the plan that follows.

request.py    what is asked: models, limits, load, replicas       plan.py       `plan_service`, the story
machine.py    the machine that is planned for                     engine.py     the chat model's engine
knowledge.py  what earlier runs measured                          layout/       the layout that suits a load
models.py     the checkpoints, read once                          replicas.py   several servers of a model
reward.py     the reward model, its judge and its request         sharing.py    a chat and a reward model together
"""
