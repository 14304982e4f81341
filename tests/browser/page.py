"""One tab, as a person uses it: by names, labels and roles. Everything waits for a condition, nothing for a time."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

T = TypeVar("T")

SECONDS = 60
"""How long anything may take before it counts as not happening."""

AXE = files("axe_core_python").joinpath("axe.min.js")


class Page:
    def __init__(self, driver: webdriver.Chrome, output: Path) -> None:
        self.driver = driver
        self._output = output
        self._home = driver.current_window_handle
        # What an earlier tab said at its end is not about this one.
        driver.get_log("browser")
        driver.switch_to.new_window("tab")
        self._wait = WebDriverWait(
            driver,
            SECONDS,
            poll_frequency=0.02,
            ignored_exceptions=(NoSuchElementException, StaleElementReferenceException),
        )
        self.expected: tuple[str, ...] = ()
        """Complaints of the browser that belong to the test."""

    def close(self) -> None:
        complaints = [each["message"] for each in self.driver.get_log("browser")]
        self.driver.close()
        self.driver.switch_to.window(self._home)
        unexpected = [each for each in complaints if not any(words in each for words in self.expected)]
        assert not unexpected, unexpected

    def open(self, url: str) -> None:
        self.driver.get(url)

    def until(self, condition: Callable[[], T]) -> T:
        try:
            return self._wait.until(lambda _: condition())
        except TimeoutException:
            raise AssertionError(
                f"not within {SECONDS} s; the page ({self.shoot('failure')}) says:\n{self.text()}"
            ) from None

    # --- finding

    def find(self, css: str, within: WebElement | None = None) -> WebElement:
        return self.until(lambda: next(filter(WebElement.is_displayed, self._all(css, within)), None))  # type: ignore[return-value]

    def _all(self, css: str, within: WebElement | None = None) -> list[WebElement]:
        return (within or self.driver).find_elements(By.CSS_SELECTOR, css)

    def named(self, css: str, name: str, within: WebElement | None = None) -> WebElement:
        """The visible element whose accessible name is this."""
        return self.until(
            lambda: next(
                (each for each in self._all(css, within) if each.is_displayed() and each.accessible_name == name), None
            )
        )  # type: ignore[return-value]

    def button(self, name: str, within: WebElement | None = None) -> WebElement:
        return self.named("button", name, within)

    def field(self, name: str) -> WebElement:
        return self.named("input, select, textarea", name)

    def region(self, title: str) -> WebElement:
        return self.named("section", title)

    # --- doing

    def press(self, name: str, within: WebElement | None = None) -> None:
        self.button(name, within).click()

    def fill(self, label: str, text: str) -> None:
        field = self.field(label)
        field.clear()
        field.send_keys(text)

    def choose(self, label: str, option: str) -> None:
        field = self.field(label)
        self.until(lambda: [each for each in field.find_elements(By.TAG_NAME, "option") if each.text == option])[
            0
        ].click()

    def visit(self, view: str) -> None:
        self.named("nav a", view).click()

    def key(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def tab_to(self, element: WebElement, *, most: int = 60) -> None:
        """Reaches the element by the Tab key alone."""
        for _ in range(most):
            if self.focused() == element:
                return
            self.key(Keys.TAB)
        raise AssertionError("the Tab key does not lead there")

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    # --- reading

    def shows(self, text: str, css: str = "body") -> None:
        self.until(lambda: text in self.text(css))

    def lacks(self, text: str, css: str = "body") -> None:
        self.until(lambda: text not in self.text(css))

    def text(self, css: str = "body") -> str:
        return self.driver.find_element(By.CSS_SELECTOR, css).text

    def announced(self, text: str) -> None:
        """Waits until screen readers are told this."""
        self.until(lambda: text in (self.driver.find_element(By.ID, "announcer").get_attribute("textContent") or ""))

    # --- looks

    def resize(self, width: int, height: int = 900) -> None:
        # A window has a least width; the emulated screen has none.
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def scheme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def shoot(self, name: str) -> Path:
        """A picture of the whole page, kept as the tests' output."""
        self._output.mkdir(exist_ok=True)
        path = self._output / f"{name}.png"
        height = self.driver.execute_script("return Math.ceil(document.body.getBoundingClientRect().height)")
        width = self.driver.execute_script("return document.documentElement.clientWidth")
        self.resize(width, height)
        path.write_bytes(self.driver.get_screenshot_as_png())
        self.resize(width)
        return path

    def check_width(self) -> None:
        """Nothing may need scrolling sideways."""
        measure = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        content, width = self.driver.execute_script(measure)
        assert content <= width, (content, width)

    def check_access(self) -> None:
        """axe-core finds nothing serious, nor anything moderate."""
        if not self.driver.execute_script("return 'axe' in window"):
            self.driver.execute_script(AXE.read_text(encoding="utf-8"))
        found: list[dict[str, Any]] = self.driver.execute_async_script(
            "const done = arguments[0];"
            "axe.run().then((result) => done(result.violations), (error) => done([{id: String(error)}]))"
        )
        told = [(each["id"], each.get("impact"), [node["html"] for node in each.get("nodes", ())]) for each in found]
        grave = [each for each in told if each[1] != "minor"]
        assert not grave, grave
