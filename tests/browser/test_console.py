"""The owner's console in a browser (http-binding, "The owner")."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from server.chat.events import BlockDelta, BlockEnd, BlockStart, Refusal
from server.engine import DeviceReport, EngineError, Gpu
from server.http import console
from server.wire.records import Message, NamedTool, TextPart, ToolCallPart, WireError
from tests.browser.conftest import RealSite, Served, Site, Wire, said
from tests.browser.page import SECONDS, Page
from tests.pictures import PNG, image

WIDTHS = (1280, 360)
SCHEMES = ("light", "dark")
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYPj/HwADAgH/p9vKNgAAAABJRU5ErkJggg=="
TOOLS = [
    {
        "name": "find_note",
        "description": "Find notes by their words.",
        "parameters": {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]},
    }
]
THOUGHT = "They want light in the hall. There is a tool for that: room hall, on."
STORY = ("The light", " in the hall is on", " now, at full brightness.", " Say a word", " and I dim")
HISTORY = (
    said("Answer from my notes alone.", "system"),
    said("When does the ferry leave?"),
    {
        "role": "assistant",
        "content": [{"type": "toolCall", "toolCallId": "c1", "name": "find_note", "arguments": {"words": "ferry"}}],
    },
    {"role": "toolResult", "toolCallId": "c1", "toolName": "find_note", "content": said("Ferry: 14:20.")["content"]},
)


def opened(site: Served, page: Page, view: str = "") -> None:
    page.open(site.link)
    page.shows("Live", "#link")
    if view:
        page.visit(view)


def test_the_first_visit_by_link_takes_the_token_out_of_sight(site: Site, page: Page) -> None:
    opened(site, page)
    assert page.driver.current_url == f"{site.url}/"
    page.shows("Nothing waits for your decision.")
    page.driver.refresh()
    page.shows("Live", "#link")
    assert site.owner not in page.driver.page_source


def test_without_the_link_it_asks_for_it(site: Site, page: Page) -> None:
    page.expected = ("401",)
    page.open(site.url)
    field = page.field("Link or owner’s token")
    assert page.focused() == field
    _pictures(page, "sign-in")
    field.send_keys("wrong", Keys.ENTER)
    page.shows("The server does not know this token.")
    assert page.focused() == field
    field.send_keys(site.link, Keys.ENTER)
    page.shows("Live", "#link")


def test_a_consent_is_disclosed_and_allowed(site: Site, page: Page) -> None:
    opened(site, page)
    site.world.chat.capabilities = site.world.chat.capabilities.__class__(
        True, True, True, ("auto", "none", "required", "tool")
    )
    image = {"type": "image", "mimeType": "image/png", "data": IMAGE}
    asking = {"role": "user", "content": [*said("And on Sundays?")["content"], image]}
    answer = site.shell().generate(*HISTORY, asking, tools=TOOLS)
    card = page.named("li.decision", "notes asks for an answer from SmolLM2 135M")
    page.announced("notes asks for an answer from SmolLM2 135M. 1 decision waiting.")
    assert page.driver.title == "(1) Overview – nap-llm"
    for told in (
        "shell desktop\naccount alice\nendpoint window-1",
        "7f3a9c",
        "SmolLM2 135M (SmolLM2-135M)",
        "llama.cpp on this machine",
        "no charge",
        "System messages 1 27 B",
        "User messages 2 ",
        "Images 1 ",
        "Tool definitions 1 ",
        "Tool results 1 13 B",
        "Answer schema 0 –",
        "Continuations 0 –",
        "Tools: find_note",
        "left",
    ):
        assert told in card.text, told
    assert "Answer from my notes alone." not in page.driver.page_source
    page.find("summary", card).click()
    for content in ("Answer from my notes alone.", "find_note({", "Ferry: 14:20.", "Find notes by their words."):
        page.until(lambda words=content: words in card.text)  # type: ignore[misc]
    assert page.find("img", card).get_attribute("src") == f"data:image/png;base64,{IMAGE}"
    page.check_access()
    assert not site.world.engine.runs
    page.press("Allow once", card)
    run = site.run()
    site.soon(run.say, "At 14:20 too.")
    site.soon(run.done)
    assert answer.result(SECONDS)["result"]["content"] == [{"type": "text", "text": "At 14:20 too."}]
    page.shows("Nothing waits for your decision.")
    page.announced("Allowed.")


def test_a_denial_by_keyboard_submits_nothing(site: Site, page: Page) -> None:
    opened(site, page, "Access")
    answer = site.shell().generate()
    # It shows in every view.
    card = page.named("li.decision", "notes asks for an answer from SmolLM2 135M")
    page.tab_to(page.button("Deny", card))
    page.key(Keys.ENTER)
    assert answer.result(SECONDS)["error"]["code"] == "user-cancelled"
    page.lacks("Waiting for you")
    page.announced("Denied. Nothing was submitted.")
    # The focus is somewhere sensible although what had it is gone.
    page.until(lambda: page.focused().tag_name == "h1")
    assert site.world.engine.runs == [] and site.world.starts == []


def test_a_question_withdrawn_leaves_by_itself(site: Site, page: Page) -> None:
    opened(site, page)
    answer = site.shell().generate()
    page.button("Allow once")
    site.tokens.revoke("desktop")
    assert answer.result(SECONDS)["error"]["code"] == "cancelled"
    page.shows("Nothing waits for your decision.")


def test_the_owner_chooses_a_model(site: Site, page: Page) -> None:
    opened(site, page)
    chosen = site.shell("tablet", select="ask").select(tools=True)
    card = page.named("li.decision", "notes asks for a model")
    assert "Needs\ntools" in card.text
    page.named("label.choice input", "Qwen3 4B Qwen3-4B", card).click()
    page.check_access()
    page.press("Use this model", card)
    assert chosen.result(SECONDS)["model"]["model"] == "Qwen3-4B"
    declined = site.shell("phone", select="ask").select()
    page.press("Deny")
    assert declined.result(SECONDS)["error"]["code"] == "user-cancelled"


def test_a_generation_is_watched_and_stopped(site: Site, page: Page) -> None:
    opened(site, page)
    answer = site.shell(consent="always").generate()
    run = site.run()
    page.shows("Queued or in prefill", "#generations-list")
    site.soon(run.say, "The", " ferry", " leaves")
    page.shows("Generating", "#generations-list")
    page.shows("3 tokens", "#generations-list")
    page.shows("tok/s", "#generations-list")
    page.shows("1 live", "#generations-sum")
    site.soon(run.say, " at")
    page.shows("4 tokens", "#generations-list")
    page.press("Stop the generation of notes")
    assert answer.result(SECONDS)["error"]["code"] == "cancelled"
    page.shows("No generation is running.")
    assert run.cancelled


def test_a_token_is_made_copied_and_revoked(site: Site, page: Page) -> None:
    page.expected = ("400",)
    opened(site, page, "Access")
    page.shows("No shell has a token yet.")
    page.fill("Name", "desktop")
    page.choose("Consent to a generation", "Nobody is asked")
    page.shows("Departs from the NAP-LLM specification.")
    page.press("Create token")
    token = page.field("Token").get_attribute("value") or ""
    _pictures(page, "token")
    page.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    page.press("Copy")
    page.shows("Copied.")
    assert page.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])") == token
    page.press("Done")
    assert page.focused() == page.field("Name")
    assert (
        token not in page.driver.page_source
        and page.driver.execute_script("return document.getElementById('made-token').value") == ""
    )
    page.shows("nobody is asked", "#tokens-list")
    policy = site.tokens.find(token)
    assert policy is not None and (policy.name, policy.consent) == ("desktop", "always")

    page.fill("Name", "desktop")
    page.press("Create token")
    page.shows("a token named desktop exists already")
    page.press("Revoke desktop")
    page.shows("Revoke desktop?", "dialog[open]")
    assert page.focused().text == "Keep"
    _pictures(page, "question")
    page.key(Keys.ESCAPE)
    page.shows("nobody is asked", "#tokens-list")
    page.press("Revoke desktop")
    page.press("Revoke")
    page.shows("No shell has a token yet.")
    assert site.tokens.find(token) is None


def test_endpoints_and_accounts_are_ended(site: Site, page: Page) -> None:
    opened(site, page, "Access")
    shell = site.shell(consent="always")
    first = shell.generate()
    page.shows("1 selection", "#endpoints-list")
    page.press("Revoke notes")
    page.press("Revoke")
    assert first.result(SECONDS)["error"]["code"] == "cancelled"
    page.shows("No napplet holds a model or is at work.")
    second = shell.generate()
    page.press("End account alice")
    page.press("End")
    assert second.result(SECONDS)["error"]["code"] == "cancelled"
    page.until(lambda: not page.driver.find_element("id", "accounts").is_displayed())


def test_models_are_loaded_unloaded_and_disabled(site: Site, page: Page) -> None:
    site.world.engine.info = replace(site.world.engine.info, notes=("2 slots, not 8",))
    opened(site, page)
    models = page.region("Models")
    page.press("Load SmolLM2 135M")
    page.shows("1,000 tokens × 8 slots", "#models-list")
    page.shows("2 slots, not 8", "#models-list")
    page.shows("Memory used by models", "#machine")
    page.press("Unload SmolLM2 135M")
    page.shows("Not loaded", "#models-list li:first-child")
    page.press("Disable Qwen3 4B")
    page.press("Disable", page.find("dialog[open]"))
    page.shows("Disabled", "#models-list li:last-child")
    page.press("Enable Qwen3 4B", models)
    page.shows("Not loaded", "#models-list li:last-child")


def test_a_model_that_does_not_load_says_why(site: Site, page: Page) -> None:
    page.expected = ("502",)
    site.world.start_failure = EngineError("the file is no model")
    opened(site, page)
    page.press("Load SmolLM2 135M")
    page.shows("the connection's model cannot be loaded: the file is no model", "#models-list li:first-child")


def test_it_reconnects_and_catches_up(site: Site, page: Page) -> None:
    page.expected = ("ERR_",)
    wire = Wire(site.background, site.url)
    page.open(f"{wire.url}/#token={site.owner}")
    page.shows("Live", "#link")
    wire.cut()
    page.shows("Reconnecting", "#link")
    answer = site.shell().generate()
    wire.mend()
    page.shows("Live", "#link")
    page.press("Deny")
    assert answer.result(SECONDS)["error"]["code"] == "user-cancelled"
    page.open("about:blank")
    wire.cut()


def test_names_cannot_pass_for_others(site: Site, page: Page) -> None:
    opened(site, page)
    site.shell(identity="notes\u202e<b>setag</b>;1").select().result(SECONDS)
    page.visit("Access")
    page.shows("notes⟨U+202E⟩<b>setag</b>", "#endpoints-list")


def test_nothing_foreign_may_run(site: Site, page: Page) -> None:
    page.expected = ("Content Security Policy", "TrustedHTML", "Trusted")
    opened(site, page)
    refused = page.driver.execute_async_script(
        """
        const done = arguments[0];
        addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
        const script = document.createElement("img");
        script.src = "http://127.0.0.1:9/x.png";
        document.body.append(script);
        """
    )
    assert refused == "img-src"
    assert (
        page.driver.execute_script("try { document.body.innerHTML = '' } catch (error) { return error.name }")
        == "TypeError"
    )


def scripted_call(site: Site, *, thinking: bool = False) -> None:
    """A call in three texts, `[call]`, `[room]` and `[on]`; before it `[think]` where the model thinks."""
    index = int(thinking)
    site.world.chat.script = {
        "[think]": [BlockStart(0, "thinking"), BlockDelta(0, THOUGHT), BlockEnd(0)],
        "[call]": [BlockStart(index, "toolCall", name="set_light")],
        "[room]": [BlockDelta(index, '{"room": "hall",')],
        "[on]": [BlockDelta(index, ' "on": true}'), BlockEnd(index)],
    }


def test_the_playground_forces_a_call(compiling_site: Site, page: Page) -> None:
    page.expected = ("400",)
    site = compiling_site
    scripted_call(site)
    opened(site, page, "Playground")
    page.press("Add tool")
    assert page.focused() == page.field("Name")
    page.shows("the grammar says it all")
    page.find(".card summary").click()
    page.shows("root ::=", ".gbnf")
    schema = page.field("Parameters (JSON Schema)")
    good = schema.get_attribute("value") or ""
    schema.clear()
    schema.send_keys('{"type": "object", "properties": {"a": {"type": 5}}}')
    page.shows("/properties/a: type:", ".state")
    schema.clear()
    schema.send_keys("{")
    page.shows("This is no JSON object.", ".state")
    schema.clear()
    schema.send_keys(good)
    page.shows("the grammar says it all", ".state")
    page.choose("Tool choice", "Call set_light")
    page.field("Message").send_keys("Light in the hall!", Keys.ENTER)
    run = site.run()
    assert site.world.chat.conversations[-1].tool_choice == NamedTool("set_light")
    site.soon(run.say, "[call]", "[room]")
    page.shows("Call set_light", "#chat-log")
    page.until(lambda: page.text("#chat-log pre") == '{"room": "hall",')
    site.soon(run.say, "[on]")
    site.soon(run.done)
    page.shows("Calls tools", "#chat-log")
    page.until(lambda: page.focused() == page.field("Result of set_light"))
    page.fill("Result of set_light", "done")
    page.choose("Tool choice", "Auto")
    page.check_access()
    page.press("Send the result")
    second = site.run(1)
    assert [each.role for each in site.world.chat.conversations[-1].messages] == ["user", "assistant", "toolResult"]
    site.soon(second.say, "It is bright.")
    site.soon(second.done)
    page.shows("It is bright.", "#chat-log")
    page.announced("has answered. Complete.")
    page.visit("Access")
    page.shows("this page’s playground", "#tokens-list")
    page.open("about:blank")
    page.until(lambda: site.tokens.list() == ())


@pytest.mark.parametrize("end", ["length", "error", "refusal", "Stop"])
def test_calls_that_were_discarded_are_marked_so(compiling_site: Site, page: Page, end: str) -> None:
    """What came of them stays to be looked at; there is nothing to answer, and the next request says nothing of it."""
    site = compiling_site
    scripted_call(site)
    site.world.chat.script["[no]"] = [Refusal()]
    opened(site, page, "Playground")
    page.press("Add tool")
    page.shows("the grammar says it all")
    page.field("Message").send_keys("Light!", Keys.ENTER)
    run = site.run()
    site.soon(run.say, "[call]", "[room]")
    page.until(lambda: page.text("#chat-log pre") == '{"room": "hall",')
    if end == "Stop":
        page.press("Stop")
    elif end == "error":
        site.soon(run.fail)
    elif end == "refusal":
        site.soon(run.say, "[no]")
    else:
        site.soon(run.done, end)
    page.shows("Call set_light was discarded", "#chat-log .discarded")
    assert page.driver.find_elements("css selector", ".results") == []
    page.check_access()
    page.field("Message").clear()
    page.field("Message").send_keys("Again!", Keys.ENTER)
    second = site.run(1)
    assert not any(
        isinstance(part, ToolCallPart)
        for message in site.world.chat.conversations[-1].messages
        for part in message.content
    )
    site.soon(second.say, "Bright.")
    site.soon(second.done)
    page.shows("Bright.", "#chat-log")


def test_the_playground_stops_an_answer(site: Site, page: Page) -> None:
    opened(site, page, "Playground")
    page.field("Message").send_keys("Count.", Keys.ENTER)
    run = site.run()
    site.soon(run.say, "One.")
    page.shows("One.", "#chat-log")
    page.press("Stop")
    page.shows("Stopped.", "#chat-log")
    site.background.do(run.closed.wait())
    page.until(lambda: page.field("Message").get_attribute("value") == "Count.")


def test_the_playground_tells_connections_apart_that_have_one_model(twin_site: Site, page: Page) -> None:
    opened(twin_site, page, "Playground")
    used = []
    for number, option in enumerate(("Qwen3 4B (creative)", "Qwen3 4B (careful)")):
        page.choose("Model", option)
        page.field("Message").send_keys("Hello.", Keys.ENTER)
        run = twin_site.run(number)
        used.extend(each.connection for each in twin_site.world.runtime.live())
        twin_site.soon(run.say, f"Answer {number}.")
        twin_site.soon(run.done)
        page.shows(f"Answer {number}.", "#chat-log")
        page.until(lambda: page.button("Send"))
    assert used == ["creative", "careful"]
    # What the page itself asks is no question to the person before it.
    assert "asks for a model" not in (page.find("#announcer").get_attribute("textContent") or "")
    page.visit("Overview")
    page.shows("Nothing waits for your decision.")
    # Another one asks, and is answered by a person, who can tell them apart too.
    page.shows("Qwen3 4B (creative)", "#models-list")
    choice = twin_site.shell("tablet", select="ask").select()
    page.named("label.choice input", "Qwen3 4B (creative) Qwen3-4B").click()
    page.press("Use this model")
    choice.result(SECONDS)
    # What is asked about is what is used.
    twin_site.shell("phone").generate()
    page.named("li.decision", "notes asks for an answer from Qwen3 4B (careful)")
    page.press("Deny")


_GIVE = """
const [kind, css, name, type, text] = arguments;
const data = new DataTransfer();
data.items.add(new File([Uint8Array.from(atob(text), (each) => each.charCodeAt(0))], name, { type }));
const given = { bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data };
const event = kind === "paste" ? new ClipboardEvent(kind, given) : new DragEvent(kind, given);
return document.querySelector(css).dispatchEvent(event);
"""


def test_the_playground_sends_images_chosen_pasted_and_dropped(site: Site, page: Page, tmp_path: Path) -> None:
    site.world.chat.capabilities = replace(site.world.chat.capabilities, images=True)
    opened(site, page, "Playground")
    sent = [image(seed, width=64, height=48) for seed in (0, 40, 80)]
    chosen = tmp_path / "hall.png"
    chosen.write_bytes(base64.b64decode(sent[0].data))
    page.button("Add image")
    page.driver.find_element(By.ID, "chat-file").send_keys(str(chosen))
    page.shows("hall.png, ", "#chat-images")
    page.until(lambda: page.focused() == page.field("Message"))

    def give(kind: str, css: str, name: str, type: str, data: str) -> bool:
        """Whether the browser would go on to do what it does by itself."""
        return bool(page.driver.execute_script(_GIVE, kind, css, name, type, data))

    assert not give("paste", "#chat-text", "pasted.png", PNG, sent[1].data)
    page.shows("pasted.png", "#chat-images")
    assert not give("dragover", "#chat-log", "dropped.png", PNG, sent[2].data)
    page.find(".dropping")
    assert not give("drop", "#chat-log", "dropped.png", PNG, sent[2].data)
    page.shows("dropped.png", "#chat-images")
    page.announced("dropped.png will be sent.")
    _pictures(page, "images")
    page.press("Remove pasted.png")
    page.lacks("pasted.png", "#chat-images")
    assert not give("drop", "#chat-log", "page.svg", "image/svg+xml", "PHN2Zy8+")
    page.shows("Only PNG, JPEG and WebP images can be sent.", "#problem")
    site.world.chat.refusal = WireError("quota-exceeded", "the images have more than 99 pixels")
    page.field("Message").send_keys("What changed?", Keys.ENTER)
    page.shows("quota-exceeded: the images have more than 99 pixels", "#chat-log")
    # What was refused is offered to be sent again.
    page.shows("dropped.png", "#chat-images")
    assert page.field("Message").get_attribute("value") == "What changed?"
    site.world.chat.refusal = None
    page.field("Message").send_keys(Keys.ENTER)
    run = site.run()
    assert site.world.chat.conversations[-1].messages == (
        Message("user", (sent[0], sent[2], TextPart("What changed?"))),
    )
    site.soon(run.say, "The light.")
    site.soon(run.done)
    page.shows("The light.", "#chat-log")
    shown = page.driver.find_elements(By.CSS_SELECTOR, "#chat-log .entry:nth-of-type(3) img")
    assert [each.get_attribute("alt") for each in shown] == ["hall.png", "dropped.png"]
    assert shown[0].get_attribute("src") == f"data:image/png;base64,{sent[0].data}"
    assert all(page.driver.execute_script("return arguments[0].naturalWidth", each) == 64 for each in shown)
    page.lacks("hall.png", "#chat-images")
    page.check_access()
    # The picture alone is a message too.
    give("paste", "#chat-text", "again.png", PNG, sent[1].data)
    page.shows("again.png", "#chat-images")
    page.press("Send")
    site.soon(site.run(1).done)
    assert site.world.chat.conversations[-1].messages[-1] == Message("user", (sent[1],))


def test_it_is_good_to_look_at_at_every_width_and_in_both_schemes(
    compiling_site: Site, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures of everything, kept as output; nothing needs scrolling sideways, and axe finds nothing."""
    gpu = Gpu("NVIDIA H200", 150_754_820_096, 113_246_208_000)
    monkeypatch.setattr(console, "device_report", lambda: DeviceReport(("CUDA", "CPU"), (gpu,), 16, 137_438_953_472))
    site = compiling_site
    scripted_call(site, thinking=True)
    opened(site, page)
    page.press("Load SmolLM2 135M")
    always = site.shell("laptop", consent="always", identity="translator;b81d02", account="bob")
    running = [always.generate(), site.shell("kiosk", consent="always", identity="quiz;09ce44").generate()]
    for number in range(2):
        site.soon(site.run(number).say, *["word "] * (40 + 55 * number))
    consent = site.shell().generate(*HISTORY, tools=TOOLS)
    choice = site.shell("tablet", select="ask", identity="sketchbook;c4410e").select(tools=True)
    page.button("Allow once")
    page.button("Use this model")
    page.shows("95 tokens")
    _pictures(page, "overview")
    page.find(".decision summary").click()
    page.shows("Ferry: 14:20.")
    _pictures(page, "content")
    page.press("Deny")
    assert consent.result(SECONDS)["error"]["code"] == "user-cancelled"
    page.lacks("Allow once")
    page.press("Deny")
    assert choice.result(SECONDS)["error"]["code"] == "user-cancelled"
    page.lacks("Use this model")
    _pictures(page, "quiet")
    page.visit("Access")
    _pictures(page, "access")
    page.visit("Playground")
    page.press("Add tool")
    page.shows("the grammar says it all")
    page.find(".card summary").click()
    page.choose("Tool choice", "Call set_light")
    page.field("Message").send_keys("Please put some light on in the hall.", Keys.ENTER)
    site.soon(site.run(2).say, "[think]", "[call]", "[room]", "[on]")
    site.soon(site.run(2).done)
    page.field("Result of set_light")
    _pictures(page, "playground")
    page.fill("Result of set_light", "The light in the hall is on.")
    page.choose("Tool choice", "Auto")
    page.press("Send the result")
    site.soon(site.run(3).say, *STORY)
    page.shows(STORY[-1], "#chat-log")
    _pictures(page, "streaming")
    site.soon(site.run(3).done)
    page.shows("Complete", "#chat-log")
    for number in range(2):
        site.soon(site.run(number).done)
    for each in running:
        assert "result" in each.result(SECONDS)


def _pictures(page: Page, name: str) -> None:
    for width in WIDTHS:
        page.resize(width)
        for scheme in SCHEMES:
            page.scheme(scheme)
            page.shoot(f"{name}-{width}-{scheme}")
            page.check_width()
            page.check_access()
    page.resize(1280)
    page.scheme("light")


def test_a_real_model_is_forced_to_call_then_watched(real_site: RealSite, page: Page) -> None:
    opened(real_site, page, "Playground")
    page.press("Add tool")
    page.shows("the grammar says it all")
    page.choose("Tool choice", "Call set_light")
    page.field("Message").send_keys("Please put some light on in the hall.", Keys.ENTER)
    # Such a small model may go on to call again and again; its first call is what was forced.
    call = page.until(lambda: re.match(r"Call set_light\n(\{[^}]*\})", page.text("#chat-log .call")))
    arguments = json.loads(call[1])
    assert arguments["room"] in ("kitchen", "hall", "office") and isinstance(arguments["on"], bool)
    # Leaving the page ends the playground's token and all its work.
    page.driver.refresh()
    page.visit("Overview")
    page.shows("No generation is running.")
    page.shows("Loaded", "#models-list")
    consent = real_site.shell().generate(*HISTORY, tools=TOOLS)
    page.button("Allow once")
    writer = real_site.shell("laptop", consent="always", identity="storybook;b81d02", account="bob")
    writer.generate(said("Write a long story about a lighthouse keeper and her dog."), temperature=0)
    page.until(lambda: (told := re.search(r"(\d+) tokens", page.text("#generations-list"))) and int(told[1]) > 50)
    # docs/guide.md shows this one.
    page.shoot("real-1280-light")
    page.press("Deny")
    assert consent.result(SECONDS)["error"]["code"] == "user-cancelled"
    real_site.tokens.revoke("laptop")
    page.shows("No generation is running.")
