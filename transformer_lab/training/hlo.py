"""What a compiled program does on one device, read from the compiler's own text (HLO).

The text is a list of computations, each a list of instructions; a loop's body is listed once and
counts as often as the loop runs. All figures are for one device and one step.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

WIDTHS = {"pred": 8, "bf16": 16, "token": 0, "opaque": 0}  # bits, if not the number in the name
ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
LINE = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
CALLED = re.compile(r"\b(?:calls|body|to_apply|branch_computations|called_computations|"
                    r"(?:true|false)_computation)=\{?((?:%?[\w.\-]+(?:, )?)+)")  # fmt: skip
# Bytes that a device's links carry, as a multiple of the larger of operand and result.
COLLECTIVES = {
    "all-gather": 1,
    "reduce-scatter": 1,
    "all-reduce": 2,
    "all-to-all": 1,
    "ragged-all-to-all": 1,
    "collective-permute": 1,
    "collective-broadcast": 1,
}
# Instructions that move and keep no bytes of their own.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional",
        "call", "optimization-barrier", "after-all", "partition-id", "iota"}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """One array: its element type, its sizes, and whether it is in the chip's fast memory."""

    dtype: str
    dims: tuple[int, ...]
    on_chip: bool = False

    @cached_property
    def bytes(self) -> int:
        bits = WIDTHS.get(self.dtype)
        bits = int(re.search(r"\d+", self.dtype)[0]) if bits is None else bits
        return -(-math.prod(self.dims) * bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Instruction:
    """One line of the text: the arrays it makes, its kind, its operands, and the line's rest."""

    name: str
    shapes: tuple[Shape, ...]
    kind: str
    operands: tuple[str, ...]
    rest: str
    root: bool

    @property
    def op_name(self) -> str:
        """The operation of the traced program that the instruction comes from; "" if unknown."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""


@dataclass
class Program:
    """The computations of a module by name, and how often each runs in a step."""

    computations: dict[str, dict[str, Instruction]]
    entry: str
    times: Counter = field(default_factory=Counter)
    fused: set[str] = field(default_factory=set)  # computations inside of one fused instruction

    def __post_init__(self):
        self._count(self.entry, 1)

    def _count(self, name: str, times: int) -> None:
        self.times[name] += times
        for one in self.computations[name].values():
            often = times * (self._trips(one) if one.kind == "while" else 1)
            for called in one.kind not in SCALAR and self._called(one) or ():
                if one.kind == "fusion" or name in self.fused:
                    self.fused.add(called)
                self._count(called, often)

    def _called(self, one: Instruction) -> list[str]:
        names = [n.strip(" %") for found in CALLED.findall(one.rest) for n in found.split(",")]
        return [name for name in names if name in self.computations]

    def _trips(self, one: Instruction) -> int:
        """How often a loop runs: as the compiler states, or the constant in its condition."""
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', one.rest):
            return int(known[1])
        condition = re.search(r"condition=%?([\w.\-]+)", one.rest)[1]
        found = [c for c in self.computations[condition].values() if c.kind == "constant"]
        numbers = [int(c.rest.split(")")[0]) for c in found if c.rest.split(")")[0].isdigit()]
        return max(numbers, default=1)

    def each(self) -> Iterator[tuple[str, Instruction, int]]:
        """Yields every instruction that runs, with its computation and how often it runs."""
        for name, times in self.times.items():
            for one in self.computations[name].values():
                yield name, one, times

    def operands(self, computation: str, one: Instruction) -> list[Shape]:
        made = self.computations[computation]
        return [shape for name in one.operands if name in made for shape in made[name].shapes]

    def collectives(self) -> dict[str, dict[str, int]]:
        """Count and bytes of each kind of collective; one in several parts (TPU) counts once."""
        found: dict[str, dict[str, int]] = {}
        for (kind, _), (count, size) in self._channels().items():
            entry = found.setdefault(kind, {"count": 0, "bytes": 0})
            entry["count"] += count
            entry["bytes"] += size
        return found

    def _channels(self) -> dict[tuple[str, str], tuple[int, int]]:
        found = {}
        for computation, one, times in self.each():
            kind = one.kind.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            # A TPU's reduce-scatter is an all-reduce whose other parts are thrown away.
            if computation.startswith("all-reduce-scatter"):
                kind = "reduce-scatter"
            size = collective_bytes(kind, self.operands(computation, one), one.shapes)
            # The parts of one collective stand in fused computations and share channel and place;
            # elsewhere a channel may be that of many.
            channel = re.search(r"channel_id=(\d+)", one.rest)
            parts = channel and computation in self.fused
            key = kind, f"{channel[1]} {one.op_name}" if parts else f"{computation} {one.name}"
            found[key] = max(found.get(key, (0, 0)), (times, times * size))
        return found

    def flops(self) -> int:
        """FLOPs of all matrix products and convolutions, and those that custom kernels state."""
        total = 0
        for computation, one, times in self.each():
            if one.kind == "dot":
                total += times * _dot_flops(one, self.operands(computation, one))
            elif one.kind == "convolution":
                total += times * _convolution_flops(one, self.operands(computation, one))
            elif stated := re.search(r'"flops":\s*"?(\d+)', one.rest):
                total += times * int(stated[1]) * (one.kind == "custom-call")
        return total

    def traffic(self) -> int:
        """Bytes read from and written to memory, if each instruction moves its own arrays."""
        return sum(
            times * self._moved(computation, one)
            for computation, one, times in self.each()
            if computation not in self.fused
        )

    def _moved(self, computation: str, one: Instruction) -> int:
        if one.kind in FREE or one.kind.endswith("-done"):
            return 0
        operands, results = self.operands(computation, one), one.shapes
        if one.kind in ("dynamic-slice", "slice", "gather"):
            return 2 * _off_chip(results)
        if one.kind == "dynamic-update-slice":
            return 2 * _off_chip(operands[1:2])
        if one.kind.endswith("-start"):
            real = [s.bytes for s in results if s.dims]
            return min(real, default=0)
        if one.kind == "fusion" and (called := self._called(one)):
            return self._fusion_moves(self.computations[called[0]], one)
        return _off_chip(operands) + _off_chip(results)

    def _fusion_moves(self, inside: dict[str, Instruction], one: Instruction) -> int:
        """A fusion's bytes of traffic; of arrays sliced or partly written, that part alone."""
        moved, updated = 0, 0
        for made in inside.values():
            if made.kind == "dynamic-update-slice":
                sizes = inside[made.operands[1]].shapes if made.operands[1] in inside else ()
                updated += made.shapes[0].bytes - sum(s.bytes for s in sizes)
            if made.kind != "parameter" or made.shapes[0].on_chip:
                continue
            users = [u for u in inside.values() if made.name in u.operands]
            cuts = [u for u in users if u.operands[0] == made.name and u.kind in PARTS]
            if users and len(cuts) == len(users):
                moved += sum(u.shapes[0].bytes for u in cuts if u.kind == "dynamic-slice")
            else:
                moved += made.shapes[0].bytes
        return moved + max(_off_chip(one.shapes) - updated, 0)

    def largest(self, count: int) -> list[dict[str, object]]:
        """The largest arrays in memory that a step makes, one for each shape and operation."""
        found = {}
        for computation, one, times in self.each():
            inner = computation in self.fused or one.kind in FREE
            made = () if inner or one.kind.endswith("-done") else one.shapes
            for shape in (shape for shape in made if not shape.on_chip):
                key = str(shape), one.op_name
                found.setdefault(key, (shape.bytes, one.kind, times))
        best = sorted(found.items(), key=lambda item: -item[1][0])[:count]
        names = "bytes", "by", "times"
        return [
            {"array": array, **dict(zip(names, values, strict=True)), "from": source}
            for (array, source), values in best
        ]


SCALAR = {"reduce", "reduce-window", "scatter", "sort", "map", "select-and-scatter", *COLLECTIVES,
          *(f"{kind}-start" for kind in COLLECTIVES)}  # fmt: skip
PARTS = {"dynamic-slice", "dynamic-update-slice"}


def parse(text: str) -> Program:
    """Reads the text of a compiled step (`as_text()`)."""
    computations, entry, current = {}, "", {}
    for line in text.splitlines():
        if head := COMPUTATION.match(line):
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif found := LINE.match(line):
            root, name, shapes, kind, rest = found.groups()
            operands = tuple(re.findall(r"%([\w.\-]+)", rest.split("), ")[0]))
            made = tuple(map(_shape, ARRAY.finditer(shapes)))
            current[name] = Instruction(name, made, kind, operands, rest, bool(root))
    return Program(computations, entry)


def collective_bytes(kind: str, operands: list[Shape], results: tuple[Shape, ...]) -> int:
    """Bytes on a device's links: the larger of operand and result, twice that for all-reduce."""
    made = sum(s.bytes for s in results if s.dims)
    given = sum(s.bytes for s in operands if s.dims)
    if tuple(operands) == results[: len(operands)]:  # a "-start" returns its operands too
        made -= given
    return COLLECTIVES[kind] * max(made, given)


def _shape(found: re.Match) -> Shape:
    dims = tuple(int(n) for n in found[2].split(",") if n)
    return Shape(found[1], dims, "S(1)" in (found[3] or ""))


def _off_chip(shapes: list[Shape] | tuple[Shape, ...]) -> int:
    return sum(s.bytes for s in shapes if not s.on_chip)


def _dot_flops(one: Instruction, operands: list[Shape]) -> int:
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.rest)
    sizes = [operands[0].dims[int(d)] for d in contracted[1].split(",") if d] if contracted else []
    return 2 * math.prod(one.shapes[0].dims) * math.prod(sizes)


def _convolution_flops(one: Instruction, operands: list[Shape]) -> int:
    """FLOPs of a convolution without its padding: a TPU writes batches as padded windows."""
    left, right, out = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.rest).groups()
    shapes = (left, operands[0]), (right, operands[1]), (out, one.shapes[0])
    sizes = [dict(zip(names, shape.dims, strict=True)) for names, shape in shapes]
    total = 2 * sizes[2]["b"] * sizes[2]["f"] * sizes[1]["i"]
    window = re.search(r"window=\{([^}]*)\}", one.rest)
    given = dict(part.split("=") for part in window[1].split()) if window else {}
    for axis, name in enumerate(sorted(set(out) - {"b", "f"})):
        value = lambda key, default, i=axis: given[key].split("x")[i] if key in given else default  # noqa: E731
        stride, spread, step = (int(value(k, 1)) for k in ("stride", "lhs_dilate", "rhs_dilate"))
        before = int(value("pad", "0_0").split("_")[0])
        last = (sizes[0][name] - 1) * spread
        places = [
            o * stride + k * step - before
            for o in range(sizes[2][name])
            for k in range(sizes[1][name])
        ]
        total *= sum(0 <= at <= last and at % spread == 0 for at in places)
    return total
