#!/usr/bin/env python3
"""Tests tools/early-release with short machine code in cuobjdump's format."""
import types
import unittest
from pathlib import Path

source = Path(__file__).parents[2] / "tools" / "early-release"
tool = types.ModuleType("early_release")
exec(compile(source.read_text(), source, "exec"), tool.__dict__)

LOAD, REQUEST, ARRIVAL = "LDS.128 R8, [R7]", "UBLKCP.S.G [UR10], [UR6], UR4", "SYNCS.ARRIVE.TRANS64 RZ, [R46+URZ], R25"


def listing(*code):
    """Returns a listing of instructions (text[, scoreboard that it sets[, mask that it waits for]]) at 0, 10, 20 ..."""
    lines = ["\t\tFunction : kernel"]
    for i, (text, *control) in enumerate(code):
        sets, waits = (control + [7, 0][len(control):])[:2]
        word = ((sets << 5) | (waits << 11)) << 41
        lines += [f"        /*{16 * i:04x}*/                   {text} ;   /* 0x0000000000007919 */",
                  f"                                             /* 0x{word:016x} */"]
    return "\n".join(lines)


def found(*code):
    return [(at[0], [load[0] for load in loads]) for at, loads in tool.early(tool.kernels(listing(*code))["kernel"])]


class EarlyRelease(unittest.TestCase):
    def test_requests_and_arrivals_next_to_loads_are_found(self):
        self.assertEqual(found((LOAD, 3), (REQUEST,)), [(0x10, [0])])
        self.assertEqual(found((LOAD, 3), (LOAD, 1), ("@!P2 " + ARRIVAL,)), [(0x20, [0, 0x10])])
        self.assertEqual(found((LOAD, 3), ("IADD3 R1, R2, R3, RZ", 7, 0b000111), (REQUEST,)), [(0x20, [0])])

    def test_what_waits_is_right(self):
        self.assertEqual(found((LOAD, 3), ("IADD3 R1, R8, R3, RZ", 7, 0b001000), (REQUEST,)), [])
        self.assertEqual(found((LOAD, 3), (REQUEST, 7, 0b001000)), [])
        self.assertEqual(found((LOAD, 3), ("MEMBAR.ALL.CTA",), (REQUEST,)), [])
        self.assertEqual(found((REQUEST,), (LOAD, 3)), [])

    def test_paths_are_followed(self):
        self.assertEqual(found((LOAD, 3), ("BRA.DIV UR4, 0x30",), (REQUEST,), ("EXIT",)), [(0x20, [0])])
        self.assertEqual(found((LOAD, 3), ("BRA 0x30",), (REQUEST,), ("EXIT",)), [])
        self.assertEqual(found((LOAD, 3), ("@!P0 BRA 0x30",), (REQUEST,), ("EXIT",)), [(0x20, [0])])
        # A load for the next iteration, and an arrival at its beginning.
        self.assertEqual(found((ARRIVAL,), (LOAD, 2), ("@P0 BRA 0x0",), ("EXIT",)), [(0, [0x10])])


if __name__ == "__main__":
    unittest.main()
