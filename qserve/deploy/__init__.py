"""Files that run a planned service elsewhere: compose, systemd, Kubernetes. Pure: from a `Service` to text."""
