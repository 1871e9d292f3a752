"""Evaluation over HTTP: lm-eval against a served model, what two results differ in, and quantizations side by side.

request.py      what is evaluated: tasks, numbers of items and answers, generation settings
server.py       what is served at a URL, asked over HTTP
tokenizer.py    the tokenizer that prompts are cut with                    (transformers)
preflight.py    can it answer lm-eval's questions? compared with what it says itself
preview.py      one item of each kind, evaluated first
suites.py       named lists of tasks (evals/*.yaml)
task_names.py   names of lm-eval's tasks, without importing lm-eval
tasks.py        lm-eval's tasks and ours, found with their data            (lm_eval)
golds.py        items without a right choice, left out; refusals.py: items that the server refuses
text_files.py   the perplexity of a text file, as a task                   (lm_eval)
harness.py      lm-eval's own Python API                                   (lm_eval)
client.py       lm-eval's HTTP clients, corrected for models that think    (lm_eval)
environment.py  the environment and loggers that lm-eval reads, restored afterwards
answers/        generated answers: thoughts, length limits, several per item
preferences.py  a reward model on pairs, as a result of the same form
results.py      a result on disk
comparison/     one model at several quantizations, and two results item by item
"""
