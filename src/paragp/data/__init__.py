"""Tables on their way to a model: `files` reads and writes them, `tables` encodes them, `rows` holds what
the training loop and the baselines take, `stream` what does not fit into memory; `datasets` are the paper's.
"""
