"""What a terminal shows: waits, tables of its width, numbers of 4 digits."""

import io
import sys
import time

from transformer_lab import terminal
from transformer_lab.commands.predict import bars, show
from transformer_lab.training import writers


class Screen(io.StringIO):
    """A terminal that keeps what it is shown."""

    def isatty(self):
        return True


def on_screen(monkeypatch):
    """A terminal of 80 columns, for standard output and errors, on which waits show at once."""
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(terminal, "FIRST", 0.01)
    monkeypatch.setattr(terminal, "OFTEN", 0.01)
    shown = Screen()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def test_a_wait_shows_what_and_how_far_within_a_line_and_leaves_it_empty(monkeypatch):
    screen = on_screen(monkeypatch)
    for _ in terminal.waited("reads " + 100 * "x", range(3)):
        time.sleep(0.04)
    signs = screen.getvalue().split(terminal.CLEAR)
    assert signs[0] == signs[-1] == "" and len(signs) > 3
    assert all(len(sign) < 80 for sign in signs)
    screen.seek(screen.truncate(0))
    with terminal.Waiting("scores", 1200) as waiting:
        waiting.done = 1000
        time.sleep(0.04)
    assert "scores: 1,000 of 1,200, 0 s" in screen.getvalue()


def test_a_wait_goes_to_the_bar_if_there_is_one_and_nowhere_if_it_is_off(monkeypatch):
    screen = on_screen(monkeypatch)
    told = []
    monkeypatch.setattr(terminal.Waiting, "bar", told.append)
    with terminal.Waiting("scores"):
        time.sleep(0.04)
    assert told[0] == "scores, 0 s" and screen.getvalue() == ""
    monkeypatch.setattr(terminal.Waiting, "bar", None)
    monkeypatch.setattr(terminal.Waiting, "off", True)
    with terminal.Waiting("scores"):
        time.sleep(0.04)
    assert screen.getvalue() == ""


def test_without_a_terminal_a_wait_is_a_plain_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "SELDOM", 0.02)
    with terminal.Waiting("reads"):
        time.sleep(0.07)
    lines = capsys.readouterr().err.splitlines()
    assert lines and set(lines) == {"reads, 0 s"}


def test_a_table_keeps_within_80_columns_and_loses_no_cell(monkeypatch):
    screen = on_screen(monkeypatch)
    header = [f"column {i}" for i in range(12)]
    row = [f"value-{i}" for i in range(12)]
    terminal.print_table(header, [row, [*row[:-1], "-"]])
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(f"{h}: {v}" in " ".join(screen.getvalue().split())
               for h, v in zip(header[1:], row[1:], strict=True))  # fmt: skip
    screen.seek(screen.truncate(0))
    terminal.print_table(header[:2], [row[:2]])
    assert "│ value-0  │  value-1 │" in screen.getvalue()


def test_numbers_have_four_digits_on_a_terminal_and_all_of_them_elsewhere(monkeypatch):
    screen = on_screen(monkeypatch)
    terminal.print_values({"loss": 1.23456789, "count": 12345, "of": "x"})
    assert screen.getvalue().splitlines() == ["loss   1.235", "count  12,345", "of     x"]
    monkeypatch.setattr(sys, "stdout", file := io.StringIO())
    terminal.print_values({"loss": 1.23456789})
    assert file.getvalue() == '{"loss": 1.23456789}\n'


def test_a_count_and_its_unit_agree():
    found = [terminal.counted(*given) for given in ((1, "batch"), (0, "batch"), (1200, "step"))]
    assert found == ["1 batch", "0 batches", "1,200 steps"]


def test_a_prediction_names_its_image_and_bars_are_as_long_as_chances():
    chances = {"cat": 0.7, "owl": 0.2, "a": 0.1, **{f"n{i}": 0.0 for i in range(9)}}
    row = {"image": "a.png", "label": "cat", "probability": 0.7, "probabilities": chances}
    assert show(row) == "a.png\tcat\t0.7000"
    drawn = bars(chances)
    assert [line.count("█") for line in drawn] == [21, 6, 3, 0, 0]
    assert drawn[0].startswith("  cat  0.7000  █") and drawn[2].startswith("  a    0.1000")


def test_the_time_left_is_that_of_steps_without_the_first_ones_compilation(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(writers.time, "monotonic", lambda: now[0])
    line = writers.ProgressLine(total=11, start=0)
    for step, seconds in (1, 60), (2, 2), (6, 8):  # a minute to compile, then 2 seconds a step
        now[0] += seconds
        line.update(step, 1.0, "loss 1.0")
    ends = [said.split("left ")[1] for said in capsys.readouterr().err.splitlines()]
    assert ends == ["unknown", "0:00:18", "0:00:10"]
