"""The browser fixture detects errors of a page."""

from pathlib import Path

from browser import Open

GOOD = '<!doctype html><html lang="en"><title>t</title><main><h1>Good</h1></main>'
BAD = """<!doctype html><html lang="en"><title>t</title><main><h1>Bad</h1><img src="data:,">
<p style="color: #ccc; background: #fff; width: 3000px">pale</p></main>
<script>console.error("lost"); undefinedName; </script><script>fetch("http://elsewhere.invalid/")</script>"""


def test_a_good_page_gives_no_complaint(open_page: Open, tmp_path: Path):
    (tmp_path / "page.html").write_text(GOOD)
    visit = open_page(tmp_path / "page.html")
    assert (visit.errors, visit.requests_leaving, visit.overflow(), visit.violations()) == ([], [], 0, [])


def test_what_a_page_does_wrong_is_seen(open_page: Open, tmp_path: Path):
    (tmp_path / "page.html").write_text(BAD)
    visit = open_page(tmp_path / "page.html", width=375, dark=True)
    assert "lost" in visit.errors
    assert any("undefinedName" in error for error in visit.errors)
    assert visit.requests_leaving == ["http://elsewhere.invalid/"]
    assert visit.overflow() > 2000
    assert {line.split(":")[0] for line in visit.violations()} >= {"image-alt", "color-contrast"}
