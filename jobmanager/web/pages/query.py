"""The page with the query box."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jobmanager.database.database import UnknownJob
from jobmanager.site.account import Account
from jobmanager.views.query import MOST_LETTERS, Language, QueryError, QueryLimits, QueryResult, run_limited
from jobmanager.web.reading import open_read_only

LIMITS = QueryLimits(seconds=10, memory=1_000_000_000, answer=8_000_000)
"""What one question from a browser may use."""
_MOST_ITEMS = 1000
_MOST_TEXT = 500_000

_EXAMPLES = (
    ("How many local jobs run?", "count(//local-job[@state='active'])"),
    ("Which failed, and why?", "//local-job[@state='failed']/@reason"),
    ("Which ended with another exit code than 0?", "//local-job[@exit-code and @exit-code != '0']"),
    ("Where did they run?", "//local-job/@host"),
    ("How much CPU time was used, in seconds?", "sum(//local-job/@cpu-time)"),
    ("What was asked for?", "//grid-job/request"),
)


@dataclass(frozen=True)
class QueryPage:
    """What the page shows."""

    expression: str
    job: str
    language: Language
    fault: str = ""
    result: QueryResult | None = None
    languages: tuple[Language, ...] = tuple(Language)
    examples: tuple[tuple[str, str], ...] = _EXAMPLES
    most_letters: int = MOST_LETTERS
    here: str = "query"
    events: str = ""

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
