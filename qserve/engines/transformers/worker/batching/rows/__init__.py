"""The batcher of models with linear attention, whose rows are sequences: its steps, who has a row, keys, and faults."""
