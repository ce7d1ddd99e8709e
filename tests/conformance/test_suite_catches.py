"""The suite can fail: each mistake in broken.py is found, by the cases that are named after it."""

from __future__ import annotations

import pytest

from hal.common.contract.capabilities import Capabilities
from hal.common.contract.device import Device
from hal.common.contract.errors import BackendError, NotBuiltError
from hal.testing import FULL, SMALL, ConformanceError, ReferenceBackend, conformance_cases, suite

from .helpers import broken

FOUND_BY = {
    broken.IgnoresWindow: ("paged_attention", "window4"),
    broken.WindowKeepsOneMore: ("paged_attention", "window1"),
    broken.IgnoresChunk: ("paged_attention", "chunk6"),
    broken.ChunkIsAWindow: ("paged_attention", "chunk6"),
    broken.IgnoresSoftcap: ("varlen_attention", "softcap"),
    broken.AlwaysCausal: ("varlen_attention", "non_causal"),
    broken.ReadsUnwrittenRows: ("paged_attention", "mixed"),
    broken.ReadsFreedPages: ("paged_attention", "freed_pages"),
    broken.LeavesEmptyRows: ("paged_attention", "no_keys"),
    broken.FiniteEmptyLse: ("sparse_mla", "all_rows_absent"),
    broken.BaseTwoLse: ("sparse_mla", "decode"),
    broken.HalfPrecisionLse: ("varlen_attention", "decode"),
    broken.UnaskedLse: ("sparse_mla", "no_lse"),
    broken.IgnoresOut: ("sparse_mla", "mixed"),
    broken.AlignsQueriesToTheFirstKey: ("varlen_attention", "chunked_context"),
    broken.InterleavesHeadGroups: ("varlen_attention", "mixed"),
    broken.IgnoresSelection: ("varlen_attention", "selected3"),
    broken.IgnoresFirstKey: ("varlen_attention", "from17"),
    broken.AttendsAbsentRowsAsRowZero: ("sparse_mla", "all_rows_absent"),
    broken.AttendsTheFirstListOnly: ("sparse_mla", "two_lists"),
    broken.ReadsThirtyTwoBitAddresses: ("gather_cache", "past_2_to_31"),
    broken.ReadsRowMinusOne: ("gather_cache", "page16"),
    broken.IgnoresPageStride: ("gather_cache", "strided_pages"),
    broken.WritesSlotMinusOne: ("write_cache", "page16"),
    broken.WritesWholePages: ("write_cache", "roomy_pages"),
    broken.ScoresWithoutRelu: ("index_scores", "mixed"),
    broken.ScoresLeaveColumnsUnmasked: ("index_scores", "loose_maxima"),
    broken.ScoresIgnoreChunkStart: ("index_scores", "tokens5to14"),
    broken.IgnoresKeyRanges: ("paged_attention", "key_ranges"),
    broken.EmptyRangesSeeAll: ("paged_attention", "key_ranges"),
    broken.ScoresIgnoreKeyRanges: ("index_scores", "key_ranges"),
    broken.TiesGoToTheHigherId: ("select_topk", "ties"),
    broken.NanIsTheBest: ("select_topk", "nan"),
    broken.MinusZeroIsSmaller: ("select_topk", "signed_zeros"),
    broken.LooksPastTheLength: ("select_topk", "normal"),
    broken.DropsMaskedColumns: ("select_topk", "all_masked"),
    broken.DropsTheOpenTail: ("expand_pools", "pool4"),
    broken.SwapsTheHalvesOfGroups: ("compress_states", "overlapping"),
    broken.RotatesByTheClosingToken: ("compress_states", "apart"),
    broken.ForgetsThePositionBias: ("compress_states", "apart"),
    broken.ForgetsTheNorm: ("compress_states", "apart"),
    broken.WritesStatesBeforeReading: ("compress_states", "long"),
    broken.CompressesPaddedTokens: ("compress_states", "padded"),
    broken.MultipliesAbsentStatesByZero: ("compress_states", "other_states"),
    broken.WritesAmongZeros: ("write_cache", "other_tokens"),
    broken.ReachesIntoTheNextRequest: ("rows_from_topk", "page16"),
    broken.NegativeBlockIsBlockZero: ("rows_from_topk", "negative_blocks"),
    broken.ClampsTheTableInPlace: ("paged_attention", "decode"),
    broken.RowsIgnorePageStride: ("rows_from_topk", "stride"),
    broken.RowsKeepTheirColumns: ("rows_from_topk", "page16"),
    broken.RowsLoseTheirOrder: ("rows_from_topk", "page16"),
    broken.RowsOfEveryRank: ("rows_from_topk", "rank1of2"),
    broken.RunsOfOneToken: ("rows_from_topk", "of4x4"),
    broken.MergesDeadOutputs: ("merge_states", "one_side_dead"),
    broken.InfiniteLseIsAlive: ("merge_states", "one_side_dead"),
    broken.RoundsTheIdentity: ("merge_states", "identity"),
    broken.AppliesSinkTwice: ("apply_sink", "float32"),
    broken.IgnoresSink: ("apply_sink", "float32"),
    broken.KeepsWhatEmptyRowsHold: ("apply_sink", "float32"),
    broken.LeaksHiddenKeys: ("paged_attention", "later_tokens-unseen"),
    broken.LeaksKeysBeforeTheWindow: ("paged_attention", "behind_window-unseen"),
    broken.LeaksOtherChunks: ("paged_attention", "other_chunk-unseen"),
    broken.LeaksKeysOutsideRanges: ("paged_attention", "outside_range-unseen"),
    broken.LeaksHiddenValues: ("varlen_attention", "later_tokens-unseen"),
    broken.LeaksHiddenLogits: ("varlen_attention", "unselected_keys-unseen"),
    broken.LeaksUnlistedRows: ("sparse_mla", "unlisted_rows-unseen"),
    broken.ScoresLeakLaterKeys: ("index_scores", "later_tokens-unseen"),
    broken.GathersNeighbours: ("gather_cache", "other_rows-unseen"),
}
ONLY_IN_FULL = {"past_2_to_31"}


@pytest.fixture
def device() -> Device:
    return Device.from_arch("cpu")


@pytest.mark.parametrize("cls", FOUND_BY, ids=lambda cls: cls.__name__)
def test_a_broken_kernel_is_found_by_name(cls, device):
    call, words = FOUND_BY[cls]
    profile = FULL if words in ONLY_IN_FULL else SMALL
    named = [case for case in conformance_cases(cls, profile, calls=[call]) if words in case.id]
    assert any(_fails(case, cls(device)) for case in named), f"none of {len(named)} cases saw {cls.__name__}"


def test_every_mistake_has_a_test():
    mistakes = {value for value in vars(broken).values() if isinstance(value, type) and issubclass(value, ReferenceBackend)}
    assert mistakes - {ReferenceBackend} == FOUND_BY.keys()


def test_a_kernel_without_errors_fails_on_bad_input(device):
    class Careless(ReferenceBackend):
        def select_topk(self, scores, lengths, k, width, deterministic=True):
            return super().select_topk(scores, lengths, min(k, width), width)

    cases = conformance_cases(Careless, SMALL, calls=["select_topk"])
    failing = [case.id for case in cases if _fails(case, Careless(device))]
    assert failing == ["select_topk-k_above_width"]


def test_an_exception_of_another_type_is_chained(device):
    class Foreign(ReferenceBackend):
        def sparse_mla(self, q, segments, **kwargs):
            return super().sparse_mla(q, segments, **kwargs) if segments else [][0]

    (case,) = [case for case in conformance_cases(Foreign, SMALL) if case.id == "sparse_mla-latent-no_segments"]
    with pytest.raises(ConformanceError, match="IndexError") as caught:
        case.check(Foreign(device))
    assert isinstance(caught.value.__cause__, IndexError)


@pytest.mark.parametrize("profile", [SMALL, FULL], ids=lambda profile: profile.name)
def test_ids_of_cases_are_unique(profile):
    ids = [case.id for case in conformance_cases(ReferenceBackend, profile)]
    assert len(set(ids)) == len(ids)


def test_the_suite_follows_the_declaration():
    class Modest(ReferenceBackend):
        capabilities = Capabilities(
            families=frozenset({"attention"}),
            dtypes=("bfloat16",),
            kv_layouts={"attention": ("kv",)},
            block_size_multiple=32,
            head_dims=frozenset({64, 128}),
            max_heads=4,
        )

    cases = conformance_cases(Modest, FULL)
    assert {case.call for case in cases} == {"write_cache", "gather_cache", "paged_attention", "merge_states"}
    ids = " ".join(case.id for case in cases)
    for absent in ("float32", "page1-", "page16", "window", "softcap", "chunk6", "non_causal", "latent", "ranks", "8heads"):
        assert absent not in ids, absent
    assert "page64" in ids


def test_a_layout_without_cases_is_not_passed_over():
    class Quantised(ReferenceBackend):
        capabilities = Capabilities(
            families=frozenset({"mla"}), dtypes=("bfloat16",), kv_layouts={"mla": ("latent", "nvfp4_ds_mla")}
        )

    with pytest.raises(NotBuiltError, match="nvfp4_ds_mla"):
        conformance_cases(Quantised)


def test_a_call_without_cases_is_not_passed_over(monkeypatch):
    class Compressed(ReferenceBackend):
        capabilities = Capabilities(
            families=frozenset({"compressed"}), dtypes=("bfloat16",), kv_layouts={"compressed": ("latent",)}
        )

    monkeypatch.setattr(suite, "_GENERATORS", tuple(one for one in suite._GENERATORS if one is not suite.compress.cases))
    with pytest.raises(BackendError, match="reference: the suite has no case for"):
        conformance_cases(Compressed)


def test_a_backend_without_calls_has_no_suite():
    class Planned(ReferenceBackend):
        name = "planned"
        capabilities = None

    with pytest.raises(BackendError, match="planned: its calls are not written yet"):
        conformance_cases(Planned)


def test_a_device_that_is_not_here_is_refused():
    absent = Device.from_arch("cuda:sm_90")
    case = conformance_cases(ReferenceBackend, SMALL)[0]
    with pytest.raises(BackendError, match="cuda:sm_90"):
        case.check(ReferenceBackend(absent))


def test_another_arch_runs_on_cpu_tensors():
    elsewhere = Device.from_arch("cuda:sm_90", torch_device="cpu")
    conformance_cases(ReferenceBackend, SMALL, calls=["sparse_mla"])[0].check(ReferenceBackend(elsewhere))


def _fails(case, backend) -> bool:
    try:
        case.check(backend)
    except ConformanceError:
        return True
    return False
