import pytest

from tests.unit.admission.guard_table import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_rule_in_python_judges_every_write_of_the_table(case: Case) -> None:
    assert case.permitted == case.allowed
