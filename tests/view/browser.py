"""Headless Chromium, as tests use it: where it is, what is on the page, what its console says."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

# The view of the address is there, and what it asked for later; a filter changes the address and nothing else.
READY = """
const of = (hash) => (hash ?? "none").replace(/[?&]hide=[^&]*/, "");
const main = document.getElementById("main");
return main && of(main.dataset.shown) === of(location.hash) && !document.querySelector("[aria-busy]");
"""


class Browser:
    """One tab."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> "Browser":
        """Load an address afresh and wait until all of it is shown."""
        self.driver.get("about:blank")
        self.driver.get(url)
        return self.wait()

    def wait(self) -> "Browser":
        WebDriverWait(self.driver, 30, 0.05).until(lambda driver: driver.execute_script(READY))
        return self

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """What is read in each such element."""
        return [one.text for one in self.all(selector)]

    def one(self, selector: str, text: str | None = None) -> WebElement:
        """The element, or the one that has this text."""
        found = [one for one in self.all(selector) if text is None or one.text == text]
        assert found, f"no {selector} {text or ''} on {self.driver.current_url}: {self.main}"
        return found[0]

    def click(self, selector: str, text: str | None = None) -> "Browser":
        self.one(selector, text).click()
        return self.wait()

    def press(self, *keys: str) -> "Browser":
        """Keys on the page itself."""
        self.one("body").send_keys(*keys)
        return self.wait()

    def fill(self, label: str, text: str) -> "Browser":
        """Type into the field of this name, and Enter."""
        field = next(one for one in self.all("label.field") if one.text == label)
        (entry,) = field.find_elements("css selector", "input")
        entry.clear()
        entry.send_keys(text, Keys.ENTER)
        return self.wait()

    @property
    def main(self) -> str:
        return self.one("main").text

    @property
    def place(self) -> str:
        """The part of the address that says what is shown."""
        return str(self.driver.current_url).partition("#")[2]

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def complaints(self) -> list[str]:
        """What the console has said since it was asked last, but for answers that are errors."""
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [line["message"] for line in log if "Failed to load resource" not in line["message"]]


@contextmanager
def start_browser() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(option)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # The driver is named: selenium would look for one on the network.
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver") or ""))
    try:
        started = Browser(driver)
        started.resize(1280, 860)
        yield started
    finally:
        driver.quit()
