"""Headless Chromium, as tests use it."""

import shutil
from contextlib import contextmanager

import pytest


@contextmanager
def start_browser():
    """A browser with one tab. Fails, and says what to install, where there is none."""
    from selenium import webdriver

    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if chromium is None or driver is None:
        pytest.fail("no chromium and chromedriver: `make browser` installs them")
    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(option)
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # The driver is named: selenium would look for one on the network.
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield started
    finally:
        started.quit()


def resize(browser, width, height, dark=False):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
