"""Tables on their way to a model: `rows` holds what the training loop and the baselines take."""
