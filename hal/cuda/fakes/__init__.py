"""Stand-ins for the libraries that this platform calls."""

from hal.testing.stand_ins.stand_in import StandIn

from . import flash_attention

STAND_INS = {
    "flash_attn": StandIn(make=flash_attention.make_second),
    "flash_attn_3": StandIn(make=flash_attention.make_third),
    "flash_attn_4": StandIn(make=flash_attention.make_fourth),
    "vllm_flash_attn": StandIn(
        make=flash_attention.make_fork, flags={"FA2_AVAILABLE": True, "FA3_AVAILABLE": True, "FA4_AVAILABLE": True}
    ),
}
