"""What the summary and `make slowest` say of a run."""

from __future__ import annotations

from tests.costs import Cost, table_of


def test_the_dearest_come_first_and_starts_are_counted_over_all_files() -> None:
    files = {
        f"tests/test_{number}.py": Cost(wall_s=number, cpu_s=100 - number, num_tests=1, starts={"qserve up": 2})
        for number in range(25)
    }
    for cost in files.values():
        cost.started_cpu_s["qserve up"] = 1.5
    files["tests/test_0.py"].ready_s += [3.0, 5.0]
    by_wall, by_cpu = table_of(files, "wall_s"), table_of(files, "cpu_s")
    assert by_wall[1].split() == ["76.0", "24.0", "1", "tests/test_24.py"]
    assert by_cpu[1].split() == ["100.0", "0.0", "1", "tests/test_0.py"]
    assert sum("tests/test_" in line for line in by_wall) == 20
    assert by_wall[21].split() == ["2200.0", "300.0", "25", "all"]
    assert ["37.5", "50", "qserve", "up"] in [line.split() for line in by_wall]
    assert by_wall[-1] == "2 services were ready after 4.0 s on average, 5.0 s at most"
