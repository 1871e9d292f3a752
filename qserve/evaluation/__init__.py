"""Evaluation over HTTP: lm-eval against a served model, what two results differ in, and quantizations side by side.

server.py       what is served at a URL, asked over HTTP
tokenizer.py    the tokenizer that prompts are cut with                    (transformers)
preflight.py    can it answer lm-eval's questions? compared with what it says itself
suites.py       named lists of tasks (evals/*.yaml)
tasks.py        lm-eval's tasks and ours, found with their data            (lm_eval)
harness.py      lm-eval's own Python API                                  (lm_eval)
preferences.py  a reward model on pairs, as a result of the same form
results.py      an EvalResult on disk, and its table
diff.py         two results, item by item
load.py         a fixed load: latency and throughput
questions.py    what every quantization of a comparison is asked
compare.py      each of them measured, and a sentence of advice
picture.py      accuracy over memory, as SVG
"""
