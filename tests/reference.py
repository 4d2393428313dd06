"""The paper's equations, unwhitened, in slow and obvious NumPy. Nothing here imports paragp.

Every function takes matrices: K_MM (with the jitter already on it), K_Mb, k_diag, m and S of q(u) = N(m, S).
"""

import numpy as np
from scipy.integrate import quad
from scipy.spatial.distance import cdist


# --- kernels ---
def kernel(name, x, z, lengthscale, scale, alpha=None):
    r = cdist(x / lengthscale, z / lengthscale)
    if name == "rbf":
        return scale * np.exp(-(r**2) / 2)
    if name == "matern12":
        return scale * np.exp(-r)
    if name == "matern32":
        return scale * (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
    if name == "matern52":
        return scale * (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)
    if name == "rq":
        return scale * (1 + r**2 / (2 * alpha)) ** -alpha
    raise ValueError(name)


# --- densities ---
def log_normal(y, mean, var):
    return -0.5 * np.log(2 * np.pi * var) - (y - mean) ** 2 / (2 * var)


def log_multivariate_normal(y, cov):
    return -0.5 * (y @ np.linalg.solve(cov, y) + np.linalg.slogdet(cov)[1] + len(y) * np.log(2 * np.pi))


def kl(m, S, K):
    """KL(N(m, S) || N(0, K))."""
    log_dets = np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
    return 0.5 * (np.trace(np.linalg.solve(K, S)) + m @ np.linalg.solve(K, m) - len(m) + log_dets)


def renyi(m, S, K, order):
    """Rényi's divergence of that order of N(m, S) from N(0, K)."""
    tilted = order * K + (1 - order) * S
    log_dets = np.linalg.slogdet(tilted)[1] - (1 - order) * np.linalg.slogdet(S)[1] - order * np.linalg.slogdet(K)[1]
    return order / 2 * m @ np.linalg.solve(tilted, m) + log_dets / (2 * (1 - order))


# --- mean and variance functions ---
def mean(K_MM, K_Mb, m):
    """Eqn meanfunc."""
    return K_Mb.T @ np.linalg.solve(K_MM, m)


def ktilde(K_MM, K_Mb, k_diag):
    """The diagonal of K_NN - K_NM K_MM^-1 K_MN."""
    return k_diag - np.einsum("mb,mb->b", K_Mb, np.linalg.solve(K_MM, K_Mb))


def svar(K_MM, K_Mb, S):
    """k_i^T K_MM^-1 S K_MM^-1 k_i."""
    W = np.linalg.solve(K_MM, K_Mb)
    return np.einsum("mb,mn,nb->b", W, S, W)


def od_mean(K_MM, K_Mb, m, a, K_gb, K_gM):
    """Salimbeni et al. 2018: the coupled mean plus a basis made orthogonal to it under the prior."""
    return mean(K_MM, K_Mb, m) + (K_gb - K_gM @ np.linalg.solve(K_MM, K_Mb)).T @ a


def od_kl(m, S, K_MM, a, K_gg, K_gM):
    return kl(m, S, K_MM) + 0.5 * a @ (K_gg - K_gM @ np.linalg.solve(K_MM, K_gM.T)) @ a


# --- objectives: data terms, one per datum ---
def svgp_terms(mean, ktilde, svar, y, noise):
    """Eqn svgp."""
    return log_normal(y, mean, noise) - ktilde / (2 * noise) - svar / (2 * noise)


def vfitc_terms(mean, ktilde, svar, y, noise):
    """Eqn vfitcelbo."""
    return log_normal(y, mean, ktilde + noise) - 0.5 * svar / (ktilde + noise)


def ppgpr_terms(mean, ktilde, svar, y, noise):
    """Eqn regpred2."""
    return log_normal(y, mean, noise + ktilde + svar)


def gamma_robust_terms(mean, ktilde, svar, y, noise, gamma):
    """The gamma divergence's loss by quadrature: over f for the expectation, over y for the integral."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    integral = quad(lambda v: np.exp(gamma * log_normal(v, 0.0, noise)), -np.inf, np.inf)[0]
    terms = []
    for mu, var, target in zip(mean, ktilde + svar, y, strict=True):
        f = mu + np.sqrt(var) * nodes
        expectation = weights @ np.exp((gamma - 1) * log_normal(target, f, noise))
        terms.append(gamma / (gamma - 1) * (expectation / integral ** ((gamma - 1) / gamma) - 1))
    return np.array(terms)


def ppgpr_gamma_terms(mean, ktilde, svar, y, noise, gamma):
    """The gamma divergence's loss of the predictive density, its integral by quadrature."""
    terms = []
    for mu, var, target in zip(mean, ktilde + svar + noise, y, strict=True):
        scale = np.sqrt(var)
        integral = quad(lambda v, s2=var: np.exp(gamma * log_normal(v, 0.0, s2)), -40 * scale, 40 * scale, points=[0])[
            0
        ]
        density = np.exp(log_normal(target, mu, var))
        terms.append(gamma / (gamma - 1) * (density ** (gamma - 1) / integral ** ((gamma - 1) / gamma) - 1))
    return np.array(terms)


def bb_alpha_terms(mean, var, y, noise, alpha):
    """log E[N(y | f, noise)^alpha] / alpha over f ~ N(mean, var), by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    f = mean[:, None] + np.sqrt(var)[:, None] * nodes
    noise = np.broadcast_to(noise, mean.shape)[:, None]
    return np.log(np.exp(alpha * log_normal(y[:, None], f, noise)) @ weights) / alpha


# --- marginal likelihoods ---
def exact_log_marginal(K_NN, y, noise):
    """Eqn marg."""
    return log_multivariate_normal(y, K_NN + noise * np.eye(len(y)))


def fitc_log_marginal(K_MM, K_MN, k_diag, y, noise):
    """Eqn fitcmarg."""
    Q = K_MN.T @ np.linalg.solve(K_MM, K_MN)
    return log_multivariate_normal(y, Q + np.diag(ktilde(K_MM, K_MN, k_diag)) + noise * np.eye(len(y)))
