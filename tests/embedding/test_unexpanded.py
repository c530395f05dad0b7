"""Value and property tests of the tensor that expands when it is read; then under gloo's DDP."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import fbgemm_gpu  # noqa: F401  # registers torch.ops.fbgemm
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torchrec.distributed.types import LazyNoWait
from torchrec.sparse.jagged_tensor import JaggedTensor

from recd_plugins.embedding.unexpanded import Unexpanded
from recd_plugins.testing.gloo import GlooPool

LENGTHS = torch.tensor([2, 0, 3])
LOOKUP = torch.tensor([0, 2, 1, 0, 2])
CELLS = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 4])
"""Which unique value each of the five samples' values is."""


def leaf() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(5, 4, requires_grad=True)


def values(unique: Tensor) -> Unexpanded:
    return Unexpanded.values(unique, LENGTHS, LOOKUP)


def is_expanded(tensor: Unexpanded) -> bool:
    return tensor._expanded is not None


def test_it_is_a_tensor_and_says_so_without_expanding() -> None:
    unique = leaf()
    for made, shape in [
        (values(unique), (10, 4)),
        (Unexpanded.values(unique, LENGTHS, LOOKUP, num_values=10), (10, 4)),
        (Unexpanded.rows(unique, LOOKUP), (5, 4)),
        (Unexpanded.rows(LENGTHS, LOOKUP), (5,)),
    ]:
        assert isinstance(made, Tensor)
        assert torch.is_tensor(made)
        assert made.shape == made.size() == shape
        assert (len(made), made.ndim, made.dim()) == (shape[0], len(shape), len(shape))
        assert made.numel() == torch.numel(made) == torch.Size(shape).numel()
        assert made.stride() == torch.empty(shape).stride()
        assert made.dtype == made.of_unique.dtype
        assert made.device == unique.device
        assert made.requires_grad == made.of_unique.requires_grad
        assert made.is_floating_point() == made.of_unique.is_floating_point()
        assert (made.is_cuda, made.is_sparse, made.layout) == (False, False, torch.strided)
        assert str(list(made.of_unique.shape)) in repr(made)
        assert made.is_unique
        assert not is_expanded(made)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "operators": lambda x: (1 - x) * x / 3,
    "comparison": lambda x: x > 0,
    "matmul": lambda x: x @ torch.ones(4, 2),
    "the right of matmul": lambda x: torch.ones(2, 10) @ x,
    "linear": lambda x: F.linear(x, torch.ones(3, 4)),
    "index": lambda x: x[3],
    "slice": lambda x: x[2:7, 1:],
    "index by tensor": lambda x: x[torch.tensor([4, 4, 0])],
    "as an index": lambda x: torch.arange(3.0)[(x > 0).long()],
    "stack": lambda x: torch.stack([x, torch.zeros(10, 4), x]),
    "cat": lambda x: torch.cat((torch.zeros(2, 4), x)),
    "einsum": lambda x: torch.einsum("nd,nd->n", x, x),
    "split": lambda x: torch.split(x, [4, 6])[1],
    "unbind": lambda x: x.unbind(1)[2],
    "iteration": lambda x: torch.stack(list(x)),
    "view": lambda x: x.view(5, 2, 4).transpose(0, 1),
    "clone": lambda x: x.clone(),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "new": lambda x: x.new_zeros(2),
    "zeros_like": lambda x: torch.zeros_like(x),
    "transposed": lambda x: x.T,
    "out": lambda x: torch.add(x, x, out=torch.empty(10, 4)) if not x.requires_grad else x + x,
    "fbgemm": lambda x: torch.ops.fbgemm.jagged_to_padded_dense(
        x, [torch.tensor([0, 2, 5, 5, 7, 10])], [3]
    ),
    "a bag": lambda x: F.embedding_bag(torch.tensor([0, 3, 9]), x, torch.tensor([0, 1])),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 10, 2, 2)] * 3),
    "a cast": lambda x: x.double(),
    "a cast by to": lambda x: x.to(torch.float64, copy=True),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_see_the_expansion_and_pass_its_gradient(name: str) -> None:
    operation, unique = OPERATIONS[name], leaf()
    ours, theirs = operation(values(unique)), operation(unique[CELLS])
    assert torch.equal(ours, theirs)
    assert ours.requires_grad == theirs.requires_grad
    if ours.requires_grad:
        weights = torch.arange(1.0, ours.numel() + 1).view(ours.shape).to(ours.dtype)
        left, right = (
            torch.autograd.grad((each * weights).sum(), unique)[0] for each in (ours, theirs)
        )
        # The same terms in another order.
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("join", [torch.stack, torch.cat, torch.concat])
@pytest.mark.parametrize("dim", [0, 1])
def test_features_side_by_side(join: Callable[..., Tensor], dim: int) -> None:
    """Expanded together where they can be; each is still as before."""
    uniques = [torch.randn(count, 4, requires_grad=True) for count in (3, 3, 2, 5, 3)]
    lookups = [LOOKUP, LOOKUP, LOOKUP % 2, None, LOOKUP]
    rows = [
        unique if lookup is None else Unexpanded.rows(unique, lookup)
        for unique, lookup in zip(uniques, lookups, strict=True)
    ]
    last = rows[-1]
    assert isinstance(last, Unexpanded)
    last.mul_(2)
    joined = join(rows, dim=dim)
    wanted = join(
        [
            unique if lookup is None else unique[lookup]
            for unique, lookup in zip([*uniques[:-1], uniques[-1] * 2], lookups, strict=True)
        ],
        dim,
    )
    assert torch.equal(joined, wanted)
    assert [is_expanded(row) for row in rows if isinstance(row, Unexpanded)] == (
        [dim == 0] * 3 + [True]
    )
    weights = torch.arange(1.0, joined.numel() + 1).view(joined.shape)
    for ours, theirs in zip(
        torch.autograd.grad((joined * weights).sum(), uniques),
        torch.autograd.grad((wanted * weights).sum(), uniques),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("join", [torch.stack, torch.cat])
def test_features_beside_ones_that_torchrec_still_waits_for(join: Callable[..., Tensor]) -> None:
    """As the output of another collection is, whose exchange is under way: wherever they stand."""
    unique, other = leaf(), torch.randn(5, 4, requires_grad=True)
    made = [Unexpanded.rows(unique, LOOKUP), Unexpanded.rows(unique.sin(), LOOKUP)]
    expected = join([made[0].expanded(), made[1].expanded(), other], 1)
    for place in range(3):
        fresh: list[Any] = [Unexpanded.rows(one.of_unique, LOOKUP) for one in made]
        fresh.insert(place, LazyNoWait(other))
        found = join(fresh, 1)
        assert torch.equal(found, expected[:, _moved(join, place)])
        assert not any(is_expanded(one) for one in fresh if isinstance(one, Unexpanded))
    assert torch.equal(fresh[0] + LazyNoWait(other), made[0].expanded() + other)


def _moved(join: Callable[..., Tensor], place: int) -> list[int]:
    """The columns of three features, of which the last has come to another place."""
    blocks = [0, 1]
    blocks.insert(place, 2)
    if join is torch.stack:
        return blocks
    return [4 * block + column for block in blocks for column in range(4)]


def test_features_that_do_not_fit_side_by_side() -> None:
    unique = leaf()[:3]
    one, wide = Unexpanded.rows(unique, LOOKUP), Unexpanded.rows(unique[:, :2], LOOKUP)
    half = Unexpanded.rows(unique.double(), LOOKUP)
    lengths = Unexpanded.rows(LENGTHS, LOOKUP)
    assert torch.cat([one, wide], dim=1).shape == (5, 6)
    assert torch.cat([one, half], 1).dtype == torch.float64
    assert torch.stack([lengths, lengths], 1).tolist() == [[n, n] for n in lengths.tolist()]
    found = torch.empty(5, 8)
    torch.cat([one.detach()] * 2, 1, out=found)
    assert torch.equal(found[:, 4:], one + 0)
    assert torch.cat([values(leaf())] * 2, 1).shape == (10, 8)
    with pytest.raises(RuntimeError, match="equal size"):
        torch.stack([one, wide], 1)


def test_what_reads_memory() -> None:
    lengths = Unexpanded.rows(LENGTHS, LOOKUP)
    assert lengths.tolist() == lengths.numpy().tolist() == [2, 3, 0, 2, 3]
    assert lengths[1].item() == int(lengths[1]) == 3
    assert lengths.data_ptr() == lengths.expanded().data_ptr()
    assert torch.ops.fbgemm.asynchronous_complete_cumsum(lengths).tolist() == [0, 2, 5, 5, 7, 10]
    detached = values(leaf()).detach()
    assert torch.equal(copy.deepcopy(detached), detached)
    file = io.BytesIO()
    torch.save(detached, file)
    assert torch.equal(torch.load(io.BytesIO(file.getvalue()), weights_only=True), detached)


def test_it_expands_once() -> None:
    made = values(leaf())
    first = made.expanded()
    assert (made + 1).shape == (10, 4)
    assert made.expanded() is first
    assert type(first) is Tensor


def test_gradients_by_the_expansion_and_by_the_unique_samples_add_up() -> None:
    unique = leaf()
    made = values(unique * 2)
    (made.sin().sum() + made.of_unique.cos().sum() + made.expanded()[0].sum()).backward()
    ours, unique.grad = unique.grad, None
    doubled = unique * 2
    (doubled[CELLS].sin().sum() + doubled.cos().sum() + doubled[0].sum()).backward()
    torch.testing.assert_close(ours, unique.grad)


def test_who_reads_it_without_a_gradient_takes_it_from_nobody() -> None:
    for look in (torch.no_grad, torch.inference_mode):
        unique = leaf()
        made = values(unique)
        with look():
            assert not made.sum().requires_grad
        made.sum().backward()
        assert unique.grad is not None
        assert unique.grad[:, 0].tolist() == [2.0] * 5


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        made = values(torch.ones(5, 4))
        assert made.sum() == 40
        assert made.is_unique
    assert (made + 1).sum() == 80


class Doubled(torch.autograd.Function):
    """As compiled code sees it: nothing of Python's between it and the tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * 2 + 0 * x


class Unchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


@pytest.mark.parametrize("before", [False, True])
def test_autograd_functions_that_are_handed_one(before: bool) -> None:
    for function, factor in [(Doubled.apply, 2.0), (Unchanged.apply, 1.0)]:
        unique = leaf()
        made = values(unique)
        if before:
            made.expanded()
        result = function(made)
        assert torch.equal(result + 0, unique[CELLS] * factor)
        result.square().sum().backward()
        wanted = torch.zeros(5, 4).index_add(0, CELLS, 2 * factor**2 * unique[CELLS])
        torch.testing.assert_close(unique.grad, wanted)


def test_several_that_are_made_together() -> None:
    """Each has the gradient that it would have alone, whether or not the others have one."""
    first, second = leaf(), leaf()
    ours = Unexpanded.each(
        [
            (first, LOOKUP, LENGTHS, 10),
            (LENGTHS, LOOKUP, None, 5),
            (second[:3], LOOKUP, None, 5),
        ]
    )
    assert [one.requires_grad for one in ours] == [True, False, True]
    assert [one.shape for one in ours] == [(10, 4), (5,), (5, 4)]
    Doubled.apply(ours[0]).square().sum().backward()
    wanted = torch.zeros(5, 4).index_add(0, CELLS, 8 * first[CELLS])
    torch.testing.assert_close(first.grad, wanted)
    assert second.grad is None
    Doubled.apply(ours[2]).sum().backward()
    assert second.grad is not None
    assert second.grad[:, 0].tolist() == [4.0, 2.0, 4.0, 0.0, 0.0]


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_a_checkpoint(reentrant: bool) -> None:
    unique = leaf()
    made = values(unique)
    first = checkpoint(lambda x: (x * x).sum(), made, use_reentrant=reentrant)
    (first + made.sum()).backward()
    wanted = torch.zeros(5, 4).index_add(0, CELLS, 2 * unique[CELLS] + 1)
    torch.testing.assert_close(unique.grad, wanted)


def test_features_side_by_side_in_a_checkpoint_and_read_after_it() -> None:
    unique = leaf()
    rows = [Unexpanded.rows(unique * scale, LOOKUP) for scale in (1, 2)]
    joined = checkpoint(lambda *each: torch.cat(each, 1).sin(), *rows, use_reentrant=False)
    (joined.sum() + rows[0].cos().sum()).backward()
    ours, unique.grad = unique.grad, None
    one = unique[LOOKUP]
    (torch.cat([one, 2 * one], 1).sin().sum() + one.cos().sum()).backward()
    torch.testing.assert_close(ours, unique.grad)


def added(x: Tensor, y: Tensor) -> Tensor:
    return x.cumsum(0) + y


@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # as TorchRec uses it
def test_in_compiled_script() -> None:
    unique = leaf()
    torch.jit.script(added)(values(unique), torch.zeros(4)).sum().backward()
    assert unique.grad is not None
    assert unique.grad[0, 0] == 10 + 5


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch.compile asks for
def test_a_compiled_function_reads_it() -> None:
    def read(jagged: JaggedTensor, rows: Tensor) -> Tensor:
        summed: Tensor = (jagged.values().tanh().sum() + rows.sum()) * jagged.lengths().sum()
        return summed

    unique = leaf()
    given = JaggedTensor(values(unique), lengths=Unexpanded.rows(LENGTHS, LOOKUP))
    compiled = torch.compile(read, backend="aot_eager")
    compiled(given, Unexpanded.rows(unique, LOOKUP)).backward()
    ours, unique.grad = unique.grad, None
    (10 * (unique[CELLS].tanh().sum() + unique[LOOKUP].sum())).backward()
    torch.testing.assert_close(ours, unique.grad)


def test_its_own_names_hide_no_method_of_a_dense_tensor() -> None:
    own = {*vars(Unexpanded), *Unexpanded.__annotations__}
    hidden = {name for name in own if hasattr(Tensor, name) and not name.startswith("__")}
    assert hidden == {"values"}  # which only sparse tensors have
    assert Unexpanded.rows(LENGTHS, LOOKUP).unique().tolist() == [0, 2, 3]


def test_in_a_jagged_tensor() -> None:
    jagged = JaggedTensor(values=values(leaf()), lengths=Unexpanded.rows(LENGTHS, LOOKUP))
    assert isinstance(jagged.values(), Unexpanded)
    assert isinstance(jagged.lengths(), Unexpanded)
    assert jagged.offsets().tolist() == [0, 2, 5, 5, 7, 10]
    assert [len(row) for row in jagged.to_dense()] == [2, 3, 0, 2, 3]
    assert jagged.to_padded_dense(2).shape == (5, 2, 4)


def test_moves_and_casts_stay_unexpanded() -> None:
    unique = leaf()
    made = values(unique)
    for moved in (made.double(), made.to("cpu", torch.float64), made.to(made.double().detach())):
        assert isinstance(moved, Unexpanded)
        assert not is_expanded(moved)
        assert moved.dtype == torch.float64
        assert moved.requires_grad
    assert made.to("cpu") is made
    assert made.contiguous() is made
    made.double().of_unique.sum().backward()
    assert unique.grad is not None
    detached = made.detach()
    assert isinstance(detached, Unexpanded)
    assert not detached.requires_grad
    assert not is_expanded(made)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.linear(made, torch.ones(3, 4)).dtype == torch.bfloat16


CHANGES: dict[str, Callable[[Any], Any]] = {
    "add_": lambda x: x.add_(1),
    "a view's": lambda x: x.view(-1).mul_(2),
    "item": lambda x: x.__setitem__(0, 7.0),
    "out": lambda x: torch.add(torch.ones(10, 4), 1, out=x),
    "copy": lambda x: x.copy_(torch.ones(10, 4)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_in_place_leave_the_unique_samples_behind(name: str) -> None:
    unique = leaf().detach() if name == "out" else leaf()
    made, wanted = values(unique), unique[CELLS]
    CHANGES[name](made)
    CHANGES[name](wanted)
    assert not made.is_unique
    assert torch.equal(made + 0, wanted)
    assert torch.equal(made.double(), wanted.double())
    if unique.requires_grad:
        assert made.grad_fn is not None
        left, right = (torch.autograd.grad((x * x).sum(), unique)[0] for x in (made, wanted))
        torch.testing.assert_close(left, right)


def test_an_operator_in_place_makes_it_ordinary() -> None:
    made = values(leaf())
    before = made
    made += 1
    assert type(made) is Tensor
    assert not before.is_unique


UNSEEN: dict[str, Callable[[Any], Any]] = {
    "add_": lambda x: x.add_(1),
    "of a list": lambda x: torch._foreach_add_([x], 1),
    "out": lambda x: torch.ops.aten.add.out(torch.ones(10, 4), torch.ones(10, 4), out=x),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_changes_out_of_torch_s_sight_are_refused(name: str) -> None:
    made = values(leaf().detach())
    with (
        torch._C.DisableTorchFunctionSubclass(),
        pytest.raises(RuntimeError, match=r"pass its \.expanded\(\)"),
    ):
        UNSEEN[name](made)


def test_a_changed_one_is_detached_as_it_is() -> None:
    made = values(leaf().detach())
    made.add_(1)
    with torch._C.DisableTorchFunctionSubclass():
        detached = made.detach()
    assert torch.equal(detached, made.expanded())


def test_lookups_are_known_by_their_memory() -> None:
    lookups = torch.stack([LOOKUP, LOOKUP])
    unique = leaf()
    made = Unexpanded.rows(unique, lookups[0])
    assert made.shares_lookup(Unexpanded.rows(unique, lookups[0]))
    assert not made.shares_lookup(Unexpanded.rows(unique, lookups[1]))
    assert not made.shares_lookup(Unexpanded.rows(unique, lookups[0, :3]))


def test_hooks_see_the_expansion_s_gradient() -> None:
    made = values(leaf())
    seen = []
    made.register_hook(lambda gradient: seen.append(gradient.shape))
    made.retain_grad()
    made.sum().backward()
    assert seen == [(10, 4)]
    assert made.grad is not None
    assert made.grad.shape == (10, 4)


class Half(nn.Module):
    """Reads one input expanded, the other's unique samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.outer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Unexpanded:
        made = values(self.inner(x))
        return Unexpanded.rows(self.outer(made.of_unique[:3] + made[5:8]), LOOKUP)


def under_ddp() -> list[Tensor]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Half(), static_graph=True)
    found = []
    for _ in range(3):  # a static graph is learnt in the first step, used in the next ones
        model.zero_grad()
        model(leaf().detach() * (1 + torch.distributed.get_rank())).square().sum().backward()
        found = [
            parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
        ]
    return found


def test_ddp_with_a_static_graph(gloo_pool: GlooPool) -> None:
    torch.manual_seed(0)
    model = Half()
    losses = [model(leaf().detach() * scale).square().sum() for scale in (1, 2)]
    (sum(losses) / 2).backward()  # type: ignore[union-attr]
    for found in gloo_pool.run(under_ddp):
        for ours, parameter in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(ours, parameter.grad)
