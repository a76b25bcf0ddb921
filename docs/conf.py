"""Sphinx configuration of the documentation site: `python -m sphinx -W -n docs build/site`."""

import os
from importlib.metadata import version as version_of

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
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
html_show_sourcelink = False

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
