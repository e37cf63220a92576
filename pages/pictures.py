"""Draws the pictures of the pages into docs/: python pages/pictures.py.

Those of the gallery are drawn by the page's own blocks, so that what stands beside a picture is what made it.
"""

import os
import re
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def run_page(page: Path) -> None:
    """Runs the Python of a page, in its order."""
    exec(compile("\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))), str(page), "exec"), {})


if __name__ == "__main__":
    # Programs that run a few times: most of the time is their compilation.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
    os.chdir(ROOT / "docs")
    sys.path.insert(0, str(ROOT))
    sys.argv = ["readme_figure.py", "fit.png"]
    runpy.run_path(str(ROOT / "examples" / "readme_figure.py"))
    run_page(Path("gallery.md"))
    runpy.run_path(str(HERE / "methods.py"), run_name="__main__")
