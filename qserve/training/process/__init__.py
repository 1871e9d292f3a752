"""The process that trains: `accelerate launch … -m qserve.training.process JOB.json`. TRL's trainers, measured.

run        the story: parse, build, train, evaluate, save
trainers   TRL's trainer of each method, from TRL's own configuration
token_rows rows of data with a token that the model has no row for
recorded   what every trainer does besides: rows of a batch known by line, checkpoints written beside and renamed
callbacks  what a run tells while it goes: losses, memory by phase, and that it was asked to stop
sharding   ZeRO and FSDP over processes on a CPU, and what a rank holds of a shard
memory     peaks of this process or card, and the real sizes of weights, gradients and optimizer states
held_out   a reward model's rewards on held-out pairs
saving     the trained model into the output folder
rewards    what rewards rollouts: a server, a checkpoint, rules
rollouts   samples of what the policy writes, with their rewards
peak_rate  the rate of matrix products, against which MFU is told
events     lines of JSON to whoever started it
"""
