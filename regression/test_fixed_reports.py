"""Fixed bugs of reports: what they name, at which line, in which order, and what they advise."""

from pathlib import Path

import numpy as np
import pytest

from phaseflip import lower, simulate
from phaseflip.frontend.tirx.edit.code import Code
from phaseflip.gemm.kernel import find_kernel
from phaseflip.gemm.verify import verify
from phaseflip.ir.queries import walk
from phaseflip.run import stepper
from phaseflip.study.mutant_run import make_mutant
from tests.litmus import test_cluster_memory as cluster_memory
from tests.litmus import test_mbarrier as mbarrier
from tests.litmus import test_mbarrier_phases as mbarrier_phases
from tests.litmus import test_shared_memory as shared_memory
from tests.litmus import test_tma as tma
from tests.litmus.harness import SCHEDULES, run
from tests.litmus.harness import line_of as litmus_line
from tests.test_deadlock import waits_first
from tests.test_lowering import conditions, lines_marked
from tests.test_polling import NO_INSTRUCTION, line_of, never_repeats


def test_a_deadlock_named_whoever_arrives_on_some_barrier_without_a_name():
    """The producer waits for an empty stage: nobody but the commit of the stage's MMA can supply that."""
    mutant = make_mutant("hgemm_v7", "both-phases-zero", 0, (128, 128, 64))
    [deadlock] = verify(mutant.kernel, 128, 128, 64).run.findings
    source = Path(deadlock.file).read_text().splitlines()
    suppliers = [source[s["line"] - 1].strip() for s in deadlock.data[0]["suppliers"]]
    assert suppliers == ["empty.arrive(ring.stage)"]


@pytest.mark.parametrize(
    ("fault", "waits", "why"),
    [
        ("barrier-count-two", "full.wait", "on mbarrier full[0] (in phase 0 with 1 of 2 arrivals"),
        ("expect-too-many", "full.wait", "on mbarrier full[0] (in phase 0 with 1 of 1 arrivals"),
        ("expect-without-arrive", "full.wait", "no instruction that arrives on it"),
        ("missing-release", "empty.wait", "on mbarrier empty[0] (in phase 0 with 0 of 8 arrivals"),
        ("both-phases-zero", "empty.wait", "blocked before it (CTA 0 warps 0-7 at line {full})"),
    ],
)
def test_a_deadlock_named_first_who_comes_first_in_the_program_and_no_barrier_of_tvms_classes(
    fault, waits, why
):
    """Of those that wait for each other, it is the one whose barrier lacks something, by the name in the source."""
    shape = (128, 128, 512)
    mutant = make_mutant("hgemm_sm90", fault, 0, shape)
    deadlock = next(f for f in verify(mutant.kernel, *shape).run.findings if f.code == "deadlock")
    source = Path(deadlock.file).read_text().splitlines()
    full = next(i for i, line in enumerate(source, 1) if "full.wait(" in line)
    assert source[deadlock.line - 1].strip().startswith(f"{waits}(")
    assert why.format(full=full) in deadlock.why


@pytest.mark.parametrize("schedule", ["in-order", "random:1"])
def test_a_deadlock_named_a_victim_where_the_cause_waits_in_another_branch_of_the_loop(schedule):
    [deadlock] = simulate(lower(waits_first()), [np.zeros(64, np.int32)], schedule).findings
    source = Path(deadlock.file).read_text().splitlines()
    assert source[deadlock.line - 1].endswith("# cause")
    assert (
        "mbarrier never[0] (" in deadlock.why
    )  # indexed by 1 - i, and not bar[2], which is where bar ends
    assert deadlock.why.endswith("the kernel has no instruction that arrives on it")


@pytest.mark.parametrize(("body", "mark"), NO_INSTRUCTION)
def test_an_endless_loop_that_executes_no_instruction_was_reported_at_line_0(body, mark):
    [deadlock] = simulate(lower(body), [np.zeros(64, np.int32)]).findings
    assert (Path(deadlock.file).name, deadlock.line) == ("test_polling.py", line_of(mark))


def test_a_loop_whose_registers_never_repeat_was_reported_at_an_instruction_before_it(monkeypatch):
    monkeypatch.setattr(stepper, "POLL_BLOCKS", 30_000)
    [deadlock] = simulate(lower(never_repeats), [np.zeros(64, np.int32)]).findings
    assert (Path(deadlock.file).name, deadlock.line) == ("test_polling.py", line_of("count"))


def test_statements_of_an_inlined_function_had_the_line_of_the_statement_before():
    code = Code(find_kernel("hgemm_v7").build(128, 128, 64))
    source = Path(find_kernel("hgemm_v7").factory.__code__.co_filename).read_text().splitlines()
    waits = [source[s.line - 1].strip() for s in code.named("ptx.mbarrier_try_wait")]
    assert len(waits) == 5 and all(".wait(" in line for line in waits)


def test_a_buffer_that_threads_only_store_to_had_the_name_of_a_copys_view():
    shape = (128, 128, 384)
    mutant = make_mutant("hgemm_sm90", "store-without-sync", 0, shape)
    race = verify(mutant.kernel, *shape).findings[0]
    assert race.title == "race shared raw" and "reads Dsmem (" in race.what


@pytest.mark.parametrize(
    ("kernel", "fault", "shape", "name"),
    [
        ("hgemm_sm90", "barrier-count-two", (128, 128, 512), "full[0]"),
        ("hgemm_v2", "missing-commit", (128, 128, 192), "mma_bar"),
    ],
)
def test_slot_0_of_an_array_of_mbarriers_had_the_name_of_a_single_one(kernel, fault, shape, name):
    found = verify(make_mutant(kernel, fault, 0, shape).kernel, *shape).findings
    deadlock = next(f for f in found if f.code == "deadlock")
    assert deadlock.data[0]["barrier"]["name"] == name and f"mbarrier {name} (" in deadlock.why


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"initialised": 1}, "bar[1]: this slot has none; line {init} initialises another slot of bar"),
        ({"reached": False}, "bar[0]: CTA 0 has not executed the one at line {init}"),
        ({"sync": False}, "bar[0]: nothing orders the one at line {init} before this use"),
    ],
)  # fmt: skip
def test_the_init_of_another_slot_was_said_to_be_unordered(flags, words, schedule):
    """And the text depended on whether the init had been executed, hence on the schedule."""
    [finding] = run(mbarrier.slots, schedule, **flags).findings
    name, _, text = words.format(init=litmus_line(mbarrier.slots, "init")).partition(": ")
    assert finding.what.endswith(f" uses {name}")
    assert finding.why == f"no mbarrier.init of this barrier happens before: {text}"


@pytest.mark.parametrize(
    ("kernel", "fault", "shape", "first"),
    [
        ("hgemm_sm90", "release-by-every-lane", (128, 128, 512), "over-arrival"),
        ("hgemm_v2", "missing-barrier-init", (128, 128, 192), "barrier-not-initialised"),
        ("hgemm_v2", "missing-phase-flip", (128, 128, 192), "stale-wait"),
        ("hgemm_v2", "mma-by-whole-warp", (128, 128, 192), "duplicate-issue"),
    ],
)
def test_a_report_began_with_a_race_that_only_followed(kernel, fault, shape, first):
    verdict = verify(make_mutant(kernel, fault, 0, shape).kernel, *shape)
    assert len(verdict.findings) > 1 and verdict.findings[0].code == first


@pytest.mark.parametrize(
    ("kernel", "fault", "shape", "words"),
    [
        ("hgemm_v8", "no-cluster-sync-after-init", (512, 512, 192), "barrier.cluster.arrive and wait) before"),
        ("hgemm_v1", "missing-final-sync", (128, 128, 64), "put a CTA barrier (T.cuda.cta_sync) between the last use"),
        ("hgemm_sm90", "group-wait-too-loose", (128, 128, 512), "let T.ptx.wgmma.wait_group complete the wgmma at line"),
        ("hgemm_sm90", "store-not-drained", (128, 128, 512), "T.ptx.cp_async.bulk.wait_group(0) after the commit_group"),
        ("hgemm_sm90", "store-without-sync", (128, 128, 512), "put a CTA barrier (T.cuda.cta_sync), or an mbarrier"),
    ],
)  # fmt: skip
def test_every_race_was_to_be_mended_by_a_cta_barrier(kernel, fault, shape, words):
    verdict = verify(make_mutant(kernel, fault, 0, shape).kernel, *shape)
    assert words in verdict.findings[0].fix


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_arrivals_and_bytes_that_come_too_early_for_want_of_a_wait_came_before_the_race_there(
    schedule,
):
    """The advice was to change the count of the barrier or the bytes, which are right."""
    early = run(mbarrier_phases.phases, schedule, sync=False).findings
    assert [f.title for f in early] == ["race shared war", "over-arrival", "lapped-wait"]
    assert "a wait in between" in early[1].fix
    filled = run(tma.refills, schedule, wait_load=False).findings
    assert [f.title for f in filled] == [
        "race shared raw",
        "race shared waw",
        "over-arrival",
        "tx-count-mismatch",
    ]


ONE_LANE = "T.cuda.warp_sync() between line {store} and the arrival of one lane for its warp"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("factory", "flags", "fix"),
    [
        (mbarrier.handover, {"every": False, "warp_sync": False}, ONE_LANE),
        (mbarrier.handover, {"arrive_after": False}, "put a CTA barrier"),
        (mbarrier.handover, {"wait": False}, "put a CTA barrier"),
        (cluster_memory.signalled, {"one": True}, ONE_LANE),
        (shared_memory.lanes, {"sync": False}, "put T.cuda.warp_sync() between them"),
    ],
)
def test_lanes_of_a_warp_were_to_be_ordered_by_a_cta_barrier(factory, flags, fix, schedule):
    race = next(f for f in run(factory, schedule, **flags).findings if f.code == "race")
    assert race.fix.startswith(fix.format(store=litmus_line(factory, "store")))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("flags", [{"late": False}, {"commit": False}, {"wait": False}])
def test_a_bulk_store_that_no_group_holds_was_to_be_waited_for_after_its_commit(flags, schedule):
    [race] = run(tma.stores, schedule, **flags).findings
    store, write = (litmus_line(tma.stores, mark) for mark in ("store", "write"))
    if "wait" in flags:
        who = "the thread that issues the copy"
        assert race.why == f"no wait_group of {who} at line {store} comes before line {write}"
        assert race.fix.startswith("T.ptx.cp_async.bulk.wait_group(0) after the commit_group")
    else:
        assert race.why.startswith(f"no commit_group comes between the copy at line {store} and")
        assert race.fix.startswith(
            f"T.ptx.cp_async.bulk.commit_group() after the copy at line {store}"
        )


def test_the_address_of_tensor_memory_was_read_at_the_line_of_the_statement_before():
    verdict = verify(
        make_mutant("hgemm_v1", "missing-init-sync", 0, (128, 128, 64)).kernel, 128, 128, 64
    )
    reads = [f for f in verdict.findings if f.place.mnemonic == "ld.shared"]
    source = Path(reads[0].file).read_text().splitlines()
    assert "tmem = T.decl_buffer(" in [source[f.line - 1].strip() for f in reads]


def test_conditions_had_the_line_of_the_statement_before():
    """And bounds of loops: TVM's passes drop spans, but neither those of conditions nor the variables of loops."""
    lowered = lower(conditions)
    elect = next(
        s for s in walk(lowered.device.body) if "elect_sync" in repr(getattr(s, "condition", ""))
    )
    found = simulate(lowered, [np.zeros(64, np.int32)]).findings
    lines = [elect.site.line, *(race.line for race in found)]
    assert lines == [*lines_marked("elects"), *lines_marked("reads"), *lines_marked("bounds")]


@pytest.mark.parametrize(
    ("fault", "whats"),
    [
        ("missing-barrier-init", ["CTA 0 warp 0 lane 0 uses mma_bar", "CTA 0 warps 0-3 use mma_bar"]),
        ("missing-phase-flip", ["CTA 0 warps 0-3 wait on mma_bar for the parity of phase 0 again"]),
    ],
)  # fmt: skip
def test_several_warps_had_a_verb_in_the_singular(fault, whats):
    shape = (128, 128, 192)
    found = verify(make_mutant("hgemm_v2", fault, 0, shape).kernel, *shape).findings
    assert [f.what for f in found if "mma_bar" in f.what] == whats


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_ring_longer_than_its_array_of_barriers_reached_another_array_silently(schedule):
    [note] = run(mbarrier.ring, schedule, stages=3).findings
    assert note.what == "mbarrier.arrive of CTA 0 warp 0 lane 0 takes full[2]"
    assert note.why.startswith("full has 2 barriers, and what lies there is empty[0]")
