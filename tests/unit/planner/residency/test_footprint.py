"""Which models fit together, at rest and while one of them starts."""

from __future__ import annotations

from qserve.planner.residency.footprint import RAM, Budget, Fit, Footprint, most_together, verdict_on


def model(name: str, rest: int, starting: int = 0, pool: str = RAM) -> Footprint:
    return Footprint(name, {pool: rest}, {pool: starting} if starting else {})


def test_what_fits_at_rest_need_not_survive_a_cold_start() -> None:
    budget = Budget({RAM: 100})
    calm, hungry = model("calm", 50), model("hungry", 40, starting=20)
    assert verdict_on([calm], budget) is Fit.TOGETHER
    assert verdict_on([calm, hungry], budget) is Fit.AT_REST
    assert verdict_on([calm, model("large", 60)], budget) is Fit.NO
    assert budget.short_together([calm, hungry]) == 10
    assert budget.short_at_rest([calm, hungry]) == 0


def test_a_start_counts_whoever_came_last() -> None:
    """A model that crashes starts again beside all others, also if there was room when it came first."""
    budget = Budget({RAM: 100})
    assert verdict_on([model("first", 40, starting=30), model("second", 40)], budget) is Fit.AT_REST


def test_each_pool_counts_for_itself() -> None:
    budget = Budget({"card 0": 80, "card 1": 80, RAM: 10})
    on_both = Footprint("both", {"card 0": 40, "card 1": 40})
    on_first = model("first", 50, pool="card 0")
    assert verdict_on([on_both, on_first], budget) is Fit.NO
    assert verdict_on([on_both, model("second", 40, pool="card 1")], budget) is Fit.TOGETHER
    assert verdict_on([model("in ram", 11)], budget) is Fit.NO


def test_the_largest_sets_and_none_that_is_in_another() -> None:
    models = [model("a", 60), model("b", 30), model("c", 30), model("d", 101)]
    found = [{one.name for one in some} for some in most_together(models, Budget({RAM: 100}))]
    assert found == [{"a", "b"}, {"a", "c"}, {"b", "c"}]


def test_of_many_models_one_set_in_their_order() -> None:
    models = [model(str(at), 10 + at) for at in range(13)]
    (found,) = most_together(models, Budget({RAM: 33}))
    assert [one.name for one in found] == ["0", "1", "2"]
