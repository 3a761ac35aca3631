"""Job type ``dzero_monte_carlo``: D0's simulated events, made by mc_runjob (DØRunjob)."""

from adapters import SLICING, Attribute, Kind
from handlers.runjob import (
    RUNJOB_ATTRIBUTES,
    RUNJOB_SITE_ATTRIBUTES,
    RunjobAdapter,
    phases_attribute,
    program_attribute,
)

PHASES = ("generator", "d0gstar", "d0sim", "d0reco", "recoanalyze")


class DzeroMonteCarloAdapter(RunjobAdapter):
    """D0 Monte-Carlo events of one request: generator, d0gstar, d0sim, d0reco, recoanalyze."""

    jobType = "dzero_monte_carlo"
    requestIdAttribute = "runjob_requestid"
    template = "d0mc.ini.j2"
    phases = PHASES
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
        phases_attribute(PHASES),
        program_attribute("mc_runjob/mc_runjob"),
        *RUNJOB_ATTRIBUTES,
    )  # fmt: skip
    siteAttributes = RUNJOB_SITE_ATTRIBUTES

    def getSize(self) -> int | None:
        """The request's ``runjob_numevts``."""
        size: int = self.request["runjob_numevts"]
        return size
