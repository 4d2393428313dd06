"""What every objective sees of a data point: three numbers."""

from typing import NamedTuple

from torch import Tensor


class Moments(NamedTuple):
    """The latent function at a batch of inputs, in the parts that the objectives treat differently.

    With Lam Lam^T = K_MM and A = Lam^-1 K_Mb (whitened coordinates, last appendix of the paper),

        mean_i   = A_i^T m'             Eqn meanfunc
        ktilde_i = k_ii - A_i^T A_i     what the inducing points cannot explain
        svar_i   = A_i^T S' A_i         what q(u) leaves uncertain
    """

    mean: Tensor  # (b,)
    ktilde: Tensor  # (b,)
    svar: Tensor  # (b,)

    @property
    def fvar(self) -> Tensor:
        """The latent function variance sigma_f(x)^2 = ktilde + svar (Eqn fvar), shape (b,)."""
        return self.ktilde + self.svar
