"""Tests the server's page in a real browser: `page_browser.py build/cpu/nibble [--screenshots FOLDER]`

Starts `nibble serve` with tests/data/chat, drives headless Chromium (Debian's chromium and chromium-driver, selenium
from PyPI; tools/setup --test installs them) and runs every function whose name begins with test_. Without a browser the
test fails with a message. Script errors, requests to other addresses and text with a contrast below 4.5 are never
allowed.
"""
import argparse
import inspect
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(HERE, "..", "..", ".venv", "bin", "python")
try:
    from selenium import webdriver
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    if os.path.exists(VENV) and not os.environ.get("NIBBLE_IN_VENV"):
        os.execve(VENV, [VENV, *sys.argv], {**os.environ, "NIBBLE_IN_VENV": "1"})
    sys.exit("page_browser: the Python package selenium is not installed; run tools/setup --test")

SECONDS = 120.0  # timeout; results do not depend on it
MODEL = os.path.join(HERE, "..", "data", "chat")


class Server:
    def __init__(self, program, port, *flags, model=MODEL):
        self.program, self.port, self.flags, self.model = program, port, flags, model
        self.url = f"http://127.0.0.1:{port}"
        self.start()

    def start(self):
        self.process = subprocess.Popen([self.program, "serve", self.model, "--port", str(self.port), "--kv-memory", "64M", "--quiet",
                                         "--served-model-name", "tiny", *self.flags])
        wait(self.ready, "the server")

    def ready(self):
        assert self.process.poll() is None, "the server ended"
        try:
            return urllib.request.urlopen(self.url + "/health", timeout=5).status == 200
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait(SECONDS)

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        return json.load(urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=SECONDS))

    def metric(self, name):
        text = urllib.request.urlopen(self.url + "/metrics", timeout=SECONDS).read().decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait(done, what):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        value = done()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


class Page:
    """A browser window. Every method waits for its condition."""

    def __init__(self, server, screenshots):
        tools = [shutil.which(name) for name in ("chromium", "chromedriver")]
        if not all(tools):
            sys.exit("page_browser: chromium or chromedriver is not installed; run tools/setup --test")
        self.server, self.screenshots = server, screenshots
        self.profile = tempfile.TemporaryDirectory()
        options = webdriver.ChromeOptions()
        options.binary_location = tools[0]
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", f"--user-data-dir={self.profile.name}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(tools[1]))
        self.driver.set_page_load_timeout(SECONDS)
        self.driver.set_script_timeout(SECONDS)
        self.window(1100, 800)

    def window(self, width, height, phone=False):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "mobile": phone,
                                                                          "deviceScaleFactor": 2 if phone else 1})

    def scheme(self, name):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                    {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def open(self, fragment="", fresh=True):
        self.driver.get("about:blank")
        self.driver.get(self.server.url + "/" + fragment)
        if fresh:
            self.js("localStorage.clear(); sessionStorage.clear()")
            self.driver.get("about:blank")
            self.driver.get(self.server.url + "/" + fragment)

    def js(self, script, *values):
        return self.driver.execute_script(script, *values)

    def one(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css):
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css):
        return self.js("const e = document.querySelectorAll(arguments[0]); return e.length ? e[e.length - 1].textContent : ''", css)

    def set(self, **knobs):
        self.js("document.getElementById('settings').open = true")
        for name, value in knobs.items():
            field = self.one("#" + name)
            if isinstance(value, bool):
                if field.is_selected() != value:
                    field.click()
            else:
                field.clear()
                field.send_keys(str(value))
        self.js("document.getElementById('settings').open = false")

    def send(self, text, key=Keys.ENTER):
        self.one("#say").send_keys(text + key)

    def answered(self):
        wait(lambda: re.search(r"\d+ tokens", self.text(".assistant .note")) or self.text(".assistant .why"), "an answer")
        wait(lambda: self.text("#go") == "Send", "the answer's end")
        assert not self.text(".assistant .why"), self.text(".assistant .why")
        return self.text(".assistant .body")

    def slow(self, bytes_per_second):
        self.driver.set_network_conditions(latency=0, download_throughput=bytes_per_second, upload_throughput=1 << 20)

    def fast(self):
        self.driver.delete_network_conditions()

    def shoot(self, name):
        if self.screenshots:
            os.makedirs(self.screenshots, exist_ok=True)
            self.driver.save_screenshot(os.path.join(self.screenshots, name + ".png"))

    def complaints(self, allowed=()):
        """Returns errors of the console and requests to other addresses."""
        bad = [e["message"] for e in self.driver.get_log("browser") if e["level"] == "SEVERE"]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith((self.server.url, "about:", "data:", "chrome:")):
                    bad.append("a request to " + url)
        return [b for b in bad if not any(a in b for a in allowed)]


def asked(server, text, **more):
    body = {"messages": [{"role": "user", "content": text}], **more}
    return server.ask("/v1/chat/completions", body)["choices"][0]["message"]["content"]


def long_seed(server, text):
    """Returns a seed whose answer does not end within 900 tokens."""
    for seed in range(500):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 900, "seed": seed, "temperature": 1}
        if server.ask("/v1/chat/completions", body)["choices"][0]["finish_reason"] == "length":
            return seed
    raise AssertionError("every answer ends early")


def plain(text):
    """Returns text without characters that Markdown rendering removes or adds."""
    return re.sub(r"[\s*_`#>|~\-+\d.)\[\]]+", "", text)


def test_a_message_is_streamed(page, server):
    page.open()
    wait(lambda: "tiny · 1024 tokens" in page.text("#model"), "the model's name")
    assert page.driver.title == "tiny · nibble"
    page.set(max_tokens=200, seed=5, temperature=1)
    page.slow(24000)
    page.send("hello")
    assert page.text(".user .body") == "hello" and not page.one("#say").get_attribute("value")
    lengths = set()
    wait(lambda: lengths.add(len(page.text(".assistant .body"))) or len(lengths) > 4, "pieces of the answer")
    assert page.text("#go") == "Stop"
    page.fast()
    shown = page.answered()
    assert plain(shown) == plain(asked(server, "hello", max_tokens=200, seed=5, temperature=1))
    assert re.search(r"200 tokens · [\d.]+ tokens/s · first after \d+ ms · stopped at the token limit", page.text(".assistant .note"))


def test_reload_keeps_the_conversation(page, server):
    before = page.js("return [...document.querySelectorAll('.body')].map(b => b.textContent)")
    page.driver.refresh()
    wait(lambda: page.js("return document.querySelectorAll('.turn').length") == 2, "the conversation")
    assert page.js("return [...document.querySelectorAll('.body')].map(b => b.textContent)") == before
    assert page.one("#seed").get_attribute("value") == "5"


def test_retry_and_edit(page, server):
    first = page.text(".assistant .body")
    page.all(".assistant .act")[-1].click()
    assert page.answered() == first  # the same seed
    page.one("#say").send_keys(Keys.ARROW_UP)
    assert page.one("#say").get_attribute("value") == "hello" and not page.all(".turn")
    page.send(" you")
    assert plain(page.answered()) == plain(asked(server, "hello you", max_tokens=200, seed=5, temperature=1))
    page.all(".user .act")[-1].click()
    assert page.one("#say").get_attribute("value") == "hello you"
    page.one("#say").clear()


def test_stop(page, server):
    page.open()
    page.set(max_tokens=900, seed=long_seed(server, "again"), temperature=1)
    for how in ("button", "escape", "new"):
        page.js("document.getElementById('fresh').click()")
        page.slow(12000)
        page.send("again")
        wait(lambda: len(page.text(".assistant .body")) > 5, "a piece")
        if how == "button":
            page.one("#go").click()
        elif how == "escape":
            page.one("#say").send_keys(Keys.ESCAPE)
        else:
            page.one("#fresh").click()
        wait(lambda: page.text("#go") == "Send", "the end")
        page.fast()
        if how == "new":
            assert not page.all(".turn")
        else:
            said = page.text(".assistant .note"), page.text(".assistant .why")
            assert "stopped" in said[0] and not said[1], (how, said)
    wait(lambda: server.metric("vllm:num_requests_running") == 0, "the engine to stop")


def test_alternatives_on_hover_and_by_keyboard(page, server):
    page.open()
    page.set(max_tokens=12, seed=2, temperature=1, alternatives=True)
    page.send("hello")
    page.answered()
    tokens = page.all(".assistant .tok")
    assert len(tokens) == 12
    ActionChains(page.driver).move_to_element(tokens[3]).perform()
    wait(lambda: page.one("#tip").is_displayed(), "the alternatives")
    rows = page.all("#tip tr")
    assert 6 <= len(rows) <= 7 and len(page.all("#tip tr.chosen")) == 1
    shares = [float(re.search(r"([\d.]+) %", r.text).group(1)) for r in rows]
    assert 0 < sum(shares) <= 100.5, shares
    truth = server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "seed": 2,
                                                "temperature": 1, "logprobs": True, "top_logprobs": 6})
    entry = truth["choices"][0]["logprobs"]["content"][3]
    best = 100 * 2.718281828459045 ** entry["top_logprobs"][0]["logprob"]
    assert any(abs(share - best) < 0.06 for share in shares), (shares, best)
    page.shoot("alternatives")
    ActionChains(page.driver).move_to_element(page.one("#say")).perform()
    wait(lambda: not page.one("#tip").is_displayed(), "the alternatives to go")
    page.js("document.querySelector('.assistant .toks').focus()")
    body = page.one(".assistant .toks")
    body.send_keys(Keys.ARROW_RIGHT)
    body.send_keys(Keys.ARROW_RIGHT)
    wait(lambda: page.one("#tip").is_displayed(), "the alternatives by keyboard")
    body.send_keys(Keys.ESCAPE)
    wait(lambda: not page.one("#tip").is_displayed(), "the alternatives to go")
    page.driver.refresh()
    wait(lambda: len(page.all(".assistant .tok")) == 12, "the tokens after a reload")


def test_two_tabs(page, server):
    page.open()
    page.set(max_tokens=300, seed=7, temperature=1)
    first = page.driver.current_window_handle
    page.slow(16000)
    page.send("one")
    page.driver.switch_to.new_window("tab")
    page.driver.get(server.url + "/")
    assert not page.all(".turn")  # a new conversation
    page.send("two")
    page.answered()
    assert page.text(".user .body") == "two"
    second = page.driver.current_window_handle
    page.driver.switch_to.window(first)
    page.fast()
    page.answered()
    page.driver.refresh()
    wait(lambda: page.text(".user .body") == "one", "the first tab's conversation")
    page.driver.switch_to.window(second)
    page.driver.refresh()
    wait(lambda: page.text(".user .body") == "two", "the second tab's conversation")
    page.driver.close()
    page.driver.switch_to.window(first)


def endless_model(folder):
    """Copies the model without an end token and with room for 100,000 tokens, which take minutes. So an answer cannot
    be complete when a part of it is seen.
    """
    copy = shutil.copytree(MODEL, os.path.join(folder, "endless"))
    for name, changes in (("config.json", {"max_position_embeddings": 1 << 17, "eos_token_id": None}),
                          ("tokenizer_config.json", {"eos_token": None})):
        with open(os.path.join(copy, name), encoding="utf-8") as file:
            values = {**json.load(file), **changes}
        with open(os.path.join(copy, name), "w", encoding="utf-8") as file:
            json.dump({key: value for key, value in values.items() if value is not None}, file)
    return copy


def test_server_restart_under_the_page(page, server, program):
    server.kill()  # the endless server takes its port, so the page stays the same
    with tempfile.TemporaryDirectory() as folder:
        other = Server(program, server.port, model=endless_model(folder))
        try:
            page.open()
            page.set(max_tokens=100000, temperature=1)
            page.send("hello")
            wait(lambda: len(page.text(".assistant .body")) > 5, "a piece")
            said = page.text("#go"), page.text(".assistant .why")
            assert said == ("Stop", ""), said
            other.kill()
            wait(lambda: page.text(".assistant .why"), "the page to notice")
            wait(lambda: page.text("#go") == "Send", "the answer's end")
            assert len(page.text(".assistant .body")) > 5  # the received text is still there
            wait(lambda: "cannot be reached" in page.text("#model"), "the header to say so")
            page.set(max_tokens=6)
            page.all(".assistant .act")[-1].click()
            wait(lambda: "cannot be reached" in page.text(".assistant .why"), "the page to say so")
            page.shoot("gone")
            other.start()
            wait(lambda: "tiny" in page.text("#model"), "the page to see the server again")
            page.all(".assistant .act")[-1].click()
            page.answered()
            assert page.text(".assistant .note").startswith("6 tokens"), page.text(".assistant .note")
        finally:
            other.kill()
            server.start()
    page.complaints()  # refused and broken connections in the log are expected


def test_live_tab(page, server):
    page.open()
    page.one("#tab-live").click()
    for card in ("requests", "tokens", "cache", "ttft", "itl", "sums", "formats", "layers"):
        wait(lambda c=card: page.all("#card-" + c), "the card " + card)
    asked(server, "hello", max_tokens=30)
    before = server.metric("vllm:generation_tokens_total")
    wait(lambda: f"{before:.0f}" in page.text("#card-sums") or before >= 1e4, "the sums")
    wait(lambda: "median" in page.text("#card-ttft"), "the histogram")
    facts = server.ask("/v1/manifest")["profile"]
    table = page.text("#card-layers")
    assert facts["layers"]
    for row in facts["layers"]:
        assert row["module"] in table and row["weights"] in table and row["kernel"] in table, row
    page.one("#tab-live").send_keys(Keys.ARROW_LEFT)
    assert page.one("#chat").is_displayed() and page.one("#tab-chat").get_attribute("aria-selected") == "true"


CONTRAST = """
const rgb = c => { const k = document.createElement('canvas').getContext('2d', {willReadFrequently: true}); k.fillStyle = c;
                   k.fillRect(0, 0, 1, 1); return [...k.getImageData(0, 0, 1, 1).data]; };
const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
                    .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
const bad = [];
for (const e of document.querySelectorAll('body *')) {
  if (!e.offsetParent || ![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
  let b = e, back = [0, 0, 0, 0];
  for (; b && back[3] < 255; b = b.parentElement) { const c = rgb(getComputedStyle(b).backgroundColor); if (c[3] === 255) back = c; }
  const [a, z] = [light(rgb(getComputedStyle(e).color)), light(back)].sort((x, y) => y - x);
  if ((a + 0.05) / (z + 0.05) < 4.5) bad.push(e.tagName + '.' + e.className + ' ' + ((a + 0.05) / (z + 0.05)).toFixed(2));
}
return bad;"""


def test_light_dark_and_phone(page, server):
    page.open()
    page.set(max_tokens=60, seed=4, temperature=1)
    page.send("What does a page look like? With two lines, and a word that is too long for a phone: " + "x" * 90)
    page.answered()
    for phone in (False, True):
        page.window(*((390, 844, True) if phone else (1100, 800)))
        backs = set()
        for scheme in ("light", "dark"):
            page.scheme(scheme)
            for tab in ("chat", "live"):
                page.one("#tab-" + tab).click()
                if tab == "live":
                    wait(lambda: page.all("#card-layers"), "the live cards")
                backs.add((tab, page.js("return getComputedStyle(document.body).backgroundColor")))
                assert page.js("return document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"
                wide = page.js("return [...document.querySelectorAll('header *, form *, .card')].filter(e => e.offsetParent && "
                               "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '#' + e.id)")
                assert not wide, wide
                bad = page.js(CONTRAST)
                assert not bad, (scheme, tab, bad)
                page.shoot(f"{tab}-{scheme}" + ("-phone" if phone else ""))
            page.one("#tab-chat").click()
            small = page.js("return [...document.querySelectorAll('header button, #go')].filter(e => e.offsetParent && "
                            "e.getBoundingClientRect().height < 28).map(e => e.id)")
            assert not small, small
        assert len(backs) == 4, backs
    page.scheme("light")
    page.window(1100, 800)


def test_keyboard_alone(page, server):
    page.open()
    page.set(max_tokens=5, seed=4)
    page.js("document.getElementById('say').focus()")
    say = page.driver.switch_to.active_element
    say.send_keys("two" + Keys.SHIFT + Keys.ENTER + Keys.NULL + "lines")
    assert say.get_attribute("value") == "two\nlines" and not page.all(".turn")
    say.send_keys(Keys.ENTER)
    page.answered()
    seen = []
    for _ in range(30):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        seen.append(page.js("const e = document.activeElement; return e.id || e.className || e.tagName"))
    for name in ("tab-chat", "fresh", "say", "go", "SUMMARY"):
        assert name in seen, (name, seen)
    assert any("act" in name for name in seen), seen
    ActionChains(page.driver).key_down(Keys.ALT).send_keys("n").key_up(Keys.ALT).perform()
    wait(lambda: not page.all(".turn"), "a new conversation")


def test_markdown_is_safe(page, server):
    page.open()
    made = page.js("const d = document.createElement('div'); d.innerHTML = markdown(arguments[0]); return d.innerHTML",
                   "# Head\n\n**bold** *it* `a<b` <img src=x onerror=alert(1)> [x](javascript:alert(1)) [y](https://e.org/\"onx=1)\n\n"
                   "- one\n- two\n\n1. a\n\n| a | b |\n|---|---|\n| 1 | <script>x</script> |\n\n```html\n<b>x</b>\n```\n> said")
    for part in ("<h1>Head</h1>", "<strong>bold</strong>", "<em>it</em>", "<code>a&lt;b</code>", "<ul><li>one</li>", "<ol>", "<td>1</td>",
                 "&lt;b&gt;x&lt;/b&gt;", "<blockquote>"):
        assert part in made, (part, made)
    for part in ("<img", "<script", "href=\"javascript", " onx="):
        assert part not in made, (part, made)


def test_api_key(page, server, program):
    locked = Server(program, free_port(), "--api-key", "secret")
    try:
        page.driver.get(locked.url + "/")
        wait(lambda: "API key" in page.text("#model"), "the page to ask for a key")
        page.set(key="secret", max_tokens=4)
        wait(lambda: "tiny" in page.text("#model"), "the model's name")
        page.send("hello")
        page.answered()
    finally:
        locked.kill()
    page.complaints()  # the other port and status 401 are expected


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--screenshots", default="")
    parser.add_argument("--only", default="", help="run tests whose name contains it")
    parser.add_argument("--times", type=int, default=1, help="run them so often")
    arguments = parser.parse_args()
    server = Server(arguments.program, free_port())
    page = Page(server, arguments.screenshots)
    failed = 0
    try:
        chosen = [(name, test) for name, test in globals().items() if name.startswith("test_") and arguments.only in name]
        for name, test in chosen * arguments.times:
            try:
                test(page, server, *([arguments.program] if "program" in inspect.signature(test).parameters else []))
                bad = page.complaints(allowed=("net::ERR_ABORTED",))
                assert not bad, bad
                print(f"{name}: ok", flush=True)
            except Exception as error:  # continue with the next test
                failed += 1
                page.shoot("failed-" + name)
                page.complaints()
                at = traceback.extract_tb(error.__traceback__)[-1]
                print(f"{name}: FAILED: line {at.lineno}, {at.line}: {type(error).__name__}: {error}", flush=True)
    finally:
        page.driver.quit()
        server.kill()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
