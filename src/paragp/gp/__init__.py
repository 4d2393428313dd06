"""The mathematics: torch and GPyTorch kernels only.

Read in this order: `moments` (three numbers per data point), `objectives` (what is maximised), `covariances`
and `families` (how inducing points make the moments), `model`, `methods` (the registry). `kernels`,
`features` and `linalg` hold what they lean on, `exact` the full-batch baselines.
"""
