"""Algorithm 1 of the paper and what it needs: `loop` trains by `step`s, `inducing` finds starting points; `train`
follows a `recipe` from a `start` through both. `stages` is the default's way without steps: `ridge`, then `noise`.
"""
