"""What mkdocs does beside its plugins: files of the repository that a page links to are part of the site.

Pages are read in the repository too, where `../README.md` or a file of rows is beside them. On the site such a file
stands under `repository/`, with its links followed in turn, so that no link leads out of the site.
"""

import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.M | re.S)


def _source(file: File) -> Path:
    return Path(str(file.abs_src_path)).resolve()


def _address(path: Path) -> str:
    """Where a file of the repository stands among the sources of the site."""
    path = path.resolve()
    return str(path.relative_to(DOCS) if path.is_relative_to(DOCS) else "repository" / path.relative_to(ROOT))


def _linked(source: Path) -> list[Path]:
    """The files that the Markdown of a page links to."""
    if source.suffix != ".md":
        return []
    prose = FENCE.sub("", source.read_text(encoding="utf-8"))
    found = [source.parent / link for _, link, _ in LINK.findall(prose) if not re.match(r"[a-z]+:", link)]
    return [path.resolve() for path in found if path.is_file()]


def on_files(files: Files, config) -> Files:
    """Adds the files outside of docs/ that pages link to, and those that these link to."""
    waiting = [_source(file) for file in files]
    while waiting:
        for path in _linked(waiting.pop()):
            address = _address(path)
            if files.get_file_from_path(address) is None:
                files.append(File.generated(config, address, abs_src_path=str(path)))
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Links to files outside of docs/ lead to their copies."""
    source, here = _source(page.file), Path(page.file.src_uri).parent

    def moved(match: re.Match) -> str:
        target = source.parent / match[2]
        if re.match(r"[a-z]+:", match[2]) or not target.is_file():
            return match[0]
        up = "../" * len(here.parts)
        return f"{match[1]}{up}{_address(target)}{match[3]}"

    parts = FENCE.split(markdown)  # every other part is a block of code
    return "".join(part if i % 2 else LINK.sub(moved, part) for i, part in enumerate(parts))
