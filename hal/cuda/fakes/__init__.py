"""Stand-ins for the libraries that this platform calls."""

from hal.testing.stand_ins.stand_in import StandIn

from . import flash_attention, flash_mla

STAND_INS = {
    "flash_attn": StandIn(make=flash_attention.make_second),
    "flash_attn_3": StandIn(make=flash_attention.make_third),
    "flash_attn_4": StandIn(make=flash_attention.make_fourth),
    "flash_mla": StandIn(make=flash_mla.make_library),
    "vllm_flash_mla": StandIn(make=flash_mla.make_copy),
    "vllm_flash_attn": StandIn(
        make=flash_attention.make_fork, flags={"FA2_AVAILABLE": True, "FA3_AVAILABLE": True, "FA4_AVAILABLE": True}
    ),
}
