"""Load tests of any OpenAI-compatible server: TTFT, TPOT, ITL, E2E, goodput.

load.py         how requests follow each other: closed loop, open loop, bursts, the sweep
endpoints.py    what is sent: bodies of chat, completions, reward and classify requests
prompts.py      synthetic prompts with exact token counts; dataset.py: from files; counting.py: who counts tokens
connection.py   HTTP/1.1 on httptools; answer.py: arrival times of a stream's events
client.py       one request from start to end: a `records.py: RequestRecord`, or why it failed (failures.py)
run.py          a stage of load after another
metrics.py      records to figures, as `vllm bench serve` computes them; saturation.py: where more load brings nothing
result.py       JSON and CSV
target.py       what stands behind a URL, and whether it can be measured at all
fake_server.py  a server of set latencies; self_test.py: are they measured, and what does measuring cost?
"""
