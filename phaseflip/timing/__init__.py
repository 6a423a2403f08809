"""Times on a GPU: rounds (how they are taken), kernel_times (beside cuBLAS and an earlier build), baselines (kept from
earlier commits), history_picture. Imports gpu and all before it."""
