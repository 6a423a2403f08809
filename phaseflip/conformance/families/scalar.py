"""Random structured programs: branches and loops nested on conditions that differ by lane, in TIRx and in Python.

The same text is written twice, once as TIRx for all lanes, once as plain Python for one thread.
"""

from __future__ import annotations

import random
import re

import numpy as np

from ..family import Program, family
from ..generated_text import function_of

N = 64
HEAD = f"""from phaseflip.spelling import T
@T.prim_func
def kernel(A: T.Buffer(({N},), "int32"), D: T.Buffer(({N},), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([{N}])
    x: T.int32 = 1
    y: T.int32 = tid
    z: T.int32 = 0
    arr = T.alloc_local((4,), "int32")
    for q in T.serial(4):
        arr[q] = q
"""
MODEL_HEAD = """def model(tid, A, D):
    x, y, z, arr = 1, tid, 0, [0, 1, 2, 3]
"""
TAIL = "    D[tid] = x + y * 100 + z * 10000 + arr[tid % 4]\n"


class Writer:
    """Writes a program in the text that both languages share; `RANGE`, `SELECT`, `DECLARE`, `RETURN` differ."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.names = 0
        self.block(1, 0, False)
        self.block(1, 0, False)

    def value(self, depth: int = 0) -> str:
        """An integer expression."""
        choice, rng = self.rng.randrange(9 if depth < 2 else 4), self.rng
        if choice == 0:
            return f"({rng.randint(-5, 9)})"
        if choice in (1, 2, 3):
            return ("", rng.choice("xyz"), "tid", "A[tid]")[choice]
        inner = self.value(depth + 1)
        if choice == 4:
            return f"({inner} {rng.choice('+-')} {self.value(depth + 1)})"
        if choice == 5:
            return f"({inner} {rng.choice(['%', '//'])} {rng.choice([2, 3, 7])})"
        if choice == 6:
            return f"arr[{inner} % 4]"
        if choice == 7:
            return f"SELECT({self.condition(depth + 1)}, {inner}, A[{self.value(depth + 1)} % {N}])"
        return f"A[{inner} % {N}]"

    def condition(self, depth: int = 0) -> str:
        """A truth value."""
        choice, rng = self.rng.randrange(5 if depth < 2 else 2), self.rng
        if choice == 0:
            return f"tid % 32 {rng.choice('<>')} {rng.randint(0, 31)}"
        if choice < 3:
            return f"{self.value(depth + 1)} {rng.choice(['<', '>', '==', '!='])} {self.value(depth + 1)}"
        word = ("and", "or")[choice - 3]
        return f"({self.condition(depth + 1)} {word} {self.condition(depth + 1)})"

    def name(self, prefix: str) -> str:
        """A name not used yet."""
        self.names += 1
        return f"{prefix}{self.names}"

    def put(self, indent: int, text: str) -> None:
        """Add a line."""
        self.lines.append("    " * indent + text)

    def block(self, indent: int, depth: int, in_loop: bool) -> None:
        """One to four statements."""
        for _ in range(self.rng.randint(1, 4)):
            self.statement(indent, depth, in_loop)

    def statement(self, indent: int, depth: int, in_loop: bool) -> None:
        """One statement, with those inside it."""
        choice, rng = self.rng.randrange(11 if depth < 3 else 6), self.rng
        if choice < 4:
            self.put(indent, f"{rng.choice('xyz')} = {self.value()} % 101")
        elif choice == 4:
            self.put(indent, f"arr[{self.value()} % 4] = {self.value()} % 101")
        elif choice == 5:
            self.put(indent, f"if {self.condition()}:")
            self.put(indent + 1, f"D[tid] = D[tid] % 50 + x * {rng.randint(1, 9)}")
            if in_loop or rng.random() < 0.25:
                self.put(indent + 1, rng.choice(["break", "continue"]) if in_loop else "RETURN")
        elif choice < 9:
            self.put(indent, f"if {self.condition()}:")
            self.block(indent + 1, depth + 1, in_loop)
            if rng.random() < 0.6:
                self.put(indent, "else:")
                self.block(indent + 1, depth + 1, in_loop)
        elif choice == 9:
            name = self.name("i")
            self.put(indent, f"for {name} in RANGE({rng.choice(['3', 'A[tid] % 4', 'x % 3'])}):")
            self.put(indent + 1, f"y = (y + {name}) % 101")
            self.block(indent + 1, depth + 1, True)
        else:
            name = self.name("w")
            self.put(indent, f"DECLARE {name}")
            self.put(indent, f"while {name} < 4 and {self.condition()}:")
            self.put(indent + 1, f"{name} = {name} + 1")
            self.block(indent + 1, depth + 1, True)

    def tirx(self) -> str:
        """The program as a TIRx kernel."""
        body = (
            "\n".join(self.lines)
            .replace("RANGE(", "T.serial(")
            .replace("SELECT(", "T.if_then_else(")
        )
        body = re.sub(
            r"DECLARE (\w+)", r"\1: T.int32 = 0", body.replace("RETURN", "T.thread_return()")
        )
        return f"{HEAD}{body}\n{TAIL}"

    def python(self) -> str:
        """The program as `model(tid, A, D)`."""
        body = re.sub(r"RANGE\((.*)\):", r"repeat(lambda: \1):", "\n".join(self.lines))
        body = re.sub(r"DECLARE (\w+)", r"\1 = 0", body.replace("RETURN", "return"))
        return f"{MODEL_HEAD}{body}\n{TAIL}"


@family("scalar", programs=40)
def scalar(rng: np.random.Generator) -> Program:
    """Structured programs of 64 threads on integers, which part and meet."""
    seed = int(rng.integers(1 << 30))
    A = rng.integers(-9, 60, N).astype(np.int32)
    function = function_of(Writer(seed).tirx(), f"scalar_{seed}")
    return Program(function, [A, np.zeros(N, np.int32)], [1], 1, f"Writer({seed})")
