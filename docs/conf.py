"""Sphinx configuration of the documentation site: `python -m sphinx -W -n docs build/site`."""

import os
import subprocess
import sys
from importlib.metadata import version as version_of
from pathlib import Path

project, author, project_copyright = "upsweep", "the upsweep developers", "2026, the upsweep developers"
release = version_of("upsweep")
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.intersphinx", "numpydoc",
    "sphinx_copybutton", "sphinx_design", "sphinx_gallery.gen_gallery",
]  # fmt: skip
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["README.md"]
nitpicky = True

html_theme = "pydata_sphinx_theme"
html_title = f"upsweep {release}"
html_baseurl = "https://upsweep.github.io/upsweep/"
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "github_url": "https://github.com/upsweep/upsweep",
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
# Pages that are no part of a section have no navigation to show.
pages_alone = ("install", "tutorial", "looked_for", "performance", "how_it_works", "scaling")
html_sidebars = {name: [] for name in pages_alone}
html_show_sourcelink = False
html_static_path = ["_static"]  # charts of the performance page, which asv_bench/performance_page.py draws

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

templates_path = ["_templates"]
autosummary_generate = True
autodoc_typehints = "none"  # the numpydoc sections say them
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "capture_repr": (),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "within_subsection_order": "FileNameSortKey",
}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Links to other projects need their inventories: SPHINX_OFFLINE=1 builds without a network.
intersphinx_mapping = (
    {}
    if os.environ.get("SPHINX_OFFLINE")
    else {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "scipy": ("https://docs.scipy.org/doc/scipy", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "dask": ("https://docs.dask.org/en/stable", None),
        "pandas": ("https://pandas.pydata.org/docs", None),
    }
)


# UPSWEEP_ASV=1 publishes the history of the benchmarks in the folder asv. Needs asv and the repository.
def add_link_to_history(app, docname, source):
    if docname == "performance":
        source[0] += '\nOf this build: <a href="asv/index.html">the history of all benchmarks</a>.\n'


def publish_history(app, exception):
    if exception is None and app.builder.format == "html":
        program = Path(app.confdir).parent / "asv_bench" / "publish.py"
        subprocess.run([sys.executable, program, Path(app.outdir) / "asv"], check=True)


def setup(app):
    if os.environ.get("UPSWEEP_ASV"):
        app.connect("source-read", add_link_to_history)
        app.connect("build-finished", publish_history)
