"""Job type ``cdf_monte_carlo``: CDF's simulated events."""

from adapters import EVENTS, SLICING, Attribute, Kind
from handlers.runjob import (
    RUNJOB_ATTRIBUTES,
    RUNJOB_SITE_ATTRIBUTES,
    RunjobAdapter,
    phases_attribute,
    program_attribute,
)

PHASES = ("cdfgen", "cdfsim", "trgsim", "production")


class CdfMonteCarloAdapter(RunjobAdapter):
    """CDF Monte-Carlo events of one request: cdfgen, cdfsim, trgsim, production."""

    jobType = "cdf_monte_carlo"
    requestIdAttribute = "request_id"
    template = "cdfmc.ini.j2"
    phases = PHASES
    attributes = (
        Attribute("request_id", "Id of the request in the experiment's request system.", Kind.INTEGER, required=True,
                  minimum=1),
        EVENTS,
        Attribute("cdf_release_version", "Release of the experiment's software.", required=True),
        Attribute("run_number", "Run whose conditions of detector and beam are simulated.", Kind.INTEGER, minimum=1),
        *SLICING,
        phases_attribute(PHASES),
        program_attribute("mcproduction/run"),
        *RUNJOB_ATTRIBUTES,
    )  # fmt: skip
    siteAttributes = RUNJOB_SITE_ATTRIBUTES
