"""Which layout serves a load: quantization, ranks and replicas, each planned and simulated."""
