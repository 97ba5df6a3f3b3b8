"""A browser without a window, where Chromium and its driver are installed."""

import json
import re
import shutil
import zlib
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no page reaches a network
)

#: How long a page may take to draw itself on a busy machine. [s]
PATIENCE = 120


def data_of(page: Path) -> dict[str, Any]:
    """The JSON object that a page is drawn from."""
    [packed] = re.findall(r'id="data">(.*?)</script>', page.read_text())
    return dict(json.loads(zlib.decompress(b64decode(packed))))


@contextmanager
def started(folder: Path) -> Iterator[Any]:
    """A Selenium driver of a Chromium with an empty profile; skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs Chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)) as chrome:
        chrome.set_script_timeout(PATIENCE)
        yield chrome


def opened(driver: Any, page: Path, *, width: int, dark: bool = False, fragment: str = "") -> Any:
    """A driver that has drawn all of a page of `dse report`, in a width and a colour scheme, without complaints."""
    driver.get("about:blank")
    complaints(driver)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(f"{page.as_uri()}#{fragment}")
    until(driver, "return document.documentElement.dataset.ready === 'true'")
    return driver


def until(driver: Any, script: str) -> None:
    """Wait until a script of a page returns true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, PATIENCE).until(lambda shown: shown.execute_script(script))


def complaints(driver: Any) -> list[str]:
    """Errors and warnings of the page so far."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
