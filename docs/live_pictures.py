"""Pictures of the live page for its tutorial, from pages that are saved: the address holds what they show."""

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import normscope
from normscope.live.session import Session

BAD = {"text": "The film was bad.", "before": "The film was good."}
NOT = {"text": "The film was not good."}

PICTURES: Mapping[str, tuple[Mapping[str, str], tuple[int, int], bool]] = {
    "live_text": (NOT | {"layer": "6", "token": "5"}, (1400, 1210), False),
    "live_change": (BAD, (1400, 1040), False),
    "live_dark": (BAD | {"minus": "before", "layer": "6", "token": "4"}, (1400, 2120), True),
    "live_phone": (BAD, (390, 900), False),
    "live_phone_dark": (BAD, (390, 900), True),
}
"""What each shows, its size, and whether it is dark."""

_FLAGS = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --hide-scrollbars"
_DARK = "--blink-settings=preferredColorScheme=0"
_AS_LIVE = "<style>.saved .choices { display: flex !important; } .saved #keep { display: block !important; }</style>"


def draw(browser: str, images: Path) -> None:
    """Write all pictures, of the default model."""
    session = Session([normscope.load()], 64)
    for name, (state, size, dark) in PICTURES.items():
        page = session.saved_page(state).replace("</head>", f"{_AS_LIVE}</head>", 1)
        _photograph(browser, page, images / f"{name}.png", size, dark=dark)
    session.engine.close(5)


def _photograph(browser: str, page: str, target: Path, size: tuple[int, int], *, dark: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page.html").write_text(page, encoding="utf-8")
        frame = Path(folder) / "frame.html"
        # In a frame, because Chromium's windows are at least 500 pixels wide.
        frame.write_text(
            f'<body style="margin: 0"><iframe src="page.html" style="border: 0; width: {size[0]}px; height: {size[1]}px">'
        )
        flags = [*_FLAGS.split(), *([_DARK] if dark else []), "--virtual-time-budget=20000"]
        where = [f"--user-data-dir={folder}/profile", f"--window-size={size[0]},{size[1]}", f"--screenshot={target}"]
        subprocess.run([browser, *flags, *where, frame.as_uri()], check=True, capture_output=True, timeout=300)
    print(f"docs/images/{target.name}")
