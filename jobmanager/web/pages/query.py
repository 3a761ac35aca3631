"""The page with the query box."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jobmanager.database.database import UnknownJob
from jobmanager.site.account import Account
from jobmanager.views.query.query import (
    MOST_LETTERS,
    Language,
    QueryError,
    QueryLimits,
    QueryResult,
    make_cells,
    run_limited,
)
from jobmanager.web.reading import open_read_only

LIMITS = QueryLimits(seconds=30, memory=1_000_000_000, answer=8_000_000)
"""What one question from a browser may use."""
_MOST_ITEMS = 1000
_MOST_TEXT = 500_000

_EXAMPLES: tuple[tuple[str, Language, str], ...] = (
    ("Where are my events?", Language.XPATH, '//grid-job[@owner="maria"]/local-job[@state="active"]/phase'),
    ("How many events have passed the phase d0gstar?", Language.XPATH, 'sum(//phase[@name="d0gstar"]/@done)'),
    (
        "Which grid jobs failed, and why?",
        Language.XQUERY,
        '//grid-job[@outcome="failed"] ! <failed id="{@id}" reason="{@reason}"/>',
    ),
    ("What keeps grid jobs from going on?", Language.XPATH, "//problem"),
    (
        "Which hosts lose most local jobs?",
        Language.XQUERY,
        'for $j in //local-job[@outcome != "succeeded"][@host] group by $host := $j/@host order by '
        'count($j) descending, $host return <host name="{$host}" failed="{count($j)}"/>',
    ),
    (
        "Which reasons are there for failures, and how often?",
        Language.XQUERY,
        'for $j in //local-job[@outcome="failed"] group by $reason := $j/@reason order by count($j) '
        'descending, $reason return <reason count="{count($j)}">{string($reason)}</reason>',
    ),
    (
        "Which fraction of the local jobs that have ended did what they should?",
        Language.XPATH,
        'count(//local-job[@outcome="succeeded"]) div count(//local-job[@outcome])',
    ),
    ("How many local jobs run on Slurm now?", Language.XPATH, 'count(//local-job[@state="active"][@batch="slurm"])'),
    (
        "What runs in the rack whose hosts are wn100 to wn109?",
        Language.XPATH,
        '//local-job[@state="active"][re:test(@host, "^wn10[0-9]\\.")]/@id',
    ),
    ("Why do local jobs wait?", Language.XPATH, '//local-job[@state="pending"]/@wait-reason'),
)
"""Of docs/questions.md."""


@dataclass(frozen=True)
class QueryPage:
    expression: str
    job: str
    language: Language
    fault: str = ""
    result: QueryResult | None = None
    languages: tuple[Language, ...] = tuple(Language)
    examples: tuple[tuple[str, Language, str], ...] = _EXAMPLES
    most_letters: int = MOST_LETTERS
    here: str = "query"
    events: str = ""

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heading and rows of those that have attributes, or are some; no rows where there are none."""
        items = self.result.items[: len(self.shown)] if self.result else ()
        return make_cells(items) if any(item.fields for item in items) else ([], [])

    @property
    def shown(self) -> list[str]:
        """The first items of the answer."""
        return list(_shorten(self.result)) if self.result else []


def read_query_page(account: Account, parameters: Mapping[str, str]) -> QueryPage:
    """The box, and the answer where something is asked."""
    expression, job = parameters.get("q", "").strip(), parameters.get("job", "").strip()
    language = Language.XQUERY if parameters.get("language") == "xquery" else Language.XPATH
    if not expression:
        return QueryPage(expression, job, language)
    # One of its own: a connection to the database belongs to one thread.
    own = Account(account.places, account.configuration)
    try:
        result = run_limited(own, _find(own, job), expression, language, LIMITS)
    except (QueryError, UnknownJob) as error:
        return QueryPage(expression, job, language, str(error))
    return QueryPage(expression, job, language, result=result)


def _find(account: Account, job: str) -> str | None:
    if not job:
        return None
    with open_read_only(account) as database:
        return database.grid_jobs.find(job)


def _shorten(result: QueryResult) -> Iterator[str]:
    left = _MOST_TEXT
    for item in result.items[:_MOST_ITEMS]:
        if len(item.text) > left:
            return
        left -= len(item.text)
        yield item.text
