"""The self-test of a chat model (`check`), and when it is run for all of a service (`checks`)."""
