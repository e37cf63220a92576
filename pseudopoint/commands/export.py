"""A model file of the command line as a file for other runtimes."""

from pathlib import Path

from pseudopoint.commands.kinds import LEVEL, Result
from pseudopoint.commands.steps import load_model
from pseudopoint.export import to_onnx


def export_model(model_file: str | Path, out: str | Path | None = None, level: float = LEVEL) -> Result:
    """Writes the model as an ONNX graph to `out`, by default the model file's name with the ending .onnx. Its inputs
    are the columns of the table as they are (`export.to_onnx`)."""
    kind, _ = load_model(model_file, level)
    place = Path(model_file).with_suffix(".onnx") if out is None else Path(out)
    names = to_onnx(kind.model, place, level=level)
    return {"exported": str(place), "inputs": [column.name for column in kind.encoder.columns], "outputs": names}
