"""A headless Chromium, driven over its debugging pipe with nothing but Python's own library.

    with Browser() as browser:
        page = browser.open("report.html")
        page.evaluate("document.title")
        page.move(200, 300)
        page.screenshot("page.png")

Whatever the page logs as an error, and every exception it does not catch, is in `page.errors`.
"""
import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    """Chromium's path, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    def __init__(self, width=1280, height=900):
        self.size = (width, height)

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to_browser = os.pipe()
        self.from_browser, to_write = os.pipe()

        def take_places():  # Chromium reads commands on descriptor 3 and answers on 4
            os.dup2(os.dup(to_read), 3)
            os.dup2(os.dup(to_write), 4)

        for descriptor in (to_read, to_write):  # out of the way of 3 and 4
            os.set_inheritable(descriptor, True)
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}",
             f"--window-size={self.size[0]},{self.size[1]}", "about:blank"],
            preexec_fn=take_places, close_fds=False, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number, self.pending, self.pages = 0, b"", {}
        return self

    def __exit__(self, *_):
        try:
            self.send("Browser.close")
            self.process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
        self.folder.cleanup()

    def receive(self):
        while b"\0" not in self.pending:
            part = os.read(self.from_browser, 1 << 16)
            if not part:
                raise RuntimeError("Chromium ended")
            self.pending += part
        message, self.pending = self.pending.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, session=None, **parameters):
        """Sends a command and waits for its answer; events that arrive meanwhile are passed to the pages."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        os.write(self.to_browser, json.dumps(command).encode() + b"\0")
        while True:
            message = self.receive()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            if message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].happened(message)

    def open(self, path, fragment=""):
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        self.pages[session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.resize(*self.size)
        page.prefer("light")
        page.send("Page.navigate", url=pathlib.Path(path).resolve().as_uri() + fragment)
        page.wait_for("document.readyState === 'complete'")
        return page


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.errors, self.requests = [], []
        self.choosers = []  # input elements that asked for a file

    def send(self, method, **parameters):
        return self.browser.send(method, self.session, **parameters)

    def happened(self, message):
        method, parameters = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Page.fileChooserOpened":
            self.choosers.append(parameters["backendNodeId"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def evaluate(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def wait_for(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise RuntimeError(f"in {seconds} s this did not become true: {condition}")
            time.sleep(0.05)

    def resize(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme):
        # Without motion: what scrolls on its own would move away from under the pointer.
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme},
                                                          {"name": "prefers-reduced-motion", "value": "reduce"}])

    def box(self, selector):
        """Where an element is on the screen, scrolled into view: left, top, width, height."""
        return self.evaluate(f"""(() => {{
            const node = document.querySelector({json.dumps(selector)});
            node.scrollIntoView({{block: "center", behavior: "instant"}});
            const box = node.getBoundingClientRect();
            return [box.left, box.top, box.width, box.height];
        }})()""")

    def mouse(self, kind, x, y, **more):
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move(self, x, y):
        self.mouse("mouseMoved", x, y)

    def drag(self, x0, x1, y):
        self.move(x0, y)
        self.mouse("mousePressed", x0, y, button="left", buttons=1, clickCount=1)
        for k in range(1, 5):
            self.mouse("mouseMoved", x0 + (x1 - x0) * k / 4, y, button="left", buttons=1)
        self.mouse("mouseReleased", x1, y, button="left", clickCount=1)

    def click(self, selector):
        left, top, width, height = self.box(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, left + width / 2, top + height / 2, button="left", clickCount=1)

    def touch(self, selector, x=0.5, y=0.5):
        """A tap with a finger, at shares of the element's width and height."""
        self.send("Emulation.setTouchEmulationEnabled", enabled=True)  # also enlarges controls, so before the box
        left, top, width, height = self.box(selector)
        point = {"x": left + width * x, "y": top + height * y}
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[point])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.send("Emulation.setTouchEmulationEnabled", enabled=False)

    def choose_file(self, selector, path):
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(pathlib.Path(path).resolve())])

    def answer_chooser(self, use, selector, path):
        """Uses a control that opens the system's dialog for files, and chooses one there."""
        self.send("Page.setInterceptFileChooserDialog", enabled=True)
        use(selector)
        end = time.monotonic() + 5
        while not self.choosers and time.monotonic() < end:
            self.evaluate("new Promise((done) => setTimeout(done, 50))")
        self.send("DOM.setFileInputFiles", backendNodeId=self.choosers.pop(), files=[str(pathlib.Path(path).resolve())])
        self.send("Page.setInterceptFileChooserDialog", enabled=False)

    def press_on(self, selector, key=" "):
        """A key on an element that has the focus."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.press(key)

    def type(self, selector, text):
        self.evaluate(f"(() => {{ const n = document.querySelector({json.dumps(selector)}); n.focus(); n.select(); }})()")
        self.send("Input.insertText", text=text)

    def press(self, key):
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path, whole=False):
        clip = {}
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        image = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(image))

    def print(self, path):
        pdf = self.send("Page.printToPDF", printBackground=True)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(pdf))
