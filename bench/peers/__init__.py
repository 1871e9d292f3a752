"""What `bench/peers_suites.py` puts in the place of the peers' own servers, and why tests of theirs don't pass here."""
