"""Evaluation over HTTP: lm-eval against a served model, and what two results differ in.

server.py     what is served at a URL, asked over HTTP
preflight.py  can it answer lm-eval's questions? compared with what it says itself
suites.py     named lists of tasks (evals/*.yaml)
harness.py    lm-eval's own Python API                                  (lm_eval)
results.py    an EvalResult on disk, and its table
diff.py       two results, item by item
"""
