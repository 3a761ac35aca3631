"""``samgrid gram``: what the suite installed is in order, and installing it again changes nothing."""

from tests.gram.gram_site import GramSite


def test_the_installation_is_in_order(gram: GramSite) -> None:
    status = gram.register("status")
    assert "jobmanager-samgrid: enabled, GRAM polls" in status
    assert "missing" not in status


def test_a_second_installation_changes_nothing(gram: GramSite) -> None:
    lines = gram.register("install").splitlines()
    assert lines
    assert all(line.startswith("unchanged") for line in lines)
