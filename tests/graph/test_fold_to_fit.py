"""What a picture shows by default: everything where it fits, else alike modules once, else modules as boxes."""

from __future__ import annotations

import pytest
from torch import nn

import feedline as fl
from feedline.graph.fold_branches import branches
from feedline.graph.fold_to_fit import MAX_BOXES, fit
from feedline.graph.folding import collapse, fold_repeats
from feedline.graph.importers import graph_of
from tests.graph import known_networks as known
from tests.graph import known_symbols as symbols


class Block(nn.Module):
    """Two layers of any width, whose result has the width of the input, or another one."""

    def __init__(self, width, wide, out, act=nn.ReLU):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, wide), act(), nn.Linear(wide, out)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


def chain(*wides, ends=()):
    """Blocks of 4 units outside and more inside. ``ends`` are the widths of their results."""
    given = [*ends, *[4] * (len(wides) - len(ends))]
    return nn.Sequential(*map(Block, [4, *given], wides, given))


def read(model, inputs=(1, 4), alike=True, depth=None):
    return fold_repeats(collapse(graph_of(model, inputs), depth), alike=alike)


def test_equal_blocks_are_one_with_the_widths_of_all():
    graph = read(chain(8, 16, 12))
    (scope,) = [scope for scope in graph.scopes.values() if scope.repeats > 1]
    assert (scope.repeats, scope.last, scope.alike, scope.tied) == (3, "2", True, False)
    first, _, last = [o for o in graph.operations if o.scope]
    assert [s.words for s in first.settings] == ["8…16 units"]
    assert first.outputs[0].shape == (1, "8…16")
    assert (last.outputs[0].shape, [s.words for s in last.settings]) == ((1, 4), ["4 units"])
    assert "numbers of parameters: those of 0" in fl.plot_network(graph).source
    equal = read(chain(8, 8, 8))
    assert not any(scope.alike for scope in equal.scopes.values())


def test_missing_modules_are_not_mentioned():
    layers = [layer for n in range(40) for layer in (nn.Linear(4 + n, 5 + n), nn.Tanh())]
    drawn, remark = fit(graph_of(nn.Sequential(*layers), (1, 4)), height=1600)
    assert (len(drawn.operations), remark) == (82, "")


def test_the_output_of_equal_blocks_is_the_last_ones():
    graph = read(nn.Sequential(chain(8, 16, ends=(6, 5)), nn.Tanh()), (1, 4))
    (edge,) = [edge for edge in graph.edges() if graph[edge.head].kind == "Tanh"]
    assert edge.type.shape == (1, 5)


@pytest.mark.parametrize(
    "other",
    [
        lambda: nn.Conv2d(4, 4, 3, stride=2, padding=1),  # another resolution
        lambda: nn.Conv2d(4, 4, 5, padding=2),  # another kernel
        lambda: nn.Conv2d(4, 4, 3, padding=1, bias=False),
        lambda: nn.ConvTranspose2d(4, 4, 3, padding=1),
    ],
)
def test_blocks_that_differ_in_more_are_not_equal(other):
    blocks = nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()), nn.Sequential(other(), nn.ReLU()))
    graph = read(blocks, (1, 4, 8, 8))
    assert not any(scope.repeats > 1 for scope in graph.scopes.values())


def test_kinds_that_differ_are_both_reported():
    blocks = nn.Sequential(Block(4, 8, 4), Block(4, 8, 4, act=lambda: nn.Dropout(0.1)), Block(4, 8, 4))
    assert not any(scope.repeats > 1 for scope in read(blocks).scopes.values())
    rates = nn.Sequential(*[Block(4, 8, 4, act=lambda rate=rate: nn.Dropout(rate)) for rate in (0.1, 0.3, 0.2)])
    words = [s.words for o in read(rates).operations for s in o.settings if s.name == "rate"]
    assert words == ["rate 0.1…0.3"]


def test_small_networks_are_drawn_as_they_are():
    """Blocks of other widths are worth seeing while there is room for them."""
    graph = graph_of(chain(8, 16, 12), (1, 4))
    drawn, remark = fit(graph)
    assert (drawn, remark) == (fold_repeats(collapse(graph)), "")
    assert len(drawn.operations) == 11


def test_large_networks_have_equal_blocks_once_then_boxes():
    graph = graph_of(chain(*range(5, 30)), (1, 4))
    drawn, remark = fit(graph)
    assert [scope.repeats for scope in drawn.scopes.values() if scope.repeats > 1] == [25]
    assert (len(drawn.operations), remark) == (5, "")
    kinds = [nn.ReLU, nn.Tanh]
    odd = nn.Sequential(*[Block(4, 8, 4, act=kinds[i % 2]) for i in range(25)])
    drawn, remark = fit(graph_of(odd, (1, 4)))
    assert len(drawn.operations) == 27 < MAX_BOXES
    assert remark == "depth=0: deeper modules are boxes"
    assert "depth=0: deeper modules are boxes" in fl.plot_network(odd, (1, 4)).source
    for whole in (fl.plot_network(odd, (1, 4), fold=False), fl.plot_network(odd, (1, 4), depth=9)):
        assert "depth=" not in whole.source
        assert whole.source.count('label="Linear') == 50


def test_known_networks_that_fit_stay_whole():
    for make in (known.resnet50, known.vit_b_16):
        assert fit(graph_of(make(), (1, 3, 224, 224)), height=1600)[1] == ""


def test_inceptions_blocks_name_their_branches():
    drawn, remark = fit(graph_of(symbols.inception_v3(), {"data": (1, 3, 299, 299)}), height=1600)
    assert remark
    boxes = {o.name: o for o in drawn.operations}
    assert boxes["mixed_4"].inside == (
        "Convolution 1×1",
        "Convolution 1×1, 1×7, 7×1",
        "Convolution 1×1, 7×1, 1×7, 7×1, 1×7",
        "Pooling average 3×3, Convolution 1×1",
    )
    assert "Convolution 1×1, 3×3, then 1×3 beside 3×1" in boxes["mixed_9"].inside
    repeats = {path[0]: (scope.repeats, scope.last) for path, scope in drawn.scopes.items() if scope.repeats > 1}
    assert repeats == {"mixed": (3, "mixed_2"), "mixed_4": (4, "mixed_7")}
    source = fl.plot_network(drawn).source
    assert "1,297,408 parameters in mixed_4" in source
    assert {e.type.shape for e in drawn.edges() if e.tail == boxes["mixed"].key} == {(1, 288, 35, 35)}


def test_branches_of_modules():
    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Conv1d(1, 1, 1)
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return self.c(self.norm(self.a(x) + self.b(x)).unsqueeze(1))

    inside = collapse(graph_of(Joined(), (1, 4))).operations[1:-1]
    assert branches(inside) == ("Linear", "Linear", "then Conv1d 1")
    assert branches(inside[:1]) == ()
    many = collapse(graph_of(nn.Sequential(*[nn.Conv2d(1, 1, 3, padding=1) for _ in range(40)]), (1, 1, 4, 4)))
    assert branches(many.operations) == ("Conv2d ×40",)
