"""Algorithm 1 of the paper and what it needs: `loop` trains, `inducing` finds starting points."""
