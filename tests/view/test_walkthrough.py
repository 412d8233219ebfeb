"""What `regard demo` prints: parsed back from the text and held against the code and against itself."""

from __future__ import annotations

import io
import re

import pytest
import torch
from rich.console import Console

from regard.nn.positions import sinusoid
from regard.view.terminal import BARS, shade
from regard.view.walkthrough import CATS, SENTENCE, SOURCE, TARGET, walkthrough

HEADING = re.compile(r"^(\d+)  (.+?) ─+$", re.MULTILINE)
NUMBER = re.compile(r"-?\d+\.\d{3}")
ROUNDING = 0.0005  # of a number printed to three places


def printed(width: int = 100, seed: int = 0, colours: bool = False) -> str:
    system = "truecolor" if colours else None
    console = Console(file=io.StringIO(), width=width, color_system=system, force_terminal=colours, no_color=not colours)
    walkthrough(console, seed)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def sections(text: str) -> list[str]:
    """The text below each heading; the first comes before any."""
    return HEADING.split(text)[0::3]


def table(section: str, labels: list[str]) -> list[list[str]]:
    """The cells of the first rows in a section that begin with these words, one after the other."""
    found, wanted = [], list(labels)
    for line in section.splitlines():
        if wanted and line.startswith(f"  {wanted[0]} ") and ("· · ·" in line or len(NUMBER.findall(line)) > 2):
            found.append(re.findall(r"-?\d+\.\d{3}|· · ·", line))
            wanted.pop(0)
    assert not wanted, f"no row for {wanted[0]}"
    return found


def numbers(rows: list[list[str]]) -> torch.Tensor:
    return torch.tensor([[0.0 if "·" in cell else float(cell) for cell in row] for row in rows])


@pytest.fixture(scope="module")
def page() -> list[str]:
    return sections(printed())


def assert_rows_sum_to_one(rows: torch.Tensor) -> None:
    weights, total = rows[:, :-1], rows[:, -1]
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=0)
    torch.testing.assert_close(weights.sum(-1), total, rtol=0, atol=weights.shape[1] * ROUNDING)


def test_nine_sections(page: list[str]) -> None:
    assert len(page) == 10


@pytest.mark.parametrize("width", [100, 80])
@pytest.mark.parametrize("colours", [False, True])
def test_no_line_is_wider_than_the_console_and_no_cell_is_cut(width: int, colours: bool) -> None:
    text = without_styles(printed(width, colours=colours))
    assert max(map(len, text.splitlines())) <= width
    assert [place for place, line in enumerate(text.splitlines()) if line.rstrip().endswith("…")] == []
    for label in SENTENCE:
        assert f"  {label} " in text


def test_both_widths_print_the_same_numbers() -> None:
    assert NUMBER.findall(printed(100)) == NUMBER.findall(printed(80))


def test_colours_change_no_number() -> None:
    coloured = without_styles(printed(colours=True))
    plain = printed()
    for bar in BARS.strip():
        plain = plain.replace(bar, " ")
    assert coloured == plain


def test_the_seed_decides_every_number() -> None:
    assert printed() == printed()
    assert NUMBER.findall(printed()) != NUMBER.findall(printed(seed=1))


@pytest.mark.parametrize("seed", range(1, 4))
def test_tables_are_tables_with_any_seed(seed: int) -> None:
    page = sections(printed(80, seed))
    assert_rows_sum_to_one(numbers(table(page[3], SENTENCE)))
    assert_rows_sum_to_one(numbers(table(page[6], SENTENCE)))


def test_the_callers_random_numbers_go_on_undisturbed() -> None:
    torch.manual_seed(7)
    expected = torch.randn(3)
    torch.manual_seed(7)
    printed()
    torch.testing.assert_close(torch.randn(3), expected, rtol=0, atol=0)


def test_both_cats_have_the_same_vector(page: list[str]) -> None:
    rows = table(page[1], SENTENCE)
    assert rows[CATS[0]] == rows[CATS[1]]
    assert len({tuple(row) for row in rows}) == len(set(SENTENCE))


def test_positions_are_the_sinusoid(page: list[str]) -> None:
    waves = numbers(table(page[2], SENTENCE))
    torch.testing.assert_close(waves, sinusoid(torch.arange(6), 6), rtol=0, atol=1.01 * ROUNDING)
    assert waves[0].tolist() == [0, 1, 0, 1, 0, 1]


def test_placed_cats_are_the_sum_and_differ(page: list[str]) -> None:
    embeddings, waves = numbers(table(page[1], SENTENCE)), numbers(table(page[2], SENTENCE))
    last = page[2][page[2].index("The encoder's input") :]
    placed = numbers(table(last, ["CAT", "CAT"]))
    torch.testing.assert_close(placed, (embeddings + waves)[CATS], rtol=0, atol=3.01 * ROUNDING)
    assert (placed[0] - placed[1]).abs().max() > 0.1


def test_weights_follow_from_the_printed_vectors(page: list[str]) -> None:
    x = numbers(table(page[1], SENTENCE)) + numbers(table(page[2], SENTENCE))
    rows = numbers(table(page[3], SENTENCE))
    assert_rows_sum_to_one(rows)
    torch.testing.assert_close(rows[:, :-1], (x @ x.T / 6**0.5).softmax(-1), rtol=0, atol=0.005)
    highest = int((rows[:, :-1].argmax(-1) == torch.arange(6)).sum())
    assert f"in {highest} of 6 rows" in " ".join(page[3].split())


def test_without_positions_the_cats_look_alike(page: list[str]) -> None:
    rows = table(page[3], [f"CAT ({place})" for place in CATS])
    assert rows[0] == rows[1]
    assert_rows_sum_to_one(numbers(rows))


def test_variance_grows_with_d_unless_divided(page: list[str]) -> None:
    rows = numbers(table(page[4], [f"{2**power:>4}" for power in range(10)]))
    width = 2.0 ** torch.arange(10)
    raw, scaled, sharp, even = rows.T
    torch.testing.assert_close(raw, width, rtol=0.15, atol=0)
    torch.testing.assert_close(scaled, torch.ones(10), rtol=0.15, atol=0)
    assert (sharp.diff() > 0).all()
    assert sharp[-1] > 0.9
    assert even.max() < 0.5


def test_heads_differ_and_each_sums_to_one(page: list[str]) -> None:
    rows = table(page[5], [f"head {head}" for head in range(1, 9)])
    assert_rows_sum_to_one(numbers(rows))
    assert len({tuple(row) for row in rows}) == 8


def test_nothing_is_seen_above_the_diagonal(page: list[str]) -> None:
    rows = table(page[6], SENTENCE)
    assert_rows_sum_to_one(numbers(rows))
    for query, row in enumerate(rows):
        assert [cell == "· · ·" for cell in row[:-1]] == [key > query for key in range(6)]
    assert "largest weight above the diagonal is 0.000" in page[6]
    whole = table(page[3], SENTENCE)
    assert rows[-1] == whole[-1], "the last word sees everything, mask or not"


def test_masks_are_drawn_as_they_are(page: list[str]) -> None:
    lines = [line for line in page[6].splitlines() if re.fullmatch(r"[●· ]+", line.strip()) and "●" in line]
    pictures = [[row.split() for row in re.split(r" {3,}", line.strip())] for line in lines]
    full, causal, prefix, padding = ([[cell == "●" for cell in row[which]] for row in pictures] for which in range(4))
    assert full == [[True] * 6] * 6
    assert causal == [[key <= query for key in range(6)] for query in range(6)]
    assert prefix == [[key <= query or key < 3 for key in range(6)] for query in range(6)]
    assert padding == [[key < 4 for key in range(6)]] * 6


def test_shapes_through_the_block(page: list[str]) -> None:
    rows = re.findall(r"^  ([\w.]+) +(\(.+?\)) +(.*?) *$", page[7], re.MULTILINE)
    assert all(meaning for _, _, meaning in rows)
    shapes = {name: shape for name, shape, _ in rows}
    assert shapes["embeddings"] == shapes["placed"] == shapes["output"] == "(6, 512)"
    assert shapes["attention.query"] == shapes["attention.key"] == shapes["attention.value"] == "(8, 6, 64)"
    assert shapes["attention.weights"] == "(8, 6, 6)"
    assert shapes["feedforward.inner"] == "(6, 2048)"


def test_labels_are_the_input_shifted(page: list[str]) -> None:
    cells = {name: re.search(rf"^  {name} +(.+)$", page[8], re.MULTILINE) for name in ("decoder reads", "label")}
    read, label = (match.group(1).split() for match in cells.values() if match is not None)
    assert read == ["<start>", *TARGET]
    assert label == [*TARGET, "<end>"]
    assert " ".join(SOURCE) in page[8]


def test_one_at_a_time_gives_the_same_logits(page: list[str]) -> None:
    differences = [
        float(number) for number in re.findall(r"\d\.\de[+-]\d\d$", "\n".join(map(str.rstrip, page[8].splitlines())), re.MULTILINE)
    ]
    assert len(differences) == len(TARGET) + 1
    assert max(differences) < 1e-5


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_letters_can_be_read_on_every_shade() -> None:
    before = 1.0
    for step in range(101):
        letters, _, ground = shade(step / 100).split()
        light, dark = sorted((luminance(letters), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"weight {step / 100}"
        assert luminance(ground) < before, "dark is 1"
        before = luminance(ground)
