"""Steps in which every sequence takes its next token: nothing is built anew, and the next step is launched first."""
