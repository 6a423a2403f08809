"""Fixed bugs of clusters: barriers, scopes, proxies and tensor memory of several CTAs."""

from dataclasses import replace

import numpy as np
import pytest

from phaseflip import simulate
from phaseflip.frontend.tirx.edit.code import Code
from phaseflip.gemm.kernel import find_kernel
from phaseflip.gemm.verify import verify
from tests import test_cluster_launch
from tests.litmus import test_cluster_barrier as cluster_barrier
from tests.litmus import test_cluster_exit as cluster_exit
from tests.litmus import test_cluster_mbarrier as cluster_mbarrier
from tests.litmus import test_cluster_memory as cluster_memory
from tests.litmus import test_cluster_tcgen05 as cluster_tcgen05
from tests.litmus import test_cluster_tma as cluster_tma
from tests.litmus import test_proxy_spaces as proxy_spaces
from tests.litmus import test_shared_memory as shared_memory
from tests.litmus.harness import SCHEDULES, gives, line_of, run

test_an_arrival_too_many_at_the_cluster_barrier_became_a_deadlock = gives(
    cluster_barrier.rounds, "barrier-mismatch @again", once=False
)
test_a_thread_that_arrived_and_exited_completed_the_cluster_barrier_for_others = gives(
    cluster_barrier.gone
)
test_a_fence_of_cta_scope_before_a_relaxed_arrive_was_taken_for_none = gives(
    cluster_memory.relaxed_within_a_cta, fence="cta"
)
test_a_lane_released_what_other_lanes_had_fenced = gives(
    cluster_memory.relaxed_within_a_cta, cluster_memory.RACE, fence="cta", every=False
)
test_the_fence_of_mbarrier_inits_released_data = gives(
    cluster_mbarrier.data_under_the_fence_of_inits,
    "race shared raw @load <store",
    release=False,
)
test_a_cta_that_waited_for_its_copy_of_a_multicast_load_knew_of_the_other_one = gives(
    cluster_tma.told, "race shared raw @read <load", "peer-exited @load", wait=False
)
test_a_cta_that_waited_for_its_signal_of_a_multicast_commit_knew_of_the_other_one = gives(
    cluster_exit.commit_in_flight, "peer-exited @commit", peer_waits=False, meet=True
)
test_news_from_a_wait_that_was_too_narrow_were_believed_in_the_first_cta = gives(
    cluster_memory.returned, "~scope-too-narrow shared raw @load <store", scope="cta"
)
test_a_proxy_fence_of_the_own_shared_memory_covered_that_of_the_peer = gives(
    cluster_tcgen05.operand_from_the_peer, cluster_tcgen05.STORE, writer_fence="shared::cta"
)
test_a_proxy_fence_of_shared_memory_covered_global_memory = gives(
    proxy_spaces.reloaded, proxy_spaces.STORE, fence="shared::cta"
)
test_tmem_was_freed_while_the_peer_still_read_its_own = gives(
    cluster_tcgen05.pair_product, "tmem-freed-in-use tmem @dealloc <ld", stay=False
)
test_a_dealloc_of_the_pair_that_may_hang_was_silent = gives(
    cluster_tcgen05.allocates, "deadlock @early", apart=True
)
test_a_pair_allocated_before_the_other_cta_need_have_been_launched = gives(
    cluster_tcgen05.allocates,
    "~peer-not-launched tmem @alloc",
    "~peer-not-launched tmem @peer",
    launched="",
)


@pytest.mark.parametrize("name", ["hgemm_v8", "hgemm_v9"])
def test_a_gemm_of_cta_pairs_without_its_first_cluster_barrier_was_silent(name):
    kernel = find_kernel(name)
    shape = (kernel.shape_rule.m_multiple, kernel.shape_rule.n_multiple, 64)
    function = kernel.build(*shape)
    for _ in ("arrive", "wait"):  # the first of what is left, each time
        code = Code(function)
        first = next(s for s in code.statements if s.name.startswith("ptx.barrier_cluster"))
        function = code.rewritten(code.remove(first))
    found = verify(replace(kernel, factory=lambda M, N, K: function), *shape).findings
    assert [(f.title, f.place.mnemonic, f.count) for f in found] == [
        ("peer-not-launched tmem", "tcgen05.alloc", 2)
    ]


test_the_place_of_two_unequal_allocs_was_that_of_whoever_came_last = gives(
    cluster_tcgen05.allocates, "tmem-bad-allocation tmem @peer <alloc", columns=32
)


def test_an_address_mapped_to_another_cta_in_each_lane_was_lost():
    kernel = test_cluster_launch.mapped(0)
    run_ = simulate(kernel, [np.zeros(32, np.int32)])
    assert run_.outputs["D"].tolist() == [(lane % 4) << 24 for lane in range(32)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_kernel_of_two_cta_groups_had_no_remedy(schedule):
    [finding] = run(cluster_tcgen05.allocates, schedule, group=1).findings
    assert (
        finding.fix
        == "give every tcgen05 instruction the same cta_group: 2 for MMAs of a CTA pair, else 1"
    )


CLUSTER = "put a cluster barrier (T.ptx.barrier.cluster.arrive and wait) between"
REMOTE = "arrive(..., sem='release', scope='cluster', remote=...) and T.ptx.mbarrier.try_wait_acquire_cluster"
PEER = "T.ptx.fence.proxy_async('shared::cluster') between"


@pytest.mark.parametrize(
    ("factory", "flags", "code", "words"),
    [
        (cluster_memory.stored_to_the_peer, {"meet": False}, "race", (CLUSTER, REMOTE)),
        (cluster_memory.loaded_from_the_peer, {"after": False}, "race", (CLUSTER, REMOTE)),
        (shared_memory.store_load, {"sync": False}, "race", ("put a CTA barrier",)),
        (cluster_tcgen05.pair_product, {"stay": False}, "tmem-freed-in-use", (CLUSTER,)),
        (cluster_tcgen05.operand_from_the_peer, {"writer_fence": "none"}, "missing-proxy-fence", (PEER,)),
        (
            cluster_tcgen05.operand_from_the_peer,
            {"reuse": True, "reuse_fence": False},
            "missing-proxy-fence",
            (PEER,),
        ),
        (
            cluster_tcgen05.pair_product,
            {"writer_fence": "none"},
            "missing-proxy-fence",
            ("proxy_async('shared::cta')",),
        ),
        (proxy_spaces.reloaded, {"fence": "none"}, "missing-proxy-fence", ("proxy_async('global')",)),
    ],
)  # fmt: skip
def test_what_two_ctas_do_was_to_be_mended_by_what_one_cta_has(factory, flags, code, words):
    """A CTA barrier, or a fence of shared::cta, orders nothing across CTAs; nor does the latter serve global memory."""
    found = run(factory, **flags).findings
    assert {finding.code for finding in found} == {code}
    assert all(word in finding.fix for finding in found for word in words)


def test_accesses_of_two_clusters_were_to_be_ordered_by_a_barrier():
    [finding] = run(shared_memory.in_place, apart=False).findings
    assert "no barrier reaches CTAs of two clusters" in finding.fix


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("factory", "flags", "who", "name", "mark", "went", "fix"),
    [
        (cluster_mbarrier.handshake, {"to": 1}, "CTA 0 warp 0 lane 0", "ready of CTA 0", "tells", 1, "remote=0"),
        (cluster_tcgen05.pair_product, {"mask": 1}, "CTA 1 warps 0-3", "bar of CTA 1", "commit", 0, "bit 1 of cta_mask"),
    ],
)  # fmt: skip
def test_a_deadlock_did_not_say_whose_barrier_lacks_what_went_to_another_cta(
    factory, flags, who, name, mark, went, fix, schedule
):
    """And began with another waiter of those that hold each other up."""
    [deadlock] = run(factory, schedule, **flags).findings
    line = line_of(factory, mark)
    assert deadlock.what.startswith(f"{who} wait") and f"on mbarrier {name} (" in deadlock.why
    assert deadlock.why.endswith(f"; line {line} has arrived on that of CTA {went} instead")
    assert deadlock.fix.startswith(f"let line {line} arrive on {name} ({fix})")


def test_findings_of_mbarriers_did_not_say_whose_barrier_they_mean():
    [finding] = run(cluster_mbarrier.initialised, meet="").findings
    assert finding.what.endswith(" uses bar of CTA 0")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("factory", "flags", "arrival", "fix"),
    [
        (cluster_memory.stored_to_the_peer, {"sem": "relaxed"}, "barrier.cluster.arrive", ", or put"),
        (cluster_memory.relaxed_barrier_within_a_cta, {}, "barrier.cluster.arrive", ", or put"),
        (cluster_memory.signalled, {"sem": "relaxed"}, "mbarrier.arrive", ", scope='cluster', or put"),
        (cluster_memory.relaxed_within_a_cta, {}, "mbarrier.arrive", ", or put"),
    ],
)  # fmt: skip
def test_a_race_behind_a_relaxed_arrival_was_to_be_mended_by_another_barrier(
    factory, flags, arrival, fix, schedule
):
    [race] = run(factory, schedule, **flags).findings
    assert race.why.startswith(f"the {arrival} at line ") and " is relaxed, " in race.why
    assert race.fix.startswith(f"give it sem='release'{fix}")
