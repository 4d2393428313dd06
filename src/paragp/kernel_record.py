"""Kernels as JSON: what a saved model says of its kernel, and the kernel that is made of it again.

`build` trusts nothing it reads; parameters are tensors, stored elsewhere.
"""

from typing import Any

from gpytorch import constraints, kernels
from gpytorch.kernels import Kernel

from paragp.gp.kernels import kernel_name

SCALE = "ScaleKernel"
PLAIN = ("RBFKernel", "MaternKernel", "RQKernel", "PeriodicKernel", "LinearKernel", "CosineKernel")
JOINT = ("AdditiveKernel", "ProductKernel")
DEEPEST = 20  # kernels within kernels: much deeper ones end the process (torch aborts) and not with an exception
CONSTRAINTS: dict[str, tuple[Any, ...]] = {  # with bounds that the stored ones replace
    "Positive": (constraints.Positive,), "GreaterThan": (constraints.GreaterThan, 0.0),
    "LessThan": (constraints.LessThan, 0.0), "Interval": (constraints.Interval, 0.0, 1.0),
}  # fmt: skip


def describe(kernel: Kernel) -> dict[str, Any]:
    """A kernel as JSON, or a ValueError that says why it cannot be one. Its parameters are tensors, stored as such."""
    name = type(kernel).__name__
    known = type(kernel) is getattr(kernels, name, None) and name in (SCALE, *JOINT, *PLAIN)
    if not known or tuple(kernel.batch_shape) or kernel._priors:
        raise ValueError(
            f"The kernel {kernel_name(kernel)} cannot be stored: {name} is not one of {SCALE}, {', '.join(JOINT)}, "
            f"{', '.join(PLAIN)} (without batches and priors). Use a kernel by name, or one built of these."
        )
    bounds = {parameter.removesuffix("_constraint"): type(c) for parameter, c in kernel._constraints.items()}
    for constraint in bounds.values():
        if CONSTRAINTS.get(constraint.__name__, (None,))[0] is not constraint:
            raise ValueError(
                f"The kernel {kernel_name(kernel)} cannot be stored: its constraint {constraint.__name__} is unknown."
            )
    description: dict[str, Any] = {
        "type": name,
        "constraints": {parameter: constraint.__name__ for parameter, constraint in bounds.items()},
    }
    if name == SCALE:
        return description | {"base": describe(kernel.base_kernel)}
    if name in JOINT:
        return description | {"parts": [describe(part) for part in kernel.kernels]}
    description["active_dims"] = None if kernel.active_dims is None else kernel.active_dims.tolist()
    description["ard_num_dims"] = kernel.ard_num_dims
    return description | ({"nu": kernel.nu} if name == "MaternKernel" else {})


def build(description: Any, d: int, depth: int = 0) -> Kernel:
    """The kernel of a description on d inputs, with parameters yet to be loaded."""
    if depth > DEEPEST:
        raise ValueError(f"the kernel is nested in more than {DEEPEST} others")
    if not isinstance(description, dict) or description.get("type") not in (SCALE, *JOINT, *PLAIN):
        raise ValueError("the kernel's description names no known kernel")
    name = description["type"]
    if name == SCALE:
        kernel = kernels.ScaleKernel(build(description["base"], d, depth + 1))
    elif name in JOINT:
        if not description["parts"]:
            raise ValueError(f"the {name} has no parts")
        kernel = getattr(kernels, name)(*(build(part, d, depth + 1) for part in description["parts"]))
    else:
        active, ard = description["active_dims"], description["ard_num_dims"]
        inputs = list(range(d)) if active is None else active
        if not inputs or not all(type(i) is int and 0 <= i < d for i in inputs):
            raise ValueError(f"the active_dims of a kernel are not among its {d} inputs")
        if ard not in (None, 1, len(inputs)):
            raise ValueError(f"a kernel on {len(inputs)} inputs has another number of lengthscales")
        options = {"nu": description["nu"]} if name == "MaternKernel" else {}
        options |= {} if ard is None else {"ard_num_dims": ard}  # a periodic kernel takes no None
        kernel = getattr(kernels, name)(active_dims=active, **options)
    for parameter, constraint in description["constraints"].items():
        if constraint not in CONSTRAINTS or parameter not in dict(kernel.named_parameters(recurse=False)):
            raise ValueError(f"the constraint {constraint!r} of {parameter!r} is unknown")
        kind, *bounds = CONSTRAINTS[constraint]
        kernel.register_constraint(parameter, kind(*bounds), replace=True)
    return kernel
