"""One thread for all tests: their matrices are tiny, and a second thread only waits for the first."""

import torch

torch.set_num_threads(1)
