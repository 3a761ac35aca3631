"""Job types ``dzero_monte_carlo`` (made by mc_runjob, DØRunjob) and ``cdf_monte_carlo``: simulated events."""

from adapters import EVENTS, SLICING, Attribute, Kind
from handlers.runjob import (
    RUNJOB_ATTRIBUTES,
    RUNJOB_SITE_ATTRIBUTES,
    RunjobAdapter,
    phases_attribute,
    program_attribute,
)

_D0_PHASES = ("generator", "d0gstar", "d0sim", "d0reco", "recoanalyze")


class DzeroMonteCarloAdapter(RunjobAdapter):
    """D0 Monte-Carlo events of one request: generator, d0gstar, d0sim, d0reco, recoanalyze."""

    jobType = "dzero_monte_carlo"
    requestIdAttribute = "runjob_requestid"
    template = "d0mc.ini.j2"
    phases = _D0_PHASES
    attributes = (
        Attribute("runjob_requestid", "Id of the request in the experiment's request system.", Kind.INTEGER,
                  required=True, minimum=1),
        Attribute("runjob_numevts", "How many events the grid job makes.", Kind.INTEGER, "events", required=True,
                  minimum=1),
        Attribute("d0_release_version", "Release of the experiment's software, such as p14.07.00.", required=True),
        Attribute("minbias_dataset", "Dataset of minimum-bias events, which d0sim lays over the simulated ones.",
                  default=""),
        Attribute("cardfiles", "Version of the card files, where the generator is run.", default=""),
        *SLICING,
        phases_attribute(_D0_PHASES),
        program_attribute("mc_runjob/mc_runjob"),
        *RUNJOB_ATTRIBUTES,
    )  # fmt: skip
    siteAttributes = RUNJOB_SITE_ATTRIBUTES

    def getSize(self) -> int | None:
        """The request's ``runjob_numevts``."""
        size: int = self.request["runjob_numevts"]
        return size


_CDF_PHASES = ("cdfgen", "cdfsim", "trgsim", "production")


class CdfMonteCarloAdapter(RunjobAdapter):
    """CDF Monte-Carlo events of one request: cdfgen, cdfsim, trgsim, production."""

    jobType = "cdf_monte_carlo"
    requestIdAttribute = "request_id"
    template = "cdfmc.ini.j2"
    phases = _CDF_PHASES
    attributes = (
        Attribute("request_id", "Id of the request in the experiment's request system.", Kind.INTEGER, required=True,
                  minimum=1),
        EVENTS,
        Attribute("cdf_release_version", "Release of the experiment's software.", required=True),
        Attribute("run_number", "Run whose conditions of detector and beam are simulated.", Kind.INTEGER, minimum=1),
        *SLICING,
        phases_attribute(_CDF_PHASES),
        program_attribute("mcproduction/run"),
        *RUNJOB_ATTRIBUTES,
    )  # fmt: skip
    siteAttributes = RUNJOB_SITE_ATTRIBUTES
