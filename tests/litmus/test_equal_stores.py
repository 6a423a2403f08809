"""Two CTAs store to one place of global memory: of equal values it is all one who comes last, and nothing else is."""

from phaseflip.spelling import T

from .harness import gives


def both_store(equal=True, vector=False, clustered=False, one_differs=False):
    """Two CTAs, of one cluster or of two, store to the same elements."""
    ctas = 2

    @T.prim_func
    def kernel(D: T.Buffer((128,), "float32")):
        T.device_entry()
        if clustered:
            cluster = T.cluster_id([1])
            rank = T.cta_id_in_cluster([ctas])
        else:
            rank = T.cta_id([ctas])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        value = T.alloc_local((4,), "float32")
        for i in T.unroll(4):
            value[i] = T.float32(3)
            if not equal:
                value[i] = T.Cast("float32", rank)
            if one_differs:
                if lane * 4 + i == 77:
                    value[i] = T.Cast("float32", rank)
        if vector:
            T.ptx.st(  # vector
                D.ptr_to([lane * 4]),
                src=value.ptr_to([0]),
                space="global",
                vec="v4",
                ptx_type="b32",
            )
        else:
            for i in T.unroll(4):
                D[lane * 4 + i] = value[i]  # store

    return kernel


test_ctas_that_store_equal_values_are_borne_in_practice = gives(
    both_store, "~output-overwritten global waw @store <store"
)
test_ctas_that_store_equal_vectors_are_borne_in_practice = gives(
    both_store, "~output-overwritten global waw @vector <vector", vector=True
)
test_ctas_of_a_cluster_that_store_equal_values_are_borne_in_practice = gives(
    both_store, "~output-overwritten global waw @store <store", clustered=True
)
test_ctas_that_store_other_values_are_not = gives(
    both_store, "output-overwritten global waw @store <store", equal=False
)
test_ctas_that_store_other_vectors_are_not = gives(
    both_store, "output-overwritten global waw @vector <vector", equal=False, vector=True
)
test_ctas_of_which_one_lane_stores_another_value_are_not = gives(
    both_store, "output-overwritten global waw @vector <vector", one_differs=True, vector=True
)
