"""Questions to the job database: what is answered, what is refused, and that every expression ends."""

import sys
from pathlib import Path

import pytest
from lxml import etree

from batch_adapters.states import State
from jobmanager.commands import cli
from jobmanager.database.local_job import LocalJob
from jobmanager.site.account import Account
from jobmanager.views.query import query
from jobmanager.views.query.query import (
    RENDERERS,
    Item,
    ItemKind,
    Language,
    QueryError,
    QueryLimits,
    QueryResult,
    check_names,
    render_items,
    render_table,
    render_xml,
    run_limited,
)
from tests.extras import need
from tests.unit.grid_jobs import make_grid_job, put
from tests.waiting import SECONDS

FIRST, SECOND = "aaaaaaaa", "bbbbbbbb"
forked = pytest.mark.usefixtures("forked_queries")


@pytest.fixture
def jobs(account: Account) -> Account:
    """Two grid jobs of two local jobs each."""
    for job_id in (FIRST, SECOND):
        job = make_grid_job(job_id, 2, request=[("executable", ("/bin/true",))])
        job.end(State.DONE, 2000)
        put(account.database, job, [LocalJob.new(index, "fork", None) for index in (1, 2)])
    return account


def ask(account: Account, expression: str, language: Language = Language.XPATH, job_id: str | None = None) -> str:
    return "\n".join(render_items(run_limited(account, job_id, expression, language)))


ANSWERS = [
    pytest.param("count(//local-job)", "4", id="number"),
    pytest.param("string(//grid-job[1]/@owner)", "physicist", id="string"),
    pytest.param("count(//local-job) > 3", "true", id="boolean"),
    pytest.param("3 div 2", "1.5", id="fraction"),
    pytest.param("number(1) div 10000000", "0.0000001", id="small number"),
    pytest.param("number(1997424.5) * 2", "3994849", id="large number"),
    pytest.param("//grid-job/@id", "aaaaaaaa\nbbbbbbbb", id="attributes"),
    pytest.param("//request/attribute[1]/value/text()", "/bin/true\n/bin/true", id="texts"),
    pytest.param("grid-job[1]/slices", '<slices count="2"/>', id="element, from the root element"),
    pytest.param("//nothing", "", id="nothing"),
]


@forked
@pytest.mark.parametrize(("expression", "expected"), ANSWERS)
def test_an_item_of_the_answer_is_a_line(jobs: Account, expression: str, expected: str) -> None:
    assert ask(jobs, expression) == expected


@forked
def test_an_item_of_any_kind_is_a_line_of_an_xquery(jobs: Account) -> None:
    need("saxonche")
    answers = [answer.values for answer in ANSWERS]
    expression = ", ".join(str(given).replace("//grid-job[1]", "(//grid-job)[1]") for given, _ in answers)
    assert ask(jobs, expression, Language.XQUERY) == "\n".join(str(expected) for _, expected in answers if expected)


@forked
def test_the_document_is_shown_as_its_root_element(jobs: Account) -> None:
    assert ask(jobs, "/").startswith("<jobs")


@forked
def test_of_one_grid_job_nothing_else_is_seen(jobs: Account) -> None:
    assert ask(jobs, "//grid-job/@id", job_id=SECOND) == SECOND


@forked
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("//grid-job[re:test(@id, '^A', 'i')]/@id", FIRST),
        ("re:replace('a-b-c', '-', 'g', '+')", "a+b+c"),
        ("0 div 0", "NaN"),
        ("-1 div 0", "-Infinity"),
    ],
)
def test_xpath_has_regular_expressions_and_its_own_words_for_numbers(
    jobs: Account, expression: str, expected: str
) -> None:
    assert ask(jobs, expression) == expected


@forked
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("for $job in //grid-job order by $job/@id descending return string($job/@id)", f"{SECOND}\n{FIRST}"),
        ("<r>{count(//local-job)}</r>", "<r>4</r>"),
        ("string-join(//grid-job ! upper-case(@id), ',')", "AAAAAAAA,BBBBBBBB"),
        ("map {'a': 1}", 'map{"a":1}'),
        ("1997424e0, 0.1e0, xs:float(1e10), 1e-7", "1997424\n0.1\n10000000000\n0.0000001"),
        ("xs:double('NaN'), xs:float('INF'), 12.50, 'nan'", "NaN\nINF\n12.5\nnan"),
    ],
)
def test_xquery_is_there_where_saxon_is(jobs: Account, expression: str, expected: str) -> None:
    need("saxonche")
    assert ask(jobs, expression, Language.XQUERY) == expected


def test_without_saxon_the_extra_is_named(jobs: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saxonche.py").write_text("raise ModuleNotFoundError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(QueryError, match=r"samgrid-jobmanager\[xquery\]"):
        ask(jobs, "1", Language.XQUERY)


# --- wrong expressions


@forked
@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("expression", ["//[", "nonsense()", "$variable", "//x:local-job", "", "\ud800"], ids=ascii)
def test_a_wrong_expression_is_named_in_one_printable_line(jobs: Account, language: Language, expression: str) -> None:
    if language is Language.XQUERY:
        need("saxonche")
    with pytest.raises(QueryError) as raised:
        ask(jobs, expression, language)
    assert str(raised.value).startswith(f"{language.value} {expression!r}: ")
    assert str(raised.value).isprintable()


@forked
def test_a_function_of_later_versions_is_told_to_be_one_of_xquery(jobs: Account) -> None:
    with pytest.raises(QueryError, match=r"Unregistered function: XPath 1\.0 has none of this name, XQuery 3\.1 may"):
        ask(jobs, "distinct-values(//@host)", Language.XPATH)


def test_an_expression_may_not_be_endless(jobs: Account) -> None:
    with pytest.raises(QueryError, match="at most 32768"):
        ask(jobs, "1" + "+1" * 20_000)


# --- limits

GROWING = "'aaaaaaaaaaaaaaaaaaaa'"
for _ in range(10):
    GROWING = f"re:replace({GROWING}, 'a', 'g', 'aaaaaaaaaaaaaaaaaaaa')"

BOMBS = [
    pytest.param(Language.XPATH, "count(//*" + "[count(//*" * 12 + ") > 0]" * 12 + ")", id="nested counts"),
    pytest.param(Language.XPATH, f"re:test('{'a' * 50}b', '(a+)+c')", id="regular expression"),
    pytest.param(Language.XQUERY, "count((1 to 1000000000)[. mod 7 = trace(.)])", id="long loop that prints"),
    # Longer ones need gigabytes before the time is over.
    pytest.param(Language.XQUERY, "1 to 10000000", id="long answer"),
]


@pytest.mark.parametrize(("language", "expression"), BOMBS)
def test_an_expression_without_an_end_ends_at_the_limit(jobs: Account, language: Language, expression: str) -> None:
    if language is Language.XQUERY:
        need("saxonche")
    with pytest.raises(QueryError, match="no answer within 1 s"):
        run_limited(jobs, None, expression, language, QueryLimits(seconds=1))


@pytest.mark.parametrize(
    ("language", "expression"),
    [
        pytest.param(Language.XPATH, GROWING, id="growing string"),
        pytest.param(Language.XQUERY, "string-length(string-join((1 to 20000000) ! 'xxxxxxxxxx'))", id="long string"),
        pytest.param(
            Language.XQUERY,
            "let $f := function($f, $n) { 1 + $f($f, $n + 1) } return $f($f, 1)",
            id="endless recursion",
        ),
    ],
)
def test_an_expression_that_grows_ends_at_the_limit(jobs: Account, language: Language, expression: str) -> None:
    if language is Language.XQUERY:
        need("saxonche")
    with pytest.raises(QueryError, match="needs more than 150 MB of memory"):
        run_limited(jobs, None, expression, language, QueryLimits(seconds=60, memory=150_000_000))


def test_memory_that_the_kernel_does_not_count_ends_at_the_limit(
    jobs: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Saxon's one large array: the child has a limit of its own, but takes more.
    taking = "import time; taken = b'x' * 300_000_000; time.sleep(600)"
    monkeypatch.setattr(query, "command_line", lambda program: [sys.executable, "-c", taking])
    with pytest.raises(QueryError, match="needs more than 150 MB of memory"):
        run_limited(jobs, None, "//local-job", limits=QueryLimits(seconds=SECONDS, memory=150_000_000))


def test_a_long_answer_ends_at_the_limit(jobs: Account) -> None:
    assert run_limited(jobs, None, "//local-job", limits=QueryLimits(answer=1000))
    with pytest.raises(QueryError, match="more than 100 letters"):
        run_limited(jobs, None, "//local-job", limits=QueryLimits(answer=100))


# --- no way out

SECRET = "the secret"
READING = [
    "unparsed-text('{file}')",
    "unparsed-text-lines('{file}')",
    "json-doc('{file}')",
    "doc('{file}')",
    "collection('{folder}')",
    "uri-collection('{folder}')",
    "doc-available('{file}')[.]",
    "unparsed-text-available('{file}')[.]",
    """parse-xml('<!DOCTYPE a [<!ENTITY e SYSTEM "{file}">]><a>&amp;e;</a>')""",
    """parse-xml('<a xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="{file}" parse="text"/></a>')""",
    "transform(map {{'stylesheet-location': '{file}', 'source-node': /}})",
    "environment-variable('SAMGRID_SECRET')",
]
REACHING = [
    READING[8],
    "import module namespace m = 'm' at '{file}'; 1",
    "declare namespace f = 'java:java.nio.file.Files'; f:readString('{file}')",
    "declare namespace f = 'http://expath.org/ns/file'; f:read-text('{file}')",
]


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A file and a variable that nobody may read, as the fields of an expression."""
    file = tmp_path / "secret.xml"
    file.write_text(SECRET)
    monkeypatch.setenv("SAMGRID_SECRET", SECRET)
    return {"file": file.as_uri(), "folder": tmp_path.as_uri()}


def test_no_function_of_xquery_reads_a_file_or_the_environment(jobs: Account, secret: dict[str, str]) -> None:
    need("saxonche")
    tries = [f"[try {{{{ {reading} }}}} catch * {{{{ 'refused' }}}}]" for reading in READING]
    answer = ask(jobs, ", ".join(tries).format(**secret), Language.XQUERY)
    assert len(answer.splitlines()) == len(READING), "each was tried"
    assert SECRET not in answer
    assert "true" not in answer


@pytest.mark.parametrize("expression", REACHING)
def test_xquery_reaches_no_file_by_other_ways(jobs: Account, secret: dict[str, str], expression: str) -> None:
    need("saxonche")
    with pytest.raises(QueryError) as raised:
        ask(jobs, expression.format(**secret), Language.XQUERY)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "expression",
    [
        """transform(map {{'initial-template': QName('', 'm'), 'stylesheet-text': '<xsl:stylesheet version="3.0"
           xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:template name="m"><xsl:result-document
           href="{file}">x</xsl:result-document></xsl:template></xsl:stylesheet>'}})""",
        "declare namespace f = 'http://expath.org/ns/file'; f:write-text('{file}', 'x')",
        "put(<a/>, '{file}')",
    ],
    ids=["result-document", "expath", "put"],
)
def test_xquery_writes_no_file(jobs: Account, tmp_path: Path, expression: str) -> None:
    need("saxonche")
    file = tmp_path / "written.xml"
    with pytest.raises(QueryError, match="XQuery"):
        ask(jobs, expression.format(file=file.as_uri()), Language.XQUERY)
    assert not file.exists()


@pytest.mark.parametrize("function", ["document('{}')", "doc('{}')", "unparsed-text('{}')", "str:tokenize('{}')"])
def test_xpath_has_no_function_that_could_read_a_file(jobs: Account, function: str) -> None:
    with pytest.raises(QueryError):
        ask(jobs, function.format("/etc/passwd"))


# --- what is printed

HOSTILE = "<script>\x1b[2J\x9b1m\x07\n\u202e'\"&\r\x7f"


@pytest.mark.parametrize("form", RENDERERS)
def test_items_are_printed_harmlessly(form: str) -> None:
    element = etree.Element("item", name=HOSTILE.replace("\x1b", "").replace("\x07", ""))
    element.text = element.get("name")
    items = (
        Item(ItemKind.ELEMENT, etree.tostring(element, encoding="unicode"), (("name", HOSTILE), ("text()", HOSTILE))),
        Item(ItemKind.ATTRIBUTE, HOSTILE, ((HOSTILE, HOSTILE),)),
        Item(ItemKind.TEXT, HOSTILE * 1000),
        Item(ItemKind.VALUE, HOSTILE),
    )
    lines = list(RENDERERS[form](QueryResult(items)))
    assert all(line.replace("\n", "").isprintable() for line in lines)
    if form == "text":
        assert len(lines) == len(items)
        assert not any("\n" in line for line in lines)
        assert etree.fromstring(lines[0]).text == element.text
    if form == "table":
        assert len(lines) == len(items) + 1


def test_as_xml_an_answer_reads_back_as_it_was() -> None:
    items = (
        Item(ItemKind.ELEMENT, '<a xmlns:d="urn:d" d:b="&lt;"><c/></a>', (("{urn:d}b", "<"),)),
        Item(ItemKind.ATTRIBUTE, "<&\n", (("exit-code", "<&\n"),)),
        Item(ItemKind.VALUE, "\x9b\x01"),
    )
    root = etree.fromstring("\n".join(render_xml(QueryResult(items))))
    assert [(child.tag, child.get("name"), child.text) for child in root] == [
        ("a", None, "\n    "),
        ("attribute", "exit-code", "<&\n"),
        ("value", None, "\x9b\ufffd"),
    ]
    assert root[0].get("{urn:d}b") == "<"


@pytest.mark.parametrize(
    ("markup", "lines"),
    [
        pytest.param(
            '<a b="1"><c>x</c><d><e/></d></a>',
            ['  <a b="1">', "    <c>x</c>", "    <d>", "      <e/>", "    </d>", "  </a>"],
            id="elements",
        ),
        pytest.param("<a>x<b/><c/></a>", ["  <a>x<b/><c/></a>"], id="text between them"),
        pytest.param("<a><b/><c/>x</a>", ["  <a><b/><c/>x</a>"], id="text behind them"),
        pytest.param("<!-- a -->", ["  <!-- a -->"], id="no element"),
    ],
)
def test_xml_is_indented_where_that_changes_no_text(markup: str, lines: list[str]) -> None:
    answer = "\n".join(render_xml(QueryResult((Item(ItemKind.ELEMENT, markup),))))
    assert answer.splitlines() == ["<result>", *lines, "</result>"]


def test_a_table_has_a_column_for_each_name_that_occurs() -> None:
    items = (
        Item(ItemKind.ELEMENT, "<a/>", (("id", "1"), ("state", "done"))),
        Item(ItemKind.ELEMENT, "<a/>", (("id", "2"), ("host", "wn1"))),
        Item(ItemKind.ELEMENT, "<b/>"),
    )
    assert [line.split() for line in render_table(QueryResult(items))] == [
        ["id", "state", "host", "value"],
        ["1", "done"],
        ["2", "wn1"],
        ["<b/>"],
    ]
    assert list(render_table(QueryResult(()))) == ["nothing found"]


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        pytest.param('//local-jop[@stat="x"]', ["local-job", "state"], id="a path"),
        pytest.param('//local-job[evidnce/@sorce="log" and @staet]', ["evidence", "source", "state"], id="predicates"),
        pytest.param("//local-job/@State", ["state"], id="capitals"),
        pytest.param("//*[local-name()='stat']/../child::*[re:test(@host, '/stat[@stat]')]", [], id="other words"),
        pytest.param("for $j in //local-job return <stat>{$j/@id - 1}</stat>", [], id="elements made by XQuery"),
        pytest.param("//grid-job[some $j in local-job satisfies $j/@id]", [], id="words of XQuery"),
        pytest.param("//luminosity", ["no name luminosity"], id="nothing alike"),
    ],
)
def test_names_that_are_misspelt_are_told_with_what_may_be_meant(expression: str, meant: list[str]) -> None:
    hints = check_names(expression, [])
    assert [
        hint.removesuffix("?)").removeprefix("the schema has ").split("did you mean ")[-1] for hint in hints
    ] == meant


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("//local-job[@state=active]", ["active"]),
        ("//local-job[@outcome = failed and @cause=exit-code]", ["failed", "exit-code"]),
        ("//local-job[@state='done' or @host=\"a=b\" or @id=phase or @number=last() or @host=$x]", []),
        ("for $j in //grid-job let $n := name return <a b='c'>{$j/@id}</a>", []),
    ],
)
def test_a_text_without_quotes_is_told(expression: str, words: list[str]) -> None:
    assert [hint.split()[0] for hint in check_names(expression, [])] == words


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ('count(//local-job[@state="failed"])', '@outcome="failed"'),
        ("//local-job[@state = 'cancelled']", '@outcome="cancelled"'),
        ("//local-job[@state='running']", "there is no state running: it is one of pending, active,"),
        ("//local-job[@state='activ']", "(did you mean active?)"),
    ],
)
def test_a_state_that_no_job_has_is_told(expression: str, words: str) -> None:
    (hint,) = check_names(expression, [])
    assert words in hint
    assert not check_names('//local-job[@state="active" or @state="done"]', [])


@pytest.mark.parametrize("text", ["0", "NaN", "false", "", "3"])
def test_a_misspelt_name_is_told_only_where_nothing_was_found(text: str) -> None:
    assert bool(check_names("//local-jop", [Item(ItemKind.VALUE, text)])) == (text != "3")
    assert not check_names("//local-jop/@id", [Item(ItemKind.ATTRIBUTE, text)])


@forked
def test_the_command_tells_a_misspelt_name_beside_the_answer(jobs: Account, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", "--state-dir", str(jobs.places.root), "count(//grid-jop)"]) == 0
    told = "samgrid query: the schema has no name grid-jop (did you mean grid-job?)\n"
    assert capsys.readouterr() == ("0\n", told)
