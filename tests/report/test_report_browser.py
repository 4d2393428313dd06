"""The page in a browser: it fetches nothing, runs nothing but its own script, and can be read everywhere."""

import shutil

import pytest

from report_cases import hostile_table, table

BROWSER = shutil.which("chromium")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium on the PATH to look at reports with")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PANELS = "details.panel"
# The contrast of each visible text with what lies behind it, by the formula of the WCAG.
CONTRAST = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [r, g, b] = rgb(colour).slice(0, 3).map((v) => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (rgb(colour)[3] === 255) return colour;
    }
    throw new Error("no background");
  };
  const tags = "h1, h2, h3, p, a, li, dt, dd, small, strong, th, td, pre, code, figcaption, summary, svg text, #tip";
  const texts = [...document.querySelectorAll(tags)];
  return texts.filter((node) => node.textContent.trim()).map((node) => {
    const style = getComputedStyle(node);
    const one = light(node.closest("svg") ? style.fill : style.color), other = light(behind(node));
    return [(Math.max(one, other) + .05) / (Math.min(one, other) + .05), node.tagName, node.textContent.slice(0, 40)];
  });
}
"""


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reports(calibrated, hostile, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    calibrated.report(*table(150, seed=1), folder / "plain.html")
    hostile.report(*hostile_table(100, seed=1), folder / "hostile.html")
    return folder


@pytest.fixture
def visit(browser, reports):
    """Opens a report; in the end, nothing may have gone wrong in it, nor been asked of the network."""
    pages, troubles = [], []

    def opened(name="plain", width=1440, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file:") or troubles.append(request.url))
        page.goto((reports / f"{name}.html").as_uri())
        return page

    yield opened
    for page in pages:
        page.close()
    assert troubles == []


@pytest.mark.parametrize("name", ["plain", "hostile"])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_panel_is_seen_and_nothing_is_wider_than_the_window(name, width, visit):
    page = visit(name, width)
    assert page.locator(PANELS).count() == 10
    for i in range(10):
        inside = page.locator(f"{PANELS} > .inside").nth(i)
        assert inside.is_visible()
        assert inside.bounding_box()["height"] > 20
    for chart in page.locator("svg").all():
        box = chart.bounding_box()
        assert box["width"] > 250
        assert box["x"] + box["width"] <= width
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_text_in_charts_is_not_too_small_on_a_phone(visit):
    page = visit(width=390)
    heights = page.evaluate("""[...document.querySelectorAll("svg text")].map((text) => {
      const size = parseFloat(getComputedStyle(text).fontSize), chart = text.ownerSVGElement;
      return size * chart.getBoundingClientRect().width / chart.viewBox.baseVal.width;
    })""")
    assert min(heights) > 9


def test_labels_stay_within_their_charts(visit):
    page = visit("hostile")
    outside = page.evaluate("""[...document.querySelectorAll("svg text")].filter((text) => {
      const own = text.getBoundingClientRect(), whole = text.ownerSVGElement.getBoundingClientRect();
      return !text.closest("[clip-path]") && (own.left < whole.left - 1 || own.right > whole.right + 1);
    }).map((text) => text.textContent)""")
    assert outside == []


def test_pointing_at_a_mark_shows_its_values(visit):
    page = visit()
    tip = page.locator("#tip")
    assert tip.is_hidden()
    for mark in ("#calibration rect[data-tip]", "#relevance [data-tip]", "#predictions circle[data-tip]"):
        found = page.locator(mark).first
        found.scroll_into_view_if_needed()
        page.mouse.move(1, 1)
        found.hover(force=True)
        assert tip.is_visible()
        assert tip.text_content() == page.locator(".marked").get_attribute("data-tip")
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1440
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_a_finger_shows_values_too(visit):
    page = visit(width=390, has_touch=True)
    page.locator("#relevance [data-tip]").first.tap(force=True)
    assert "of the kernel's sensitivity" in page.locator("#tip").text_content()


def test_the_keyboard_goes_along_the_marks(visit):
    page = visit()
    tip = page.locator("#tip")
    page.locator("#calibration > summary").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "svg"
    marks = [
        mark.get_attribute("data-tip") for mark in page.locator("#calibration svg").first.locator("[data-tip]").all()
    ]
    assert tip.text_content() == marks[0]
    for key, expected in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", -1),
        ("ArrowRight", -1),
        ("Home", 0),
    ):
        page.keyboard.press(key)
        assert tip.text_content() == marks[expected]
    page.keyboard.press("Tab")
    assert tip.is_hidden()


def test_panels_and_tables_of_numbers_open_and_close(visit):
    page = visit()
    inside, title = page.locator("#scores > .inside"), page.locator("#scores > summary")
    title.click()
    assert inside.is_hidden()
    title.press("Enter")
    assert inside.is_visible()
    numbers = page.locator("#relevance details.numbers")
    assert numbers.locator("table").is_hidden()
    numbers.locator("summary").click()
    assert numbers.locator("tbody tr").count() == 4
    assert numbers.locator("table").is_visible()


def test_hostile_names_do_nothing(visit):
    page = visit("hostile")
    for chart in page.locator("svg").all():
        chart.locator("[data-tip]").first.hover(force=True)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img, svg script").count() == 0
    assert page.title() == "Report on a model of </script><script>window.hacked = 3</script>"
    page.locator("#relevance [data-tip]").first.hover(force=True)
    assert page.locator("#tip").locator("*").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(scheme, visit):
    page = visit(color_scheme=scheme)
    found = page.evaluate(CONTRAST)
    assert len(found) > 200
    assert min(found)[0] >= 4.5, min(found)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 150) == (scheme == "dark")


def test_paper_shows_every_panel(visit):
    page = visit()
    page.locator("#data > summary").click()
    assert page.locator("#data > .inside").is_hidden()
    page.emulate_media(media="print")
    for i in range(10):
        assert page.locator(f"{PANELS} > .inside").nth(i).is_visible()
        assert page.locator(PANELS).nth(i).evaluate("(each) => getComputedStyle(each).boxShadow") == "none"
    page.emulate_media(media="screen")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#data > .inside").is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("#data > .inside").is_hidden()


def test_it_can_be_read_without_its_script(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("#verdict > .inside").is_visible()
    assert page.locator("svg").count() > 10
