"""What the planner answers today, kept: requests as command lines, each with its exit status, its JSON and its error.

A change that moves code must leave every answer as it is. One that changes a figure on purpose writes them anew, in a
commit of its own, whose message says which figures moved and why:

    python scripts/golden_plans.py            # compares all, and shows what differs
    python scripts/golden_plans.py --write    # keeps today's answers
"""
