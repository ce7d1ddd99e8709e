"""Stand-ins for the libraries that this platform calls."""

from hal.testing.stand_ins.stand_in import StandIn

from . import ipex, vllm_kernels

STAND_INS = {
    "vllm_xpu_kernels": StandIn(make=vllm_kernels.make_library, flags={"FA2_AVAILABLE": True}),
    "ipex": StandIn(make=ipex.make_library),
}
