"""The tensor core of Blackwell and its memory: allocation, layout, mma, commit, cp, ld_st, instruction_descriptor."""
