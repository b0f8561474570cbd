"""The table of the extras, from records/install-sizes.json."""

from tools.records import link, read_record, table

# What needs each extra.
NEEDED_BY = {
    "images": "PNG, JPEG and other image files in `predict`, `certify`, `attack` and in your own data",
    "serve": "`serve`",
    "plots": "`plot`, and the pictures of `certify`, `reproduce`, `search`, `separation`, `construct` and `lipschitz`",
    "onnx": "`export --onnx`",
    "hub": "`export --hub`, and nets with an address `hf://user/name`",
    "autoattack": "`attack --attacks autoattack`",
    "tensorboard": "`train --tensorboard`",
}


def extras() -> str:
    """Return the table: what each extra is for, and how much it adds."""
    record = read_record("install-sizes")
    rows = [["(none)", "everything else: training, certificates, attacks, reports", str(record["core"]["megabytes"])]]
    rows += [[f"`{name}`", what, str(record[name]["megabytes"])] for name, what in NEEDED_BY.items()]
    note = f"Installed sizes with the CPU build of PyTorch ({link('install-sizes.json')})."
    return table(["extra", "needed by", "adds, MB"], rows) + f"\n{note}\n"
