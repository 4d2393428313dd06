"""What holds for all tests.

One thread: their matrices are tiny, and a second thread only waits for the first. Drawn examples are the same each time
(HYPOTHESIS_PROFILE=default draws others): who changes something else is not told of what was so before.
"""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("same", derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
