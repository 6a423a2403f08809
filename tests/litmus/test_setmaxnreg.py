"""setmaxnreg: who must execute it, what must come between two, and where the registers come from."""

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, requires, run


def roles(
    dec=True, fewer=40, more=232, by_warpgroup=True, whole_warps=True, twice=False, meet=True
):
    """Of three warpgroups, which own 168 registers a thread, one gives registers to the other two."""

    @T.prim_func
    def kernel(D: T.Buffer((384,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([3])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        if wg_id == 0:
            if dec:
                if by_warpgroup:
                    if T.Or(whole_warps, lane > 0):
                        T.ptx.setmaxnreg(False, fewer)  # dec
                else:
                    if warp == 0:
                        T.ptx.setmaxnreg(False, fewer)  # by_warp
                    else:
                        T.ptx.setmaxnreg(False, fewer)  # by_others
        else:
            T.ptx.setmaxnreg(True, more)  # inc
            if twice:
                if meet:
                    T.cuda.warpgroup_sync(wg_id)
                T.ptx.setmaxnreg(False, 96)  # again
        D[wg_id * 128 + warp * 32 + lane] = 1

    return kernel


test_registers_of_one_warpgroup_serve_the_others = gives(roles)
test_inc_requires_that_others_give = requires(roles, "dec", "deadlock @inc")
test_inc_requires_that_others_give_enough = gives(roles, "deadlock @inc", more=240)
test_inc_to_what_is_owned_needs_nothing = gives(roles, dec=False, more=168)
test_inc_requires_more_than_is_owned = gives(roles, "resource-limit @inc", more=160)
test_dec_requires_less_than_is_owned = gives(roles, "resource-limit @dec", fewer=176, more=168)
test_the_number_is_a_multiple_of_8 = gives(roles, "resource-limit @dec", fewer=44)
test_the_number_is_at_least_24 = gives(roles, "resource-limit @dec", fewer=16)
test_the_number_is_at_most_256 = gives(roles, "resource-limit @inc", dec=False, more=264)
test_setmaxnreg_requires_one_instruction_for_the_warpgroup = requires(
    roles, "by_warpgroup", "divergent-collective @by_others"
)
test_setmaxnreg_requires_whole_warps = gives(
    roles, "divergent-collective @dec", whole_warps=False, more=168
)
test_two_setmaxnreg_with_a_rendezvous_between_them_are_silent = gives(roles, twice=True)
test_a_second_setmaxnreg_requires_a_rendezvous = gives(
    roles, "divergent-collective @again", twice=True, meet=False
)


def test_a_deadlock_counts_the_registers():
    for schedule in SCHEDULES:
        (finding,) = run(roles, schedule, dec=False).findings
        text = str(finding) + " ".join(finding.details)
        assert "setmaxnreg.inc to 232 registers a thread" in text
        assert "0 are free; the warps of the CTA own 64512 of 65536" in text


def one_warp(alone=False):
    """A warpgroup gives registers to the pool, all of its warps or one."""

    @T.prim_func
    def kernel(D: T.Buffer((128,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        if T.Or(warp == 3, not alone):
            T.ptx.setmaxnreg(False, 64)  # dec
        D[warp * 32 + lane] = 1

    return kernel


test_dec_by_a_whole_warpgroup_is_silent = gives(one_warp)
test_dec_requires_all_warps_of_the_warpgroup = gives(
    one_warp, "divergent-collective @dec", alone=True
)
