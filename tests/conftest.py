"""Settings of the whole suite."""

import hypothesis
import pytest
import upsweep

hypothesis.settings.register_profile(
    "upsweep", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("upsweep")


def pytest_report_header():
    return f"upsweep {upsweep.__version__}, instruction set {upsweep.show_config()['isa']}"


@pytest.fixture
def n_threads_restored():
    before = upsweep.get_num_threads()
    yield before
    upsweep.set_num_threads(before)
