"""One kernel as it is compiled: the types and constants of a launch, without the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .launch import Launch, LaunchKey, launch_key, load_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Specialisation:
    """What a compiler needs for one binary. name: the kernel's "module:function".

    signature: every argument's type ("*bf16", "i32", "fp32", "constexpr"). constexprs: values of the constant ones.
    attrs: arguments known to be multiples of this number. key: what a launch that uses the binary computes.
    """

    name: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, int | bool]
    attrs: Mapping[str, int]
    num_warps: int
    num_stages: int
    key: LaunchKey

    def load_kernel(self) -> Any:
        """The decorated function; BackendError where triton is not installed."""
        return load_kernel(self.name)

    def to_source(self) -> Any:
        """triton.compiler.ASTSource of it, for triton.compile(source, target=..., options=self.options)."""
        from triton.compiler import ASTSource

        kernel = self.load_kernel()
        places = {name: (kernel.arg_names.index(name),) for name in self.signature}
        return ASTSource(
            fn=kernel,
            signature={name: self.signature[name] for name in kernel.arg_names},
            constexprs={places[name]: value for name, value in self.constexprs.items()},
            attrs={places[name]: [["tt.divisibility", number]] for name, number in self.attrs.items()},
        )

    @property
    def is_repair(self) -> bool:
        """Whether it is a pass that does again what read NaN or infinities which its queries do not see; else it ends at once."""
        return bool(self.constexprs.get("TOKENS", 0))

    @property
    def options(self) -> dict[str, int]:
        """Options of triton.compile."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


def specialise(launch: Launch, arch: str) -> Specialisation:
    """What a launch compiles on an arch; it need hold no tensor, only what has a tensor's dtype, shape and strides."""
    key = launch_key(launch, arch)
    signature: dict[str, str] = {}
    constexprs: dict[str, int | bool] = dict(launch.constants)
    attrs: dict[str, int] = {}
    for name, kind in key.arguments:
        plain, _, multiple = kind.partition("/")
        if plain == "1":
            constexprs[name] = 1
        signature[name] = "constexpr" if plain == "1" else plain
        if multiple:
            attrs[name] = int(multiple)
    signature |= dict.fromkeys(launch.constants, "constexpr")
    return Specialisation(
        name=launch.kernel,
        signature=signature,
        constexprs=constexprs,
        attrs=attrs,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        key=key,
    )
