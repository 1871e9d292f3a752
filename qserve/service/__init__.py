"""One plan of a service: what is asked of it, on which machine, with what is known, and the plan that follows.

request.py   what is asked: models, limits, load, replicas          knowledge.py  what earlier runs measured
machine.py   the machine that is planned for                        plan.py       `plan_service`, the story
"""
