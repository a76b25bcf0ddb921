"""Settings of the whole suite."""

import hypothesis
import pytest
import upsweep
from device_blocks import crossings, cupy_blocks  # noqa: F401  # fixtures
from devices import fake_cuda, fake_cupy  # noqa: F401  # fixtures

hypothesis.settings.register_profile(
    "upsweep", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("upsweep")


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if marked:
        reason = _why_no_cuda()
        for item in marked if reason else []:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_cuda():
    """What keeps the tests marked `cuda` from running here, or None."""
    from upsweep._backends.cuda import library

    try:
        library.check_device(0)
    except (RuntimeError, ImportError) as error:
        return f"no CUDA: {error}"
    return None


def pytest_report_header():
    return f"upsweep {upsweep.__version__}, instruction set {upsweep.show_config()['isa']}"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Compiled formulas go to a folder of this run: what is tested was compiled by what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UPSWEEP_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture
def n_threads_restored():
    before = upsweep.get_num_threads()
    yield before
    upsweep.set_num_threads(before)
