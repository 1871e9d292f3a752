"""Training: plan, prepare the data, write TRL's and accelerate's own configuration, run TRL's trainers, check, keep.

    job             one run as it is decided: the request that was planned, data, schedule, output
    data/           rows of many formats to TRL's own, streamed; broken ones named by line
    configuration/  that job as YAML: a TRL configuration and an accelerate one, which run without qserve
    launch          `accelerate launch` in a child process behind a guard, and what it tells while it runs
    process/        that child: TRL's trainers, measured; the only part that imports torch
    outcome         how a run ended, in words, with the lever to pull
    record          what is kept of it in the run store

cli/train → job, planner/training (does it fit) → data → configuration → launch → process → outcome, record.
"""
